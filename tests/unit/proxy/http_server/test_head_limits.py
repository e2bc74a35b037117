"""How large a head may be."""

import json

import pytest

from baton.proxy.http_server.head_limits import MAX_TARGET_BYTES, HeadLimits, as_bytes

LIMITS = HeadLimits(max_bytes=1000, max_headers=3)


@pytest.mark.parametrize(
    ("target", "headers", "status"),
    [
        (b"/", [], None),
        (b"/", [(b"a", b"b")] * 3, None),
        (b"/", [(b"a", b"b")] * 4, 431),
        (b"/", [(b"a", b"b" * 994)], None),
        (b"/", [(b"a", b"b" * 995)], 431),
        (b"/", [(b"a" * 995, b"b")], 431),
        (b"/" * 1000, [], None),
        (b"/" * 1001, [], 431),
        (b"/" * MAX_TARGET_BYTES, [], 431),
        (b"/" * (MAX_TARGET_BYTES + 1), [], 414),
    ],
)
def test_a_head_has_bounds(target: bytes, headers: list[tuple[bytes, bytes]], status: int | None) -> None:
    problem = LIMITS.problem_of(target, headers)

    assert (problem.status if problem else None) == status


def test_the_answer_is_openais() -> None:
    head, _, body = as_bytes(LIMITS.too_large()).partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
    assert b"\r\nconnection: close" in head
    assert b"content-length: %d" % len(body) in head
    assert json.loads(body)["error"]["code"] == 431
