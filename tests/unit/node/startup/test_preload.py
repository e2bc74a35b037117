from pathlib import Path
from types import SimpleNamespace

import pytest

from baton.node.startup import environment
from baton.node.startup.environment import of_preloads


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment in a folder whose name has a space."""
    site = tmp_path / "a clone" / "site"
    for name in ("vllm/libs/libtcmalloc_minimal.so.4", "torch.libs/libgomp-1.so", "torch/__init__.py"):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).touch()
    monkeypatch.setattr(
        environment, "find_spec", lambda package: SimpleNamespace(origin=str(site / package / "__init__.py"))
    )
    return site


def test_libraries_below_a_folder_with_a_space_are_named_by_links(installed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    first, again = (of_preloads(folder, {"LD_PRELOAD": "/mine.so"}) for _ in range(2))

    assert first == again
    assert first["LD_PRELOAD"] == f"/mine.so:{folder}/libtcmalloc_minimal.so.4:{folder}/libgomp-1.so"
    assert (folder / "libgomp-1.so").resolve() == installed / "torch.libs" / "libgomp-1.so"


def test_nothing_is_linked_where_it_is_not_needed(tmp_path: Path) -> None:
    if " " in environment.__file__:
        pytest.skip("this clone's path has a space")

    assert of_preloads(tmp_path, {}) == {}
    assert list(tmp_path.iterdir()) == []
