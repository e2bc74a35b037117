"""The report's pages, opened in a headless Chromium: what is drawn, what can be read, and that nothing goes wrong."""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from baton.loadtest.report.tables import TITLES
from tests.integration.loadtest.page_examples import HOSTILE, pages, write
from tests.support.browser import Browser, Scheme
from tests.support.drawn import Drawn, look

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

WIDE_PX, NARROW_PX = 1200, 400
PAPERS: Final[dict[Scheme, str]] = {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 22, 28)"}
SCREENS: Final[list[tuple[Scheme, int]]] = [(scheme, width) for width in (WIDE_PX, NARROW_PX) for scheme in PAPERS]
CDFS: Final = [f"{title}: distribution" for _, title in TITLES.values()]
OVER_TIME: Final = "Output tokens over time"
CURVES: Final = ["Throughput and Time to First Token", "Throughput and Time per Output Token (excl. 1st token)"]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One process for all tests here."""
    running = Browser(tmp_path_factory.mktemp("browser"))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every page by its name."""
    return write(tmp_path_factory.mktemp("pages"))


async def seen(browser: Browser, file: Path) -> Drawn:
    """Open a page on a wide light screen."""
    async with browser.tab() as tab:
        await tab.open(file, width=WIDE_PX, scheme="light")
        return await look(tab)


@pytest.mark.parametrize("name", pages())
async def test_every_page_is_sound_on_every_screen(browser: Browser, files: dict[str, Path], name: str) -> None:
    """Silent console, no request but its own, no sideways scrolling; shapes in their frames; dark where the reader's system is."""
    async with browser.tab() as tab:
        for scheme, width in SCREENS:
            await tab.open(files[name], width=width, scheme=scheme)

            assert (await look(tab)).problems == [], f"{scheme}, {width} px"
            assert await tab.evaluate("document.documentElement.scrollWidth") <= width
            assert await tab.evaluate("document.fonts.size") == 0  # all words are in the reader's own fonts
            assert await tab.evaluate("getComputedStyle(document.body).backgroundColor") == PAPERS[scheme]
        assert (tab.said, tab.exceptions, tab.failed) == ([], [], [])
        assert set(tab.requested) == {files[name].as_uri()}


async def test_a_run_shows_distributions_requests_legs_and_pushes(browser: Browser, files: dict[str, Path]) -> None:
    """A line each; a bar for each part of a request; six kinds of stretches for each of twenty requests."""
    found = await seen(browser, files["closed loop"])

    assert list(found.pictures) == [*CDFS, OVER_TIME, "Requests over time, 8 users", "Legs and pushes, 8 users"]
    assert [found.marks(name, "line") for name in (*CDFS, OVER_TIME)] == [1] * 5
    bars = [found.marks("Requests over time, 8 users", css) for css in ("first", "tokens", "failed")]
    assert bars == [120, 120, 2]
    kinds = ("way", "waits", "steps", "tokens", "prefill", "pushes")
    assert [found.marks("Legs and pushes, 8 users", kind) for kind in kinds[:3] + kinds[4:]] == [20] * 5
    assert found.marks("Legs and pushes, 8 users", "tokens") > 0


async def test_a_sweep_shows_its_curves(browser: Browser, files: dict[str, Path]) -> None:
    """Median and P99 of both latencies, a point for each of five rates."""
    found = await seen(browser, files["sweep"])

    assert list(found.pictures)[:6] == [*CURVES, *CDFS]
    assert [(found.marks(name, "line"), found.marks(name, "mark")) for name in CURVES] == [(2, 10)] * 2
    assert [found.marks(name, "line") for name in CDFS] == [5] * 4


async def test_a_replay_shows_who_waited(browser: Browser, files: dict[str, Path]) -> None:
    """The first 300 of 400 requests, each with its time in line."""
    found = await seen(browser, files["trace replay"])

    picture = "Requests over time, trace, 400 requests"
    assert [found.marks(picture, css) for css in ("queue", "first", "tokens")] == [300] * 3
    assert "300 requests, a line each, of 400" in found.pictures[picture]["texts"]


async def test_two_sweeps_show_both_pareto_fronts(browser: Browser, files: dict[str, Path]) -> None:
    """Both runs in one picture for each latency, in a colour each; two single runs show their distributions."""
    both = await seen(browser, files["pareto of two sweeps"])
    single = await seen(browser, files["two closed loops"])

    assert list(both.pictures) == CURVES
    assert [(both.marks(name, "s0"), both.marks(name, "s1")) for name in CURVES] == [(2 + 10, 2 + 10)] * 2
    assert list(single.pictures) == CDFS
    assert [single.marks(name, "line") for name in CDFS] == [2] * 4


