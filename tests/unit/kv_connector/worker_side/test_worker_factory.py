"""What a worker is made of: each part by what vLLM says of it. What the parts are made from is tested with them."""

import secrets
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from baton.contracts.configuration.schema import TransferConfig
from baton.contracts.node_info import to_plain
from baton.kv_connector.config import ConnectorConfig
from baton.kv_connector.layout.regions import Division
from baton.kv_connector.protocol.messages import Rank
from baton.kv_connector.worker_side import worker_factory
from baton.kv_connector.worker_side.caches import LayerGroup
from baton.kv_connector.worker_side.sides import WorkerSides
from baton.kv_connector.worker_side.worker_factory import make_worker, rank_of
from tests.support.described import fingerprint

CACHE_CONFIG = SimpleNamespace(num_blocks=6)
FINGERPRINT = fingerprint()
READ = {  # from what vLLM says
    "check_draft_layers": None,
    "block_tokens_of": 16,
    "divisions_of": {"layer.0": Division(4)},
    "memberships": {"layer.0": LayerGroup(1)},
    "drafter_digest": "eagle",
    "draft_layers": {"layer.1"},
    "states_of_layers": {},
    "fingerprint_of": FINGERPRINT,
    "total_kv_heads": 4,
    "attention_writes_kv": False,
    "check_transport": None,
}


class Built:
    """A worker whose sides only note what they are made with."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, layers: int = 2, **config: Any) -> None:
        self.asked: dict[str, tuple[Any, ...]] = {}
        self.made: dict[str, dict[str, Any]] = {}
        self.factory: dict[str, Any] = {}
        for name, answer in READ.items():
            patch.setattr(worker_factory, name, self._reader(name, answer))
        for side in ("PrefillWorker", "DecodeWorker"):
            patch.setattr(worker_factory, side, self._maker(side))
        patch.setattr(
            "baton.kv_connector.engine.mooncake.MooncakeFactory", lambda **kwargs: self.factory.update(kwargs)
        )
        patch.setattr(secrets, "randbits", lambda bits: 1 << (bits - 1))
        (folder / "secret").write_text("0123456789abcdef")
        usual: dict[str, Any] = {
            "runtime_dir": folder,
            "secret_file": folder / "secret",
            "weights": "w",
            "transfer": TransferConfig(),
            "advertise_host": "10.0.0.1",
            "data_host": "10.0.1.1",
        }
        self.config = ConnectorConfig(**usual | config)
        storage = torch.zeros(2, 6, 2, 16, 8)
        self.tensors = {f"layer.{i}": storage[i] for i in range(layers)}
        self.layers = {"layer.0": object(), "layer.1": object(), "other": object()}
        self.vllm: Any = SimpleNamespace(
            compilation_config=SimpleNamespace(static_forward_context=self.layers),
            parallel_config=SimpleNamespace(tensor_parallel_size=2, pipeline_parallel_size=2, rank=7),
        )
        cache_config: Any = CACHE_CONFIG
        self.worker: WorkerSides = make_worker(self.vllm, self.config, cache_config, self.tensors)

    def _reader(self, name: str, answer: Any) -> Any:
        def read(*args: Any, **kwargs: Any) -> Any:
            self.asked[name] = (*map(_listed, args), *kwargs.items())
            return answer

        return read

    def _maker(self, side: str) -> Any:
        def make(**kwargs: Any) -> Any:
            self.made[side] = kwargs
            return SimpleNamespace(address="tcp://10.0.0.1:7", snapshot=lambda: {"side": side})

        return make


def _listed(value: Any) -> Any:
    return list(value) if hasattr(value, "__next__") else value


def test_each_part_is_read_from_what_vllm_says_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its configuration, its caches' configuration and the tensors; attention layers are asked whether they write the KV."""
    built = Built(tmp_path, monkeypatch)
    vllm, tensors = built.vllm, built.tensors

    assert built.asked == {
        "check_draft_layers": (vllm, tensors),
        "block_tokens_of": (vllm, CACHE_CONFIG),
        "divisions_of": (vllm, CACHE_CONFIG, tensors),
        "memberships": (vllm, CACHE_CONFIG, tensors),
        "drafter_digest": (vllm,),
        "draft_layers": (vllm, tensors),
        "states_of_layers": (vllm,),
        "check_transport": (built.config.transfer.protocol, "cpu"),
        "fingerprint_of": (vllm, "w", ("block_tokens", 16)),
        "total_kv_heads": (vllm,),
        "attention_writes_kv": ([built.layers["layer.0"], built.layers["layer.1"]],),
    }


