"""What a page's pictures look like in the browser, and what is wrong with them: `drawn.js` looks, this reads."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.browser import Tab

_LOOK: Final = Path(__file__).with_suffix(".js").read_text()


@dataclass(frozen=True, slots=True)
class Drawn:
    """A page's pictures as the browser has laid them out."""

    problems: list[str]
    pictures: dict[str, dict[str, Any]]  # by title

    def marks(self, picture: str, css: str) -> int:
        """How many shapes of a kind a picture has."""
        return sum(css in (shape or "").split() for shape in self.pictures[picture]["shapes"])


async def look(tab: Tab) -> Drawn:
    """Return what is on the page that a tab shows."""
    found = await tab.evaluate(_LOOK)
    return Drawn(found["problems"], {picture["name"]: picture for picture in found["pictures"]})
