"""What a screen reader would make of a page: the browser's own accessibility tree, and axe-core where it can be had."""

import hashlib
import json
import subprocess
from typing import Any, Final

from tests.support.browser import Tab
from tests.support.registry import from_npm

AXE: Final = "4.10.3"
AXE_SHA256: Final = "880970c081707360e64f34cea25ff91892f5bc95675b0776925b9709dd8a68bb"  # of axe.min.js
_NEED_NAMES: Final = frozenset(
    ("button", "checkbox", "dialog", "image", "link", "log", "region", "searchbox", "table", "textbox")
)


async def nameless(tab: Tab) -> list[str]:
    """Return what has no name and should have: controls, pictures, regions."""
    tree = (await tab.call("Accessibility.getFullAXTree"))["nodes"]
    return [
        f"{role} {node.get('nodeId')}"
        for node in tree
        if not node.get("ignored")
        and (role := node.get("role", {}).get("value")) in _NEED_NAMES
        and not node.get("name", {}).get("value", "").strip()
    ]


def axe_source() -> str | None:
    """Return axe-core; None where there is no npm or no registry."""
    try:
        source = from_npm("axe-core", AXE, "axe.min.js").read_bytes()
    except (OSError, subprocess.SubprocessError):
        return None
    assert hashlib.sha256(source).hexdigest() == AXE_SHA256, f"axe-core {AXE} is not what it was"
    return source.decode()


async def violations(tab: Tab, axe: str) -> list[str]:
    """Return what axe-core objects to, with the elements that it names."""
    await tab.evaluate(axe + "\n;0")
    found = await tab.evaluate(
        "axe.run(document, {resultTypes: ['violations']}).then((found) => JSON.stringify(found.violations))"
    )
    problems: list[dict[str, Any]] = json.loads(found)
    return [
        f"{problem['id']} ({problem['impact']}): {problem['help']}: {[each['html'][:160] for each in problem['nodes'][:4]]}"
        for problem in problems
    ]
