"""From the repository to a folder of HTML, and everything that is wrong with either."""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from tests.site import markdown_links, nav, sources
from tests.support.pinned_venv import pinned_venv

HERE: Final = Path(__file__).parent
BUILD_S: Final = 300
README_PAGE: Final = "README.html"
FETCHED: Final = re.compile(  # by a browser, of its own accord
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["'](?:https?:)?//[^"']+"""
    r"""|<link\b(?![^>]*rel=["'](?:canonical|author|index|search|next|prev)\b)[^>]*\bhref=["'](?:https?:)?//[^"']+"""
    r"""|(?:url\(\s*|@import\s+)["']?(?:https?:)?//[^"')\s]+"""
)


def build(root: Path, out: Path) -> list[str]:
    """Build the site of the repository at `root` into `out`; return what is wrong, a sentence each.

    Where the Markdown is wrong already, nothing is built.
    """
    if wrong := markdown_problems(root):
        return wrong
    shutil.rmtree(out, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="baton-site-") as work:
        source, doctrees = Path(work, "source"), Path(work, "doctrees")
        sources.write(root, source, nav.read(root))
        wrong = sphinx(source, doctrees, out)
    if wrong:
        return wrong
    shutil.copyfile(out / README_PAGE, out / "index.html")
    return fetched(out)


def markdown_problems(root: Path) -> list[str]:
    """Return what is wrong with the navigation and with links, as the files lie in the repository."""
    found = markdown_links.problems(root, nav.markdown_files(root))
    try:
        nav.read(root)
    except nav.NavError as exc:
        found += str(exc).splitlines()
    return found


def fetched(site: Path) -> list[str]:
    """Return a sentence for each address that a browser would fetch from elsewhere."""
    files = [file for pattern in ("*.html", "*.css") for file in sorted(site.rglob(pattern))]
    return [
        f"{file.relative_to(site)}: {address}: is fetched from elsewhere"
        for file in files
        for address in dict.fromkeys(FETCHED.findall(file.read_text(encoding="utf-8")))
    ]


def sphinx(source: Path, doctrees: Path, out: Path) -> list[str]:
    """Build; return Sphinx's warnings, each of which is one too many."""
    python = pinned_venv("docs") / "bin" / "python"
    flags = ["-q", "-n", "-W", "--keep-going", "-j", "1", "--no-color"]
    ended = subprocess.run(
        [python, "-m", "sphinx", "-b", "html", *flags, "-c", HERE, "-d", doctrees, source, out],
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
    )
    if ended.returncode == 0:
        return []
    return [line.replace(f"{source}/", "") for line in ended.stderr.splitlines() if line.strip()]
