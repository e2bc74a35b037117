"""Whether copies lie inside registered memory; many are checked as arrays, few one by one."""

import pytest

from baton.kv_connector.engine import spans as module
from baton.kv_connector.engine.spans import Spans
from baton.kv_connector.errors import EngineError
from baton.kv_connector.layout.copy_plan import Copy, CopyPlan

SPANS = [(1_000, 100), (2_000, 50), (1_100, 10)]  # the first and the last touch, and are two all the same


@pytest.fixture(params=["few", "many"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test with the code for a few copies and with that for many."""
    monkeypatch.setattr(module, "_FEW", 1 << 30 if request.param == "few" else 0)
    return str(request.param)


@pytest.mark.usefixtures("size")
@pytest.mark.parametrize(
    ("address", "length"), [(1_000, 100), (1_000, 1), (1_099, 1), (1_100, 10), (2_000, 50), (2_049, 1)]
)
def test_what_lies_inside_one_span_may_be_sent(address: int, length: int) -> None:
    """Its first and its last byte included."""
    Spans(SPANS).check_sources(CopyPlan.of([Copy(1_050, 0, 5), Copy(address, 0, length), Copy(2_010, 0, 5)]))


@pytest.mark.usefixtures("size")
@pytest.mark.parametrize(
    ("address", "length"),
    [
        (999, 1),  # before the first
        (999, 5),
        (0, 1),
        (1_099, 2),  # across two that touch
        (1_110, 1),  # between two
        (2_049, 2),
        (2_050, 1),  # behind the last
        (1_000, 0),
        (1_000, -1),
        ((1 << 63) - 1, 1),
        (1_000, (1 << 63) - 1),  # its end is no 64-bit address
    ],
)
def test_what_does_not_is_refused_wherever_it_stands(address: int, length: int) -> None:
    """The sentence names the copy, and the others do not hide it."""
    bad, good = Copy(address, 0, length), Copy(1_050, 0, 5)
    for copies in ([bad, good, good], [good, bad, good], [good, good, bad]):
        with pytest.raises(EngineError, match=f"^{length} B at {address:#x} are not registered"):
            Spans(SPANS).check_sources(CopyPlan.of(copies))


def test_every_part_of_a_plan_is_checked() -> None:
    """A plan has a part per layer."""
    with pytest.raises(EngineError, match="not registered"):
        Spans(SPANS).check_sources(CopyPlan.joined([CopyPlan.of([Copy(1_000, 0, 1)]), CopyPlan.of([Copy(1, 0, 1)])]))
