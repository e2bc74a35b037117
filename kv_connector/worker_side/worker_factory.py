"""Puts a worker together from what vLLM knows."""

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from baton.contracts.kv_transfer import Role
from baton.contracts.node_info import to_plain
from baton.kv_connector.config import ConnectorConfig
from baton.kv_connector.engine.mooncake_environment import check_transport
from baton.kv_connector.errors import LayoutError
from baton.kv_connector.layout.groups import block_tokens_of, groups_of, have_windows
from baton.kv_connector.protocol.messages import Rank
from baton.kv_connector.vllm_compat.fingerprint import fingerprint_of
from baton.kv_connector.vllm_compat.speculative import check_draft_layers, draft_layers, drafter_digest
from baton.kv_connector.vllm_compat.states import states_of_layers
from baton.kv_connector.worker_side.caches import LayerGroup, describe, tensors_of
from baton.kv_connector.worker_side.decode import DecodeWorker
from baton.kv_connector.worker_side.digest import RegionDigests
from baton.kv_connector.worker_side.divisions import divided_among, divisions_of, total_kv_heads
from baton.kv_connector.worker_side.landing import default_stream
from baton.kv_connector.worker_side.prefill import PrefillWorker
from baton.kv_connector.worker_side.rank_descriptor import RankDescriptor
from baton.kv_connector.worker_side.sides import WorkerSides
from baton.kv_connector.worker_side.sync import attention_writes_kv, recorder, resolve_layer_sync

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

    from baton.kv_connector.worker_side.caches import KVCache


def make_worker(
    vllm_config: "VllmConfig",
    config: ConnectorConfig,
    kv_cache_config: "KVCacheConfig",
    kv_caches: "Mapping[str, KVCache]",
) -> WorkerSides:
    """Make the worker of this rank; it has not been started.

    Raises `LayoutError`, `ConnectorConfigError` or `EngineError`, which says why this node cannot hand off KV.
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
    layers = vllm_config.compilation_config.static_forward_context
    stream = recorder(device, attention_writes_kv=attention_writes_kv(layers[name] for name in kv_caches))

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
    described = {
        "incarnation": f"{incarnation:016x}",
        "fingerprint": to_plain(fingerprint),
        "regions": [to_plain(region) for region in caches.regions],
        "num_blocks": num_blocks,
        "layer_sync": resolve_layer_sync(config.layer_sync, device.type),
    }
    pushes_layers = config.layer_sync != "forward"
    return WorkerSides(
        config.role, prefill, decode, pushes_layers=pushes_layers, rank=introduction.index, described=described
    )


def memberships(
    vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig", names: Iterable[str]
) -> dict[str, LayerGroup]:
    """Return vLLM's layer name → its KV cache group, for the layers that were registered (`names`).

    vLLM's configuration lists the layers that keep KV of their own. One that reads another's (Gemma 3n's last layers)
    belongs to the group of the layer that it shares with, whose block table and window are its own. Raises
    `LayoutError` if nothing says which of several block tables, or windows, is that of a layer.
    """
    groups = groups_of(kv_cache_config, block_tokens_of(vllm_config, kv_cache_config))
    found = {
        name: LayerGroup(number, group.window, group.places)
        for number, (group, spec) in enumerate(zip(groups, kv_cache_config.kv_cache_groups, strict=True))
        for name in spec.layer_names
    }
    if len(groups) == 1 and not have_windows(groups):
        return found  # there is but one way to read a block
    layers = vllm_config.compilation_config.static_forward_context
    for name in [name for name in names if name not in found]:
        source = getattr(layers.get(name), "kv_sharing_target_layer_name", None)
        if source not in found:
            raise LayoutError(f"{name} keeps KV, but is in no KV cache group and shares with no layer that is in one")
        found[name] = found[source]
    return found


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
