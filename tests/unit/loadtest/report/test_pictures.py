import pytest

from baton.loadtest.report.pictures import LEG_ROWS, chosen, legs_picture, stretches
from baton.loadtest.result import Legs
from tests.unit.loadtest.records import failed, record
from tests.unit.loadtest.results import stage

SPANS = {
    "allocation": (10.01, 10.02),
    "waiting for KV": (10.02, 10.08),
    "commit to first step": (10.08, 10.09),
    "prefill": (10.03, 10.07),
    "pushes": (10.04, 10.08),
    "exposed push": (10.07, 10.08),
}


def rounded(spans: dict[str, tuple[float, float]]) -> list[tuple[str, float, float]]:
    """The stretches of a request that was sent at 10 s and had its first token 100 ms later."""
    return [(kind, round(a, 6), round(b, 6)) for kind, a, b in stretches(record(10.0, transfer_id="t"), spans)]


def test_every_part_of_a_request_that_is_known_follows_the_last_one() -> None:
    """Way, waiting, first step, tokens; beside them the prefill leg and its pushes. The client's own part is always there."""
    assert rounded(SPANS) == [
        ("way", 0.0, 0.01),
        ("waits", 0.01, 0.08),
        ("steps", 0.08, 0.1),
        ("tokens", 0.1, 0.14),
        ("prefill", 0.03, 0.07),
        ("pushes", 0.04, 0.08),
    ]
    assert [kind for kind, *_ in rounded({"prefill": (10.03, 10.07)})] == ["tokens", "prefill"]
    assert [kind for kind, *_ in rounded({"allocation": (10.01, 10.02)})] == ["way", "waits", "tokens"]


def test_the_fastest_and_the_slowest_are_among_those_shown() -> None:
    """And others evenly between them."""
    records = [record(ttft_s=0.001 * at, index=at) for at in range(1, 101)]

    shown = chosen(records, LEG_ROWS)

    assert (len(shown), shown[0].index, shown[-1].index) == (LEG_ROWS, 1, 100)
    assert chosen(records[:3], LEG_ROWS) == records[:3]


def test_requests_whose_transfer_is_unknown_are_left_out_and_counted() -> None:
    """A failed one, a local one, one that the nodes had forgotten."""
    records = [record(10.0, transfer_id="t"), record(11.0, transfer_id="forgotten"), record(12.0), failed("timeout")]
    picture = legs_picture(stage(records, legs=[Legs(transfer_id="t", spans=SPANS)], legs_note="two looks failed"), "x")

    assert "1 of 1 requests" in picture.drawing
    assert picture.drawing.count('class="prefill"') == 1
    assert picture.note.endswith("two looks failed")


@pytest.mark.parametrize("spans", [SPANS, {name: (a - 3, b - 3) for name, (a, b) in SPANS.items()}])
def test_clocks_that_disagree_break_nothing(spans: dict[str, tuple[float, float]]) -> None:
    """What lies before the request is shown at its beginning."""
    picture = legs_picture(stage([record(10.0, transfer_id="t")], legs=[Legs(transfer_id="t", spans=spans)]), "x")

    assert "nan" not in picture.drawing
    assert 'x="-' not in picture.drawing
