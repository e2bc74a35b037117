"""A plot as a file of its own, which a README can show. It knows its reader's light or dark scheme by itself."""

from loadtest.report.html import STYLE


def standalone(picture: str) -> str:
    """Return an SVG file from an inline `<svg>`."""
    named = picture.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    opening, closing, rest = named.partition(">")
    ground = '<rect width="100%" height="100%" style="fill: var(--paper)"/>'
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{opening}{closing}<style>{STYLE}</style>{ground}{rest}\n'
