"""What the ranks of a node on several hosts tell each other."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from baton.kv_connector.config import ConnectorConfig
from baton.kv_connector.control.status_endpoints import IpcEndpoint, TcpEndpoint
from baton.kv_connector.errors import ConnectorConfigError
from baton.kv_connector.worker_side import hosts
from baton.kv_connector.worker_side.hosts import (
    Member,
    disagreement,
    door_of,
    settings_of,
    verify_hosts_agree,
    write_doors,
)
from tests.support.described import fingerprint
from tests.support.schedulers import engine_config

SETTINGS = {"weights": "a1", "dtype": "float32"}


def member(host: int, doors: dict[str, str] | None = None, **settings: str) -> Member:
    return Member(host, f"10.0.0.{host + 1}", SETTINGS | settings, doors or {})


def engine(host: int, count: int = 2) -> Any:
    """The part of vLLM's configuration that is asked for."""
    return SimpleNamespace(parallel_config=SimpleNamespace(nnodes_within_dp=count, node_rank_within_dp=host))


def config(folder: Path) -> ConnectorConfig:
    (folder / "secret").write_text("0123456789abcdef")
    extra = {"runtime_dir": folder, "secret_file": folder / "secret", "weights": "a1", "transfer": {}}
    return ConnectorConfig.from_extra(extra)


@pytest.mark.parametrize(
    ("members", "differs"),
    [
        ([member(0), member(0), member(1, {"worker-2.addr": "tcp://b:1"})], ""),  # not in settings
        (
            [member(0), member(1, dtype="bfloat16", weights="b2")],
            "dtype: 'float32' and 'bfloat16'; weights: 'a1' and 'b2'",
        ),
        ([member(0, rope="x"), member(1)], "rope: 'x' and None"),  # of a newer release alone
    ],
)
def test_what_differs_is_named_with_both_values_and_hosts(members: list[Member], differs: str) -> None:
    """The person who set it must know where to look."""
    found = f"the hosts 10.0.0.1 and 10.0.0.2 of this node differ: {differs}" if differs else ""
    assert disagreement(members) == found


def test_hosts_compare_what_vllm_would_not_fail_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fingerprint, of which this process has no model, the connector's role and settings, and the limits of a step."""
    ours = config(tmp_path)
    monkeypatch.setattr(hosts, "fingerprint_of", lambda _, weights: fingerprint(weights=weights))

    found = settings_of(engine_config(tmp_path, "kv_both", {}), ours)

    assert (found["weights"], found["role"], found["transfer"]) == ("a1", ours.role, str(ours.transfer))
    assert {"protocol", "vllm", "max_model_len", "max_num_batched_tokens", "max_num_seqs"} <= found.keys()


def test_ranks_on_the_first_host_have_a_socket_and_the_others_a_port(tmp_path: Path) -> None:
    """The node's API can use sockets of its own host alone."""
    path = tmp_path / "worker-0.sock"

    assert isinstance(door_of(engine(0), config(tmp_path), path), IpcEndpoint)
    assert isinstance(door_of(engine(1), config(tmp_path), path), TcpEndpoint)
    before: Any = SimpleNamespace(parallel_config=SimpleNamespace())  # a vLLM that knows one host alone
    assert isinstance(door_of(before, config(tmp_path), path), IpcEndpoint)


def test_the_first_host_writes_down_where_the_others_answer(tmp_path: Path) -> None:
    """Under the names that they have there."""
    write_doors(tmp_path, [member(0), member(1, {"worker-1.addr": "tcp://b:1", "runner.addr": "tcp://b:2"})])

    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "worker-1.addr": "tcp://b:1",
        "runner.addr": "tcp://b:2",
    }


@pytest.mark.parametrize("host", [0, 1])
def test_ranks_meet(host: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tells what it has; the first host keeps the addresses."""
    told: list[Member] = []

    def gather(mine: Member) -> list[Member]:
        told.append(mine)
        other = member(1 - host, {} if host else {"worker-1.addr": "tcp://b:1"})
        return sorted([mine, other], key=lambda each: each.host)

    vllm, ours = engine(host), config(tmp_path)
    monkeypatch.setattr(hosts, "_gather", gather)
    monkeypatch.setattr(hosts, "settings_of", lambda *of: SETTINGS if of == (vllm, ours) else {})
    if host:
        (tmp_path / "worker-1.addr").write_text("tcp://b:1")

    verify_hosts_agree(vllm, ours)

    assert told[0].settings == SETTINGS
    assert told[0].doors == ({"worker-1.addr": "tcp://b:1"} if host else {})
    assert (tmp_path / "worker-1.addr").read_text() == "tcp://b:1"


def test_hosts_that_differ_do_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "_gather", lambda mine: [mine, member(1, dtype="bfloat16")])
    monkeypatch.setattr(hosts, "settings_of", lambda *_: SETTINGS)

    with pytest.raises(ConnectorConfigError, match="dtype"):
        verify_hosts_agree(engine(0), config(tmp_path))


def test_ranks_of_one_host_need_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked of torch there."""
    monkeypatch.setattr(hosts, "_gather", lambda _: pytest.fail("there is no other host to compare with"))

    verify_hosts_agree(engine(0, count=1), config(tmp_path))
    before: Any = SimpleNamespace(parallel_config=SimpleNamespace())
    verify_hosts_agree(before, config(tmp_path))


def test_ranks_are_asked_over_the_engines_own_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU; a disagreement is found among what all have told."""
    group = SimpleNamespace(world_size=2, cpu_group="gloo")

    def all_gather_object(found: list[Any], mine: Member, *, group: str) -> None:
        assert group == "gloo"
        found[:] = [mine, member(1, dtype="bfloat16")][: len(found)]

    monkeypatch.setattr("vllm.distributed.parallel_state.get_inner_dp_world_group", lambda: group)
    monkeypatch.setattr("torch.distributed.all_gather_object", all_gather_object)
    monkeypatch.setattr(hosts, "settings_of", lambda *_: SETTINGS)

    with pytest.raises(ConnectorConfigError, match="dtype: 'float32' and 'bfloat16'"):
        verify_hosts_agree(engine(0), config(tmp_path))
