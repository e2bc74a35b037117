"""How the digests of a transfer are asked for, part by part."""

import time
from collections.abc import Sequence

import pytest

from baton.kv_connector.worker_side.digesting import DigestThread, Part, blocks_of, parts_of

PARTS = [Part([1, 2], [0]), Part([3, 2], [1, 2])]


def test_regions_are_divided_where_their_group_changes() -> None:
    """In their order: that is the order of the digests."""
    group_of = {0: 5, 1: 6, 2: 6, 3: 5}

    parts = parts_of([0, 1, 2, 3], group_of.__getitem__, lambda group: [group, group + 10])

    assert parts == [([5, 15], [0]), ([6, 16], [1, 2]), ([5, 15], [3])]
    assert blocks_of(parts) == [5, 15, 6, 16]


@pytest.mark.parametrize("fails", [False, True])
def test_parts_are_digested_one_after_the_other(fails: bool) -> None:
    """What cannot be computed is empty; the next is computed all the same, and whatever becomes of the answer."""
    done: list[tuple[str, bytes]] = []
    failing = [fails]

    def compute(blocks: Sequence[int], regions: Sequence[int]) -> bytes:
        if failing.pop() if failing else False:
            raise RuntimeError("device assert")
        return f"{list(blocks)}{list(regions)}".encode()

    def take(thing: str, digests: bytes) -> None:
        done.append((thing, digests))
        raise LookupError(thing)

    thread = DigestThread[str](compute, take)
    thread.start()
    for thing in ("a", "b"):
        thread.ask(thing, PARTS)
    deadline = time.monotonic() + 60
    while len(done) < 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    thread.stop()

    whole = b"[1, 2][0][3, 2][1, 2]"
    assert done == [("a", b"" if fails else whole), ("b", whole)]
    assert not thread._thread.is_alive()


def test_a_stop_drops_what_has_not_been_begun() -> None:
    """The device has other work; a thread that never started can be stopped, too."""
    done: list[str] = []
    thread = DigestThread[str](lambda *_: b"digests!", lambda thing, _: done.append(thing))
    thread.ask("a", PARTS)
    thread.stop()

    thread.start()
    thread._thread.join(60)

    assert (done, thread._thread.is_alive()) == ([], False)
