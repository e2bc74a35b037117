"""A plot as a file of its own, which a README can show. It knows its reader's light or dark scheme by itself."""

from collections.abc import Sequence
from html import escape
from typing import Final

from baton.loadtest.report.plots import HEIGHT, LEFT, WIDTH, Picture, swatch
from baton.loadtest.report.style import STYLE

_ROW: Final = 24  # height of a line of the key, which stands below the drawing


def standalone(picture: Picture, names: Sequence[str]) -> str:
    """Return an SVG file of a plot of lines; `names`: of its lines, in their order."""
    height = HEIGHT + _ROW * len(names) + 8
    keys = [
        f'<g transform="translate({LEFT} {HEIGHT + at * _ROW})">{swatch(at)}<text x="38" y="10">{escape(name)}</text></g>'
        for at, name in enumerate(names)
    ]
    size = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    ground = f'<rect width="{WIDTH}" height="{height}" style="fill: var(--paper)"/>'
    drawing = picture.drawing.replace("<svg ", f'<svg width="{WIDTH}" height="{HEIGHT}" ', 1)  # not all of the file's
    title = f"<title>{escape(picture.title)}</title>"
    return f"<svg {size}>{title}<style>{STYLE}</style>{ground}{drawing}{''.join(keys)}</svg>\n"