def test_a_rank_introduces_itself_by_what_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name, its place in the grid, its caches, and the heads that ranks divide."""
    built = Built(tmp_path, monkeypatch)
    introduction = built.made["PrefillWorker"]["introduction"]
    caches = introduction.caches

    assert (introduction.node, introduction.role) == ("prefill node 10.0.0.1", "prefill")
    assert introduction.rank == Rank(tp=1, tp_size=2, pp=1, pp_size=2)
    assert (introduction.fingerprint, introduction.divided) == (FINGERPRINT, (4,))
    assert (caches.num_blocks, caches.block_tokens, caches.layer_of) == (6, 16, {"layer.0": 0})
    assert [(r.name, r.group, r.total_heads, r.drafter) for r in caches.regions] == [
        ("layer.0", 1, 4, ""),
        ("layer.1", 0, 0, "eagle"),
    ]


def test_both_sides_are_made_of_the_same_and_each_speaks_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One incarnation, never 0, and the configured addresses and bounds."""
    transfer = TransferConfig(both_ways=True)
    built = Built(tmp_path, monkeypatch, role="decode", transfer=transfer)
    prefill, decode = built.made["PrefillWorker"], built.made["DecodeWorker"]

    assert (prefill["introduction"].role, decode["introduction"].role) == ("prefill", "decode")
    assert replace(prefill["introduction"], role="decode") == decode["introduction"]
    assert prefill["config"] is decode["config"] is built.config
    assert prefill["incarnation"] == decode["incarnation"] == (1 << 62) | 1
    assert prefill["secret"] == decode["secret"] == built.config.secret()
    assert (prefill["stream"].device_type, prefill["stream"].attention_writes_kv) == ("cpu", False)
    assert (decode["record"], decode["device"]) == (prefill["stream"].record, None)
    assert {name: built.factory[name] for name in ("host", "protocol", "max_in_flight")} == {
        "host": "10.0.1.1",
        "protocol": transfer.protocol,
        "max_in_flight": transfer.in_flight_max_descriptors,
    }
    assert len(decode["digests"]([1], [0, 1])) == 16
    for side in (prefill, decode):
        side["enter_device"]()  # a CPU is always current
    assert (built.worker.rank, built.worker.address) == (3, "tcp://10.0.0.1:7")
    snapshot = SimpleNamespace(**built.worker._described)
    assert (snapshot.incarnation, snapshot.num_blocks, snapshot.layer_sync) == ("4000000000000001", 6, "forward")
    assert (snapshot.fingerprint, len(snapshot.regions)) == (to_plain(FINGERPRINT), 2)


@pytest.mark.parametrize(("role", "side"), [("prefill", "PrefillWorker"), ("decode", "DecodeWorker")])
def test_a_node_has_the_side_of_its_role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: Any, side: str) -> None:
    """And no other, unless KV goes both ways; a model of one layer will do."""
    built = Built(tmp_path, monkeypatch, layers=1, role=role)

    assert [*built.made] == [side]
    assert (built.worker.prefill is not None, built.worker.decode is not None) == (role == "prefill", role == "decode")


@pytest.mark.parametrize(("layer_sync", "pushes"), [("event", True), ("stream", True), ("forward", False)])
def test_layers_hooks_are_heard_unless_all_layers_leave_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layer_sync: Any, pushes: bool
) -> None:
    """Under `forward` they would only cost time."""
    built = Built(tmp_path, monkeypatch, transfer=TransferConfig(layer_sync=layer_sync))
    heard: list[str] = []
    built.worker.prefill.kv_issued = heard.append  # type: ignore[union-attr, method-assign]

    built.worker.kv_issued("layer.0")

    assert heard == ["layer.0"] * pushes
    assert built.worker._described["layer_sync"] == layer_sync


@pytest.mark.parametrize(
    ("tp_size", "pp_size", "rank", "expected"),
    [
        (1, 1, 0, Rank()),
        (2, 3, 5, Rank(tp=1, tp_size=2, pp=2, pp_size=3)),
        (2, 3, 4, Rank(tp=0, tp_size=2, pp=2, pp_size=3)),
        (2, 3, 6 + 3, Rank(tp=1, tp_size=2, pp=1, pp_size=3)),  # of the second data-parallel engine
    ],
)
def test_a_rank_has_its_place_in_the_grid(tp_size: int, pp_size: int, rank: int, expected: Rank) -> None:
    """Stage by stage."""
    parallel = SimpleNamespace(tensor_parallel_size=tp_size, pipeline_parallel_size=pp_size, rank=rank)
    config: Any = SimpleNamespace(parallel_config=parallel)

    assert rank_of(config) == expected
