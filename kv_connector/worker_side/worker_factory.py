"""Puts a worker together from what vLLM knows."""

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from baton.contracts.kv_transfer import Role
from baton.contracts.node_info import to_plain
from baton.kv_connector.config import ConnectorConfig
from baton.kv_connector.engine.mooncake_environment import check_transport
from baton.kv_connector.layout.groups import block_tokens_of
from baton.kv_connector.protocol.messages import Rank
from baton.kv_connector.vllm_compat.backends import keeps_state
from baton.kv_connector.vllm_compat.fingerprint import fingerprint_of
from baton.kv_connector.vllm_compat.speculative import check_draft_layers, draft_layers, drafter_digest
from baton.kv_connector.vllm_compat.states import states_of_layers
from baton.kv_connector.worker_side.caches import describe, tensors_of
from baton.kv_connector.worker_side.decode import DecodeWorker
from baton.kv_connector.worker_side.digest import RegionDigests
from baton.kv_connector.worker_side.divisions import divided_among, divisions_of, total_kv_heads
from baton.kv_connector.worker_side.landing import default_stream
from baton.kv_connector.worker_side.memberships import memberships
from baton.kv_connector.worker_side.prefill import PrefillWorker
from baton.kv_connector.worker_side.rank_descriptor import RankDescriptor
from baton.kv_connector.worker_side.sides import WorkerSides
from baton.kv_connector.worker_side.sync import attention_writes_kv, recorder, resolve_layer_sync

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

    from baton.kv_connector.worker_side.caches import KVCache


class Made(NamedTuple):
    """A worker that has not been started."""

    worker: WorkerSides
    rank: int  # its number in its engine's grid
    snapshot: Callable[[], dict[str, Any]]


def make_worker(
    vllm_config: "VllmConfig",
    config: ConnectorConfig,
    kv_cache_config: "KVCacheConfig",
    kv_caches: "Mapping[str, KVCache]",
) -> Made:
    """Make the worker of this rank.

    Raises:
        LayoutError, ConnectorConfigError, EngineError: this node cannot hand off KV; the message says why.
    """
    from baton.kv_connector.engine.mooncake import MooncakeFactory
    from baton.kv_connector.engine.port_memory import PortMemory, shared_path

    check_draft_layers(vllm_config, kv_caches)
    num_blocks, block_tokens = kv_cache_config.num_blocks, block_tokens_of(vllm_config, kv_cache_config)
    caches = describe(
        kv_caches,
        num_blocks=num_blocks,
        block_tokens=block_tokens,
        divisions=divisions_of(vllm_config, kv_cache_config, kv_caches),
        groups=memberships(vllm_config, kv_cache_config, kv_caches),
        drafter=drafter_digest(vllm_config),
        draft_layers=draft_layers(vllm_config, kv_caches),
        states=states_of_layers(vllm_config),
    )
    tensors = [tensor for kv_cache in kv_caches.values() for tensor in tensors_of(kv_cache)]
    device = tensors[0].device
    check_transport(config.transfer.protocol, device.type)
    fingerprint = fingerprint_of(vllm_config, config.weights, block_tokens=block_tokens)
    incarnation = secrets.randbits(63) | 1  # never 0
    introduction = RankDescriptor(
        f"{config.role} node {config.advertise_host}",
        config.role,
        rank_of(vllm_config),
        fingerprint,
        caches,
        divided_among(total_kv_heads(vllm_config), caches.regions),
    )
    enter_device = _entry_of(device)
    stream = recorder(device, attention_writes_kv=attention_writes_kv(_attention_backends(vllm_config, kv_caches)))

    def common(side: Role) -> dict[str, Any]:
        """What either side is made with; of what has a state, each has its own."""
        return {
            "config": config,
            "secret": config.secret(),
            "introduction": replace(introduction, role=side),
            "engines": MooncakeFactory(
                host=config.data_host,
                protocol=config.transfer.protocol,
                max_in_flight=config.transfer.in_flight_max_descriptors,
                ports=PortMemory(shared_path()),
                enter_device=enter_device,
            ),
            "incarnation": incarnation,
            "digests": RegionDigests(tensors, caches.regions),
            "enter_device": enter_device,
        }

    prefill, decode = None, None
    if "prefill" in config.roles:
        prefill = PrefillWorker(stream=stream, **common("prefill"))
    if "decode" in config.roles:
        decode = DecodeWorker(record=stream.record, device=default_stream(device), **common("decode"))
    worker = WorkerSides(config.role, prefill, decode, pushes_layers=config.layer_sync != "forward")
    described = {
        "incarnation": f"{incarnation:016x}",
        "fingerprint": to_plain(fingerprint),
        "regions": [to_plain(region.to_info()) for region in caches.regions],
        "num_blocks": num_blocks,
        "layer_sync": resolve_layer_sync(config.layer_sync, device.type),
    }
    return Made(worker, introduction.index, lambda: described | worker.snapshot())


def rank_of(vllm_config: "VllmConfig") -> Rank:
    parallel = vllm_config.parallel_config
    tp_size, pp_size = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    pp, tp = divmod(parallel.rank % (tp_size * pp_size), tp_size)
    return Rank(tp=tp, tp_size=tp_size, pp=pp, pp_size=pp_size)


def _entry_of(device: "torch.device") -> Callable[[], None]:
    """Return what makes a device current in the thread that calls it: a new thread's is the first one, or none."""
    if device.type == "cpu":
        return lambda: None
    import torch

    return partial(torch.get_device_module(device).set_device, device)


def _attention_backends(vllm_config: "VllmConfig", names: Iterable[str]) -> Iterator[type]:
    """Yield the attention backend of each layer that vLLM has built and calls hooks for."""
    layers = vllm_config.compilation_config.static_forward_context
    return (layers[name].get_attn_backend() for name in names if not keeps_state(layers[name]))
