"""Links to the libraries that vLLM's CPU platform preloads, where their own path has a space.

vLLM appends the paths of torch's libgomp and of its libtcmalloc to `LD_PRELOAD`, at whose spaces and colons the dynamic
loader divides; it appends nothing for a library that is named there already.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_VARIABLE: Final = "LD_PRELOAD"
_LIBRARIES: Final = (  # package, patterns below its folder; as `vllm.platforms.cpu` looks for them
    ("vllm", ("libs/libtcmalloc_minimal*.so*", "libs/libtcmalloc.so*")),
    ("torch", ("../torch.libs/libgomp*.so*", "lib/libgomp*.so*")),
)
_DIVIDES: Final = re.compile(r"[\s:]")


def link_preloads(folder: Path, current: Mapping[str, str]) -> dict[str, str | None]:
    """Return `LD_PRELOAD` with links in `folder` for the libraries whose path cannot be named; empty if there are none."""
    found = [library for package, patterns in _LIBRARIES for library in _find(package, patterns)]
    if not any(_DIVIDES.search(str(library)) for library in found) or _DIVIDES.search(str(folder)):
        return {}
    links = [folder / library.name for library in found]
    for link, library in zip(links, found, strict=True):
        with suppress(FileExistsError):
            link.symlink_to(library)
    return {_VARIABLE: ":".join([*filter(None, [current.get(_VARIABLE)]), *map(str, links)])}


def _find(package: str, patterns: tuple[str, ...]) -> list[Path]:
    """Return the library, or nothing."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return []
    folder = Path(spec.origin).parent
    return [file.resolve() for pattern in patterns for file in sorted(folder.glob(pattern))][:1]
