import re

import pytest

from baton.loadtest.measures.record import TIMEOUT
from baton.loadtest.report.html import html_report
from baton.loadtest.report.pictures import cdf
from baton.loadtest.result import Result
from tests.unit.loadtest.pages import assert_is_sound, body_of
from tests.unit.loadtest.records import failed, record
from tests.unit.loadtest.results import NODE, result, stage

SINGLE = result()
SWEEP = result(
    stage(label="1/s", load={"loop": "open", "rate_per_s": 1.0, "concurrency": 2}),
    stage([record(), record(queued_s=0.2, started_s=0.3), failed(TIMEOUT)], label="<2/s>", nodes=[NODE]),
    slos_ms={"ttft": 500.0},
    arguments={"url": "http://a:1", "seed": 0, "model": "<script>"},
)
NOTHING_DONE = result(stage([failed(TIMEOUT)]))


@pytest.mark.parametrize(("taken", "pictures"), [(SINGLE, 4 + 2), (SWEEP, 4 + 2 + 2 * 2), (NOTHING_DONE, 4 + 2)])
def test_the_page_and_its_pictures_are_sound_and_need_nothing_else(taken: Result, pictures: int) -> None:
    """Four distributions, two curves of a sweep; of each stage its tokens over time and its timeline."""
    assert_is_sound(html_report(taken))
    assert html_report(taken).count('role="img"') == pictures


def test_each_stage_begins_with_what_it_comes_to() -> None:
    """In one line; without a latency where nothing was completed."""
    assert re.search(
        r'class="headline">\d+ output tokens/s, [\d.]+ requests/s; first token after 100 ms', html_report(SINGLE)
    )
    assert "0.0 requests/s; 1 of 1 failed" in html_report(NOTHING_DONE)
    assert "no values" in html_report(NOTHING_DONE)
    assert "<td>–</td>" in html_report(NOTHING_DONE)


def test_tables_stand_beside_plots_and_names_are_escaped() -> None:
    """With headings for rows and columns, and a caption; a label may have any letters."""
    body = body_of(html_report(SWEEP))
    words = [*body.itertext()]

    assert "waiting in line" in words
    assert sum("Load test of <script>" in each for each in words) == 1
    assert "<2/s>" in words
    assert "Time to First Token, TTFT (ms)" in words
    assert len([*body.iter("table")]) == len([*body.iter("caption")])
    assert {each.get("scope") for each in body.iter("th")} == {"row", "col"}


def test_a_distribution_runs_from_the_least_to_the_most() -> None:
    """From a share of 0 to one of 1, however many values there are."""
    points = cdf([value / 1000 for value in range(1, 1001)])

    assert (points[0], points[-1]) == ((1.0, 0.0), (1000.0, 1.0))
    assert len(points) <= 201
    assert points == sorted(points)
    assert cdf([]) == []
