"""What a screen reader would make of a page: the browser's own accessibility tree, and axe-core where it can be had."""

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any, Final

from tests.support.browser import Tab

AXE: Final = "axe-core@4.10.3"
AXE_SHA256: Final = "0f2b4d7dcdf7d1219df8d1959ad68e565f51d14c3f0d88bb71cd59abeb956292"
INSTALL_S: Final = 120
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
    """Return axe-core, kept in the user's cache; None where there is no npm or no registry."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "baton" / f"{AXE.replace('@', '-')}.js"
    if not cache.exists():
        packed = _packed()
        if packed is None:
            return None
        assert hashlib.sha256(packed).hexdigest() == AXE_SHA256, f"{AXE} is not what it was"
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            member = archive.extractfile("package/axe.min.js")
            assert member is not None
            cache.parent.mkdir(parents=True, exist_ok=True)
            making = cache.with_suffix(f".{os.getpid()}")
            making.write_bytes(member.read())
            making.rename(cache)
    return cache.read_text()


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


def _packed() -> bytes | None:
    if shutil.which("npm") is None:
        return None
    command = ["npm", "pack", AXE, "--silent", "--pack-destination"]
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"baton-axe-{os.getpid()}"
    folder.mkdir(exist_ok=True)
    try:
        subprocess.run([*command, str(folder)], check=True, timeout=INSTALL_S, capture_output=True)
        return next(folder.glob("*.tgz")).read_bytes()
    except (subprocess.SubprocessError, StopIteration):
        return None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
