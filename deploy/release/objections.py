"""What stands against building a release from a commit: the version, the changelog and the tag must say the same."""

import re
import tomllib
from collections.abc import Iterator, Sequence
from typing import Final

_HEADING: Final = re.compile(r"^## \[(?P<version>[^\]]+)\] – (?P<when>.+)$", re.MULTILINE)
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
UNRELEASED: Final = "unreleased"


def version_of(pyproject: str) -> str:
    return str(tomllib.loads(pyproject)["project"]["version"])


def objections(*, version: str, changelog: str, tags: Sequence[str], changed: Sequence[str]) -> list[str]:
    """Return sentences; nothing if the commit can be built. `changed`: files that differ from it."""
    releases = [tag for tag in tags if tag.startswith("v")]
    changes = [f"these are not in the commit: {', '.join(changed)}"] if changed else []
    wrong = [f"the commit is tagged {tag}, and its version is {version}" for tag in releases if tag != f"v{version}"]
    return [*changes, *_of_changelog(version, changelog, tagged=bool(releases)), *wrong]


def _of_changelog(version: str, changelog: str, *, tagged: bool) -> Iterator[str]:
    sections = {found["version"]: found["when"] for found in _HEADING.finditer(changelog)}
    if version not in sections:
        yield f"CHANGELOG.md has no section [{version}]"
        return
    if next(iter(sections)) != version:
        yield f"CHANGELOG.md begins with {next(iter(sections))}, and the version is {version}"
    when = sections[version]
    if when != UNRELEASED and not _DATE.fullmatch(when):
        yield f"CHANGELOG.md dates {version} with {when!r}: it is a day (2027-01-31), or {UNRELEASED!r}"
    if tagged and when == UNRELEASED:
        yield f"the commit is tagged, and CHANGELOG.md says that {version} is {UNRELEASED}"
