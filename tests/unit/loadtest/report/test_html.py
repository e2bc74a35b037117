import re

import pytest

from baton.loadtest.measures.record import TIMEOUT
from baton.loadtest.report.html import html_report
from baton.loadtest.report.pictures import cdf
from baton.loadtest.result import Result
from tests.unit.loadtest.pages import Page, assert_needs_nothing_else, assert_pictures_are_sound
from tests.unit.loadtest.records import failed, record
from tests.unit.loadtest.results import NODE, result, stage

SINGLE = result()
SWEEP = result(
    stage(label="1/s", load={"loop": "open", "rate_per_s": 1.0, "concurrency": 2}),
    stage([record(), record(queued_s=0.2, started_s=0.3), failed(TIMEOUT)], label="<2/s>", nodes=[NODE]),
    slos_ms={"ttft": 500.0},
)
NOTHING_DONE = result(stage([failed(TIMEOUT)]))


@pytest.mark.parametrize("taken", [SINGLE, SWEEP, NOTHING_DONE])
def test_the_page_and_its_pictures_are_sound_and_need_nothing_else(taken: Result) -> None:
    """No script, style sheet, picture or font from anywhere; names and descriptions for screen readers."""
    assert_needs_nothing_else(html_report(taken))
    assert_pictures_are_sound(html_report(taken))


def test_a_sweep_has_its_curves_and_every_stage_its_timeline() -> None:
    """Four distributions, two curves; of each stage its tokens over time and its timeline."""
    text = html_report(SWEEP)

    assert text.count('role="img"') == 4 + 2 + 2 * 2
    assert html_report(SINGLE).count('role="img"') == 4 + 2
    assert "waiting in line" in text


def test_each_stage_begins_with_what_it_comes_to() -> None:
    """In one line; without a latency where nothing was completed."""
    assert re.search(
        r'class="headline">\d+ output tokens/s, [\d.]+ requests/s; first token after 100 ms', html_report(SINGLE)
    )
    assert "0.0 requests/s; 1 of 1 failed" in html_report(NOTHING_DONE)
    assert "no values" in html_report(NOTHING_DONE)
    assert "Mean TTFT (ms)</th><td>–</td>" in html_report(NOTHING_DONE) or "<td>–</td>" in html_report(NOTHING_DONE)


def test_names_are_escaped() -> None:
    """A label may have any letters."""
    assert "<2/s>" not in html_report(SWEEP)
    assert "&lt;2/s&gt;" in html_report(SWEEP)


def test_tables_stand_beside_plots() -> None:
    """With headings for rows and columns, and a caption."""
    page = Page(html_report(SWEEP))

    assert "Time to First Token, TTFT (ms)" in page.text
    assert sum(tag == "table" for tag, _ in page.tags) == sum(tag == "caption" for tag, _ in page.tags)
    assert {attrs.get("scope") for tag, attrs in page.tags if tag == "th"} == {"row", "col"}


def test_a_distribution_runs_from_the_least_to_the_most() -> None:
    """From a share of 0 to one of 1, however many values there are."""
    points = cdf([value / 1000 for value in range(1, 1001)])

    assert (points[0], points[-1]) == ((1.0, 0.0), (1000.0, 1.0))
    assert len(points) <= 201
    assert points == sorted(points)
    assert cdf([]) == []
