"""What the comparison of pool, scheduler and ledger finds."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from baton.kv_connector.scheduler_side.integrity import Finding, Views, Wrong, compare

# Block 0 is the null block. 1-3 belong to request a, of which a peer writes to 2 and 3; 4 is shared by a and b; 5-7 free.
SOUND: dict[str, Any] = {
    "references": [0, 1, 2, 2, 2, 0, 0, 0],
    "free": [5, 6, 7],
    "requests": {"a": [1, 2, 3, 4], "b": [4]},
    "reservations": {"a": [2, 3]},
}


def views(
    *,
    references: Mapping[int, int] | None = None,
    free: Sequence[int] | None = None,
    **more: Any,
) -> Views:
    """The sound state, with some references or other parts changed."""
    counts = list(SOUND["references"])
    for block, count in (references or {}).items():
        counts[block] = count
    return Views(**{**SOUND, "references": counts, "free": SOUND["free"] if free is None else free, **more})


def test_a_sound_pool_has_no_findings() -> None:
    """Requests and reservations each count for one reference, shared blocks for as many as share them."""
    assert compare(views()) == []


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"references": {5: 1}, "free": [6, 7]}, Finding(5, Wrong.NOBODY, 1, ())),
        ({"references": {1: 2}}, Finding(1, Wrong.UNACCOUNTED, 2, ("request a",))),
        ({"references": {4: 1}}, Finding(4, Wrong.CROWDED, 1, ("request a", "request b"))),
        ({"free": [1, 5, 6, 7]}, Finding(1, Wrong.FREE, 1, ("request a",))),
        ({"references": {1: 0}, "free": [1, 5, 6, 7]}, Finding(1, Wrong.FREE, 0, ("request a",))),
        ({"references": {6: 1}}, Finding(6, Wrong.FREE, 1, ())),
        ({"free": [5, 6]}, Finding(7, Wrong.LOST, 0, ())),
        (
            {"references": {3: 0}, "free": [3, 5, 6, 7], "requests": {"a": [1, 2, 4], "b": [4]}},
            Finding(3, Wrong.WRITABLE, 0, ("a peer's writes for a",)),
        ),
    ],
    ids=lambda value: value.wrong.name if isinstance(value, Finding) else "",
)
def test_each_kind_of_damage_is_found(change: dict[str, Any], found: Finding) -> None:
    """The block, what is wrong, and who is known to own it; no sound one is named."""
    assert compare(views(**change)) == [found]


def test_the_null_block_may_count_whatever_it_likes() -> None:
    """VLLM does not keep its references."""
    assert compare(views(references={0: 17})) == []


def test_without_the_schedulers_view_no_owner_is_accused() -> None:
    """What cannot be known is not reported; what pool and ledger say of each other still is."""
    assert compare(views(requests=None)) == []
    assert [finding.wrong for finding in compare(views(requests=None, free=[2, 5, 6, 7]))] == [Wrong.WRITABLE]
