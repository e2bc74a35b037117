"""What a request says of itself."""

from typing import Any

import msgspec
import pytest

from baton.proxy.admission.request_terms import priority_of, tenant_of, timeout_s_of
from baton.proxy.errors import BadRequestError
from baton.proxy.request.fields import split


def fields(**values: Any) -> dict[str, msgspec.Raw]:
    return split(msgspec.json.encode(values))


def test_a_tenant_is_named_by_the_header_else_by_the_key_else_not_at_all() -> None:
    """Without a configured header what clients write there does not count."""
    key, tenant = (b"authorization", b"Bearer k"), (b"x-tenant", b"t")

    assert tenant_of([], "x-tenant") == tenant_of([], "") == ""
    assert tenant_of([key, tenant], "x-tenant") == tenant_of([tenant], "x-tenant") != ""
    assert tenant_of([key, tenant], "") == tenant_of([key], "x-tenant") != tenant_of([tenant], "x-tenant")
    assert tenant_of([(b"authorization", b"Bearer other")], "") != tenant_of([key], "")


def test_a_configured_key_is_known_by_its_name_unless_the_header_says_another() -> None:
    key, tenant = (b"authorization", b"Bearer k"), (b"x-tenant", b"t")

    assert tenant_of([key], "x-tenant", "team") == tenant_of([key, tenant], "", "team") == "team"
    assert tenant_of([key, tenant], "x-tenant", "team") == tenant_of([tenant], "x-tenant")


def test_a_key_cannot_be_read_from_its_tenants_name() -> None:
    """It is a short hash, whatever the length of the key."""
    name = tenant_of([(b"authorization", b"Bearer " + b"s" * 1000)], "")

    assert "ss" not in name
    assert len(name) == 16


@pytest.mark.parametrize(
    ("header", "body", "priority"),
    [(b"-3", {"priority": 9}, -3), (None, {"priority": 9}, 9), (None, {"priority": None}, 0), (None, {}, 0)],
)
def test_a_priority_is_the_headers_else_the_bodys_else_0(
    header: bytes | None, body: dict[str, Any], priority: int
) -> None:
    """Lower goes first, as in vLLM."""
    headers = [(b"x-priority", header)] if header else []

    assert priority_of(headers, fields(**body), "x-priority") == priority
    assert priority_of(headers, fields(**body), "") == 0


@pytest.mark.parametrize("value", [b"high", b"1.5", b"", b" "])
def test_a_priority_that_is_no_integer_is_refused(value: bytes) -> None:
    """An empty one too: a client that writes the header means something."""
    with pytest.raises(BadRequestError):
        priority_of([(b"x-priority", value)], {}, "x-priority")


@pytest.mark.parametrize(
    ("said", "timeout_s"), [(None, 60.0), (b"2.5", 2.5), (b"0.5", 0.5), (b"61", 60.0), (b"inf", 60.0)]
)
def test_a_client_can_only_shorten_its_time(said: bytes | None, timeout_s: float) -> None:
    headers = [(b"x-timeout", said)] if said else []

    assert timeout_s_of(headers, "x-timeout", 60.0) == timeout_s
    assert timeout_s_of(headers, "", 60.0) == 60.0


@pytest.mark.parametrize("said", [b"", b"soon", b"0", b"-1", b"nan", b"-inf"])
def test_a_time_that_is_no_number_above_0_is_refused(said: bytes) -> None:
    with pytest.raises(BadRequestError, match="x-timeout"):
        timeout_s_of([(b"x-timeout", said)], "x-timeout", 60.0)