async def test_pages_without_values_say_so(browser: Browser, files: dict[str, Path]) -> None:
    """Nothing completed: no line, and words in its place; one request is a point that can be seen."""
    nothing, one = await seen(browser, files["nothing completed"]), await seen(browser, files["one request"])

    assert [nothing.marks(name, "line") for name in CDFS] == [0] * 4
    assert all("no values" in nothing.pictures[name]["texts"] for name in CDFS)
    assert nothing.marks("Requests over time, 2 users", "failed") == 2
    assert [one.marks(name, "line") for name in CDFS] == [1] * 4


async def test_an_outlier_hides_nobody_else(browser: Browser, files: dict[str, Path]) -> None:
    """The axis becomes logarithmic and says so; most of the line still has room."""
    async with browser.tab() as tab:
        await tab.open(files["one outlier"], width=WIDE_PX, scheme="light")
        found = await look(tab)
        usual = await tab.evaluate(
            "[...document.querySelector('svg polyline').points].filter((at) => at.x > 100).length"
        )

    assert "TTFT (ms), logarithmic" in found.pictures[CDFS[0]]["texts"]
    assert usual > 50


async def test_a_hostile_name_stays_text(browser: Browser, files: dict[str, Path]) -> None:
    """The page has no script, and the reader sees the letters."""
    async with browser.tab() as tab:
        await tab.open(files["hostile names"], width=WIDE_PX, scheme="light")

        assert await tab.evaluate("document.scripts.length") == 0
        assert HOSTILE in await tab.evaluate("document.querySelector('h1').innerText")
        assert HOSTILE in await tab.evaluate("document.title")


BREAKAGES: Final = {
    "a coordinate that is no number": ("polyline", "setAttribute('points', '1,2 NaN,4')", "points is"),
    "a shape outside of its picture": ("polyline", "setAttribute('points', '1,2 2000,4')", "leaves the picture"),
    "an empty line": ("polyline", "setAttribute('points', '')", "it is empty"),
    "a word in the page's colour": ("text", "style.fill = '#fefefe'", "light as the page"),
    "a line in the page's colour": ("polyline", "style.stroke = '#fff'", "light as the page"),
    "a word on top of another": ("text + text", "setAttribute('x', '64')", "overlap"),
    "a word that is not shown": ("text", "style.display = 'none'", "it is not shown"),
    "a picture that is not shown": ("svg[role=img]", "style.height = '5px'", "5 px"),
}


@pytest.mark.parametrize("what", BREAKAGES)
async def test_a_broken_picture_is_noticed(browser: Browser, files: dict[str, Path], what: str) -> None:
    """Else the tests above would mean nothing."""
    which, change, complaint = BREAKAGES[what]
    selector = which if which.startswith("svg") else f"svg[role=img] {which}"
    if which == "text + text":
        selector = "svg[role=img] text:nth-of-type(2)"
    async with browser.tab() as tab:
        await tab.open(files["closed loop"], width=WIDE_PX, scheme="light")
        await tab.evaluate(f"document.querySelector('{selector}').{change}")
        found = await look(tab)

    assert any(complaint in problem for problem in found.problems)


async def test_a_page_that_asks_and_complains_is_heard(browser: Browser, tmp_path: Path) -> None:
    """Console, exceptions and requests of a page that does all three."""
    page = tmp_path / "bad.html"
    page.write_text(
        "<img src='http://127.0.0.1:9/x.png'><script>console.error('told'); undefined.nothing;</script>"  # nobody there
    )
    async with browser.tab() as tab:
        await tab.open(page, width=WIDE_PX, scheme="light")

        assert "told" in tab.said
        assert len(tab.exceptions) == 1
        assert "http://127.0.0.1:9/x.png" in tab.requested
        assert tab.failed != []


def test_no_browser_outlives_its_test(tmp_path: Path) -> None:
    """Nor any of the processes that it started."""
    profile = tmp_path / "profile"
    profile.mkdir()
    running = Browser(profile)
    running.address()
    running.stop()

    give_up = time.monotonic() + 30
    while (left := [line for line in command_lines() if str(profile) in line]) and time.monotonic() < give_up:
        time.sleep(0.05)
    assert left == []


def command_lines() -> Iterator[str]:
    """Of all processes that there are."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has just ended
            yield file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
