from pathlib import Path

import pytest

from baton.contracts.probe import MIB
from baton.deploy.memory import NODE_BYTES, SHARED_BYTES, available_bytes, needed_bytes, oom_kills, weights_bytes

MEMINFO = "MemTotal: 24000000 kB\nMemAvailable: 20480 kB\n"


def machine(root: Path, cgroup: str, groups: dict[str, dict[str, str]]) -> Path:
    """Lay out what a kernel shows."""
    files = {"proc/meminfo": MEMINFO, "proc/self/cgroup": cgroup, "proc/vmstat": "pgfault 7\noom_kill 3\n"}
    files |= {f"sys/fs/cgroup/{group}/{name}": text for group, named in groups.items() for name, text in named.items()}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def v1(limit: int, used: int, cache: int) -> dict[str, str]:
    return {
        "memory.limit_in_bytes": str(limit),
        "memory.usage_in_bytes": str(used),
        "memory.stat": f"total_inactive_file {cache}\n",
    }


def v2(limit: int | str, used: int, cache: int) -> dict[str, str]:
    return {"memory.max": str(limit), "memory.current": str(used), "memory.stat": f"inactive_file {cache}\n"}


@pytest.mark.parametrize(
    ("cgroup", "groups", "expected"),
    [
        ("", {}, 20 * MIB),
        ("0::/a/b\n", {"a/b": v2("max", 1, 0), "a": v2(9 * MIB, 2 * MIB, MIB)}, 8 * MIB),
        ("4:memory:/x\n0::/\n", {"memory/x": v1(5 * MIB, 3 * MIB, 0)}, 2 * MIB),
        ("4:cpu,memory:/x\n", {"memory/x": v1(2**63 - 4096, MIB, 0), "memory": v1(MIB, 9 * MIB, 0)}, 0),
        ("4:memory:/not/seen/from/here\n", {}, 20 * MIB),
        ("0::/a\n", {"a": v2(900 * MIB, 0, 0)}, 20 * MIB),
    ],
)
def test_the_tightest_limit_counts(
    tmp_path: Path, cgroup: str, groups: dict[str, dict[str, str]], expected: int
) -> None:
    """Free memory of the machine, or what is left of any enclosing group's limit; cache that can be dropped is free."""
    assert available_bytes(machine(tmp_path, cgroup, groups)) == expected


def test_a_kernel_that_tells_nothing_is_no_limit(tmp_path: Path) -> None:
    """The start is not refused for want of a number."""
    assert available_bytes(tmp_path) is None
    assert oom_kills(tmp_path) == 0


def test_kills_for_want_of_memory_are_counted(tmp_path: Path) -> None:
    assert oom_kills(machine(tmp_path, "", {})) == 3


def test_each_node_needs_its_own_cache_and_weights(tmp_path: Path) -> None:
    """What is imported once is counted once."""
    assert needed_bytes([]) == SHARED_BYTES
    assert needed_bytes([(2, 10, 5), (1, 0, 7)]) == SHARED_BYTES + 3 * NODE_BYTES + 2 * 15 + 7
    (tmp_path / "a.safetensors").write_bytes(bytes(7))
    (tmp_path / "config.json").write_bytes(bytes(100))
    assert weights_bytes(str(tmp_path)) == 7
    assert weights_bytes("org/model") == 0
