"""The report's pages, opened in a headless Chromium: what is drawn, what can be read, and that nothing goes wrong."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from baton.loadtest.report.tables import TITLES
from tests.integration.loadtest.page_examples import pages
from tests.support.browser import Browser, Scheme
from tests.support.drawn import look

pytestmark = pytest.mark.slow

WIDE_PX, NARROW_PX = 1200, 400
PAPERS: Final[dict[Scheme, str]] = {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 22, 28)"}
SCREENS: Final[list[tuple[Scheme, int]]] = [("light", WIDE_PX), ("dark", NARROW_PX)]
CDFS: Final = [f"{title}: distribution" for _, title in TITLES.values()]
OVER_TIME: Final = "Output tokens over time"
PAGES: Final = pages()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    running = Browser(tmp_path_factory.mktemp("browser"))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    found = {name: folder / f"{name.replace(' ', '-')}.html" for name in PAGES}
    for name, file in found.items():
        file.write_text(PAGES[name])
    return found


@pytest.mark.parametrize("name", PAGES)
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
    async with browser.tab() as tab:
        await tab.open(files["closed loop"], width=WIDE_PX, scheme="light")
        found = await look(tab)

    assert list(found.pictures) == [*CDFS, OVER_TIME, "Requests over time, 8 users", "Legs and pushes, 8 users"]
    assert [found.marks(name, "line") for name in (*CDFS, OVER_TIME)] == [1] * 5
    bars = [found.marks("Requests over time, 8 users", css) for css in ("first", "tokens", "failed")]
    assert bars == [120, 120, 2]
    kinds = ("way", "waits", "steps", "prefill", "pushes")
    assert [found.marks("Legs and pushes, 8 users", kind) for kind in kinds] == [20] * 5
    assert found.marks("Legs and pushes, 8 users", "tokens") > 0
