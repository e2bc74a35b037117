from pathlib import Path

import pytest

from baton.model_runner.channel import AUDIT_VARIABLE, RUNTIME_DIR_VARIABLE, STEP_TIMEOUT_VARIABLE
from baton.node.errors import StartRefusedError
from baton.node.startup import environment as module
from baton.node.startup.addresses import Addresses
from baton.node.startup.environment import apply, environment, of_hosts, of_runner, of_step, of_worker
from baton.node.startup.hosts import Hosts

HERE = Addresses(listen_host="0.0.0.0", advertise_host="first", data_host="10.0.0.1")


ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": None}
EAGER = {"TORCHDYNAMO_DISABLE": "1"}
# Ranks live in processes of their own, unbound: automatic binding wants a NUMA node each.
UNBOUND = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": None}


@pytest.mark.parametrize(
    ("flags", "current", "expected"),
    [
        (["--enforce-eager"], {}, ONE_PROCESS | EAGER),
        # What the user has set stays, but for the variable that would override a flag.
        (["--enforce-eager"], {"TORCHDYNAMO_DISABLE": "0", "VLLM_CPU_KVCACHE_SPACE": "4"}, ONE_PROCESS),
        (["--no-enforce-eager"], {}, ONE_PROCESS),
        (["-tp", "2"], {}, UNBOUND | {"OMP_NUM_THREADS": "4"}),
        (["-tp=2", "-pp", "2"], {}, UNBOUND | {"OMP_NUM_THREADS": "2"}),
        (["-tp", "16"], {}, UNBOUND | {"OMP_NUM_THREADS": "1"}),
        # Of four ranks two are on another host.
        (["-tp", "4", "--nnodes", "2", "--master-addr", "10.0.0.1"], {}, UNBOUND | {"OMP_NUM_THREADS": "4"}),
    ],
)
def test_the_ranks_of_a_cpu_node_share_its_eight_cores(
    flags: list[str], current: dict[str, str], expected: dict[str, str | None]
) -> None:
    """One rank alone shares the engine's process."""
    assert environment("cpu", flags, 8, current) == expected


def test_hosts_of_a_node_find_each_other_by_their_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by the host's name, which may stand for loopback; what the user has set stays, and one host needs nothing."""
    monkeypatch.setattr(module, "interface_of", {"10.0.0.1": "eth7"}.get)
    two = Hosts(count=2)

    assert of_hosts(two, HERE, {}) == {"VLLM_HOST_IP": "10.0.0.1", "GLOO_SOCKET_IFNAME": "eth7"}
    assert of_hosts(two, HERE, {"GLOO_SOCKET_IFNAME": "ib0"}) == {"VLLM_HOST_IP": "10.0.0.1"}
    assert of_hosts(Hosts(), HERE, {}) == {}


def test_the_engine_gives_up_on_a_step_after_the_watchdog() -> None:
    """Its own error, of several ranks, comes without stacks; a bound that the user has given it stays."""
    engines = "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"

    assert of_step(300.0, {}) == {STEP_TIMEOUT_VARIABLE: "300.0", engines: "310"}
    assert of_step(0.5, {})[engines] == "11"
    assert of_step(300.0, {engines: "60", STEP_TIMEOUT_VARIABLE: "1"}) == {STEP_TIMEOUT_VARIABLE: "300.0"}


V1, V2 = ({"VLLM_USE_V2_MODEL_RUNNER": version} for version in "01")


@pytest.mark.parametrize(
    ("device", "model_runner", "current", "expected"),
    [
        ("cuda", "auto", {}, {}),  # the choice is vLLM's
        ("npu", "auto", V2, {}),
        ("cuda", "engine", V1, {}),
        ("cuda", "baton", {}, V1),  # ours is made for it
        ("cpu", "auto", V1, {}),  # a CPU has no other
        *((device, "baton", V2, None) for device in ("cuda", "npu")),  # neither is silently preferred
        ("cpu", "auto", V2, None),
    ],
)
def test_which_model_runner_of_vllms_is_asked_for(
    device: str, model_runner: str, current: dict[str, str], expected: dict[str, str] | None
) -> None:
    if expected is not None:
        assert of_runner(device, model_runner, current) == expected
        assert device == "cpu" or environment(device, [], 8, current) == {}
        return
    with pytest.raises(
        StartRefusedError, match=r"VLLM_USE_V2_MODEL_RUNNER=1 .* needs V1: unset it, or set model_runner"
    ):
        of_runner(device, model_runner, current)


def test_changes_are_applied() -> None:
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
