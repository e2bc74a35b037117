"""Which room may import which, as one table. Ruff enforces the coarse part of it while one writes."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# room → what of ours, and what heavy library, it may import besides itself
MAY_IMPORT: dict[str, set[str]] = {
    "contracts": set(),
    "proxy": {"contracts"},
    "kv_connector": {"contracts", "vllm", "torch"},
    "kv_connector/engine": {"contracts", "kv_connector", "mooncake", "torch"},
    "model_runner": {"contracts", "kv_connector", "vllm", "torch"},
    "node": {"contracts", "kv_connector", "model_runner", "vllm", "torch"},
    "prefill_node": {"contracts", "node"},
    "decode_node": {"contracts", "node"},
    "loadtest": {"contracts"},
    "deploy": {"contracts", "proxy", "node", "prefill_node", "decode_node", "model_runner", "kv_connector", "loadtest"},
    "deploy/embedded_model": {"torch"},
    "benchmarks": {"contracts", "proxy", "node", "model_runner", "kv_connector", "loadtest", "deploy", "torch"},
}
# In a room whose parts are many, in order: a folder, or a file beside them, imports itself and what stands before it.
FLOORS = {
    room: [*words.split()]
    for room, words in {
        "proxy": """
            errors http nodes tracing request http_server routing planning admission resume response telemetry
            handler workers admin auth passthrough openapi dashboard app server __main__
        """,
        "kv_connector": """
            errors telemetry control vllm_compat protocol layout handoff engine config worker_side
            scheduler_side metrics trace supported connector
        """,
        "node": """
            errors roles versions machine runtime_dir drain engine_watch connector http middleware startup
            follower server command
        """,
    }.items()
}
MOST_LINES = 350  # of a file of the product
MOST_ENTRIES = 25  # of a folder that a reader sees first
GUARDED = {room.partition("/")[0] for room in MAY_IMPORT} | {"vllm", "torch", "torch_npu", "mooncake"}


def modules_of(room: str) -> Iterator[Path]:
    """Yield the files of a room, without those of a room inside it."""
    inner = [ROOT / other for other in MAY_IMPORT if other.startswith(f"{room}/")]
    for file in (ROOT / room).rglob("*.py"):
        if not any(folder in file.parents for folder in inner):
            yield file


@cache
def imports_of(file: Path) -> list[tuple[int, str]]:
    """Return line and dotted name of every import, be it at the top or inside a function."""
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append((node.lineno, node.module or ""))
    return found


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_imports_point_one_way(room: str) -> None:
    """A room imports itself, and what the table lets it."""
    allowed = MAY_IMPORT[room] | {room.partition("/")[0]}

    wrong = [
        f"{file.relative_to(ROOT)}:{line} imports {name}"
        for file in modules_of(room)
        for line, name in imports_of(file)
        if name.removeprefix("baton.").partition(".")[0] in GUARDED - allowed
    ]

    assert wrong == []


@pytest.mark.parametrize("room", FLOORS)
def test_the_folders_of_a_room_import_one_way(room: str) -> None:
    """So that each can be read with what stands before it in the list, and no two need each other."""
    floors = FLOORS[room]
    wrong = []
    for file in (ROOT / room).rglob("*.py"):
        own = file.relative_to(ROOT / room).parts[0].removesuffix(".py")
        for line, name in imports_of(file):
            other = name.removeprefix(f"baton.{room}.").partition(".")[0]
            if name.startswith(f"baton.{room}.") and floors.index(other) > floors.index(own):
                wrong.append(f"{file.relative_to(ROOT)}:{line} imports {name}")

    assert wrong == []


@pytest.mark.parametrize("room", FLOORS)
def test_a_room_is_seen_at_a_glance(room: str) -> None:
    """Every part has its place in the list, and there are few."""
    entries = {path.name for path in (ROOT / room).iterdir()} - {"__pycache__"}

    assert {entry.removesuffix(".py") for entry in entries} == {*FLOORS[room], "__init__"}
    assert len(entries) <= MOST_ENTRIES


def test_long_files_say_why_they_are_long() -> None:
    long = {
        file.relative_to(ROOT)
        for room in {room.partition("/")[0] for room in MAY_IMPORT}
        for file in (ROOT / room).rglob("*.py")
        if len((text := file.read_text()).splitlines()) > MOST_LINES and "Longer than other files" not in text
    }

    assert long == set()


def test_every_import_of_ours_is_by_the_one_name() -> None:
    """In the repository `import proxy` works as well, and would load a second copy of each module."""
    ours = {room.partition("/")[0] for room in MAY_IMPORT} - {"benchmarks"}  # not installed: it has no other name
    other_name = re.compile(rf"^\s*(from|import)\s+(baton\b(?!\.)|({'|'.join(ours)})\b)", re.MULTILINE)

    wrong = [
        f"{file.relative_to(ROOT)}:{line} imports {name}"
        for folder in (*ours, "benchmarks", "tests")
        for file in (ROOT / folder).rglob("*.py")
        if other_name.search(file.read_text())  # perhaps in a text
        for line, name in imports_of(file)
        if name == "baton" or name.partition(".")[0] in ours
    ]

    assert wrong == []


def test_no_file_names_a_device_library() -> None:
    """Device calls go through torch's device-neutral API."""
    wrong = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for room in MAY_IMPORT
        for file in modules_of(room)
        if re.search(r"\btorch\s*\.\s*(cuda|npu)\b", text := file.read_text())  # perhaps in a text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr) in (("torch", "cuda"), ("torch", "npu"))
    ]

    assert wrong == []
