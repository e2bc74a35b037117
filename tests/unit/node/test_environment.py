from pathlib import Path

import pytest

from model_runner.channel import AUDIT_VARIABLE, RUNTIME_DIR_VARIABLE
from node.environment import apply, environment, of_worker


def test_one_rank_on_a_cpu_shares_the_engines_process() -> None:
    """Eager, in one process, and without the variable that would override the cache's size."""
    assert environment("cpu", ["--enforce-eager"], 2, {}) == {
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": None,
    }


def test_a_compiled_server_keeps_the_compiler() -> None:
    """Only eager servers are without it."""
    assert "TORCHDYNAMO_DISABLE" not in environment("cpu", ["--no-enforce-eager"], 2, {})


@pytest.mark.parametrize(
    ("flags", "threads"), [(["-tp", "2"], "4"), (["-tp=2", "-pp", "2"], "2"), (["-tp", "16"], "1")]
)
def test_several_ranks_share_the_cores(flags: list[str], threads: str) -> None:
    """They live in processes of their own, unbound: automatic binding wants a NUMA node each."""
    found = environment("cpu", flags, 8, {})

    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in found
    assert (found["VLLM_CPU_OMP_THREADS_BIND"], found["OMP_NUM_THREADS"]) == ("nobind", threads)


def test_what_the_user_has_set_stays() -> None:
    """All but the variable that contradicts a flag."""
    current = {"TORCHDYNAMO_DISABLE": "0", "VLLM_CPU_KVCACHE_SPACE": "4"}
    found = environment("cpu", ["--enforce-eager"], 2, current)

    assert found == {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": None}


def test_accelerators_use_the_first_model_runner() -> None:
    """The hooks' order differs in the second one."""
    assert environment("cuda", [], 8, {}) == {"VLLM_USE_V2_MODEL_RUNNER": "0"}


def test_changes_are_applied() -> None:
    """Set, and removed whether there or not."""
    environ = {"a": "1", "b": "2"}
    apply({"a": None, "c": "3", "d": None}, environ)
    assert environ == {"b": "2", "c": "3"}


def test_the_worker_is_told_where_to_answer_and_what_to_count(tmp_path: Path) -> None:
    """Whatever its environment said before: it may be another node's."""
    environ = {AUDIT_VARIABLE: "1", RUNTIME_DIR_VARIABLE: "/elsewhere"}

    apply(of_worker(tmp_path, sync_audit=False), environ)
    assert environ == {RUNTIME_DIR_VARIABLE: str(tmp_path)}

    apply(of_worker(tmp_path, sync_audit=True), environ)
    assert environ[AUDIT_VARIABLE] == "1"
