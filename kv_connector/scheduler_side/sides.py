"""The scheduler's sides of one engine, over one block pool: a prefill node's, a decode node's, or both.

A request belongs to the side that its parameters name, an ordinary one to neither.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from baton.contracts.kv_transfer import KEY, Grid, Role
from baton.kv_connector.config import ConnectorConfig
from baton.kv_connector.handoff.metadata import DecodeReport, Step
from baton.kv_connector.layout.groups import block_tokens_of, groups_of
from baton.kv_connector.scheduler_side.answer_tokens import ModelLimits
from baton.kv_connector.scheduler_side.decode import DecodeScheduler
from baton.kv_connector.scheduler_side.integrity_check import IntegrityCheck
from baton.kv_connector.scheduler_side.prefill import PrefillScheduler
from baton.kv_connector.scheduler_side.scheduler import has_our_scheduler
from baton.kv_connector.telemetry.both_sides import join
from baton.kv_connector.vllm_compat.lora import adapters_of
from baton.kv_connector.vllm_compat.media import media_of
from baton.kv_connector.vllm_compat.sampling_digest import sampling_digest

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request


class SchedulerSides:
    """What the facade calls; without a side the hooks do nothing."""

    def __init__(self, role: Role, prefill: PrefillScheduler | None, decode: DecodeScheduler | None) -> None:
        """`role`: the node's own, whose side is shown first."""
        self.prefill = prefill
        self.decode = decode
        sides: list[PrefillScheduler | DecodeScheduler] = [side for side in (prefill, decode) if side is not None]
        self._sides = sides if role == "prefill" else sides[::-1]
        self._pool: BlockPool | None = None
        self.addresses: list[str] = []  # of our ranks, for the node API; none where all of them dial
        self.integrity = IntegrityCheck(self._reservations, decode.history if decode else None)

    def bind_pool(self, pool: "BlockPool", cache_manager: Any = None) -> None:
        """Name the block pool and, where vLLM hands it out, its cache manager."""
        self._pool = pool
        self.integrity.bind(pool, cache_manager)
        for side in self._sides:
            side.bind_pool(pool)

    def add_request(self, request: "Request") -> None:
        self.integrity.request_arrived(request.request_id)
        role = _said_role(request.kv_transfer_params)
        if self.prefill and (role == "prefill" or self.decode is None):
            self.prefill.add_request(request)
        elif self.decode:
            self.decode.add_request(request)

    def match(self, request: "Request", num_computed_tokens: int) -> tuple[int | None, bool]:
        return self.decode.match(request, num_computed_tokens) if self.decode else (0, False)

    def allocated(
        self, request: "Request", blocks: Sequence[Sequence["KVCacheBlock"]], num_external_tokens: int
    ) -> None:
        if self.decode:
            self.decode.allocated(request, blocks, num_external_tokens)

    def take_step(self, output: "SchedulerOutput") -> Step:
        self.integrity.step_begins(output)
        decode = self.decode.take_step(output) if self.decode else None
        if self.prefill and self.decode and self.decode.lacking:
            self.prefill.make_room(self.decode.lacking)
        return Step(prefill=self.prefill.take_step(output) if self.prefill else None, decode=decode)

    def update(self, finished_sending: set[str], report: DecodeReport, finished_receiving: set[str]) -> None:
        if self.prefill:
            self.prefill.update(finished_sending)
        for request_id in finished_sending:
            self.integrity.request_ended(request_id)
        if self.decode:
            self.decode.update(report, finished_receiving)

    def finish_request(self, request: "Request", *, aborted: bool) -> bool:
        """The engine is done with a request. Returns whether to keep its blocks until `finished_sending`."""
        keeps_blocks = self.prefill is not None and self.prefill.finish_request(request, aborted=aborted)
        if self.decode:
            self.decode.finish_request(request)
        self.integrity.request_ended(request.request_id, keeps_blocks=keeps_blocks)
        return keeps_blocks

    def has_open_reservations(self) -> bool:
        return self.decode is not None and self.decode.has_open_reservations()

    def snapshot(self) -> dict[str, Any]:
        """State for the node API; called from another thread."""
        assert self._pool is not None  # bound before the node serves
        said = join([side.snapshot() for side in self._sides])
        return said | {
            "num_blocks": self._pool.num_gpu_blocks - 1,  # without the null block, as in vLLM's usage gauge
            "free_blocks": self._pool.get_num_free_blocks(),
            "control_addresses": self.addresses,
            "totals": said["totals"] | self.integrity.totals,
            "both_ways": len(self._sides) > 1,
        }

    def close(self) -> None:
        if self.decode:
            self.decode.close()

    def _reservations(self) -> Mapping[str, Sequence[int]]:
        """Blocks that we hold references on, of either side: no request belongs to both."""
        return {name: ids for side in self._sides for name, ids in side.reservations().items()}


def make_scheduler_sides(
    vllm_config: "VllmConfig", config: ConnectorConfig, kv_cache_config: "KVCacheConfig"
) -> SchedulerSides:
    secret, parallel, model = config.secret(), vllm_config.parallel_config, vllm_config.model_config
    block_tokens = block_tokens_of(vllm_config, kv_cache_config)
    groups = groups_of(kv_cache_config, block_tokens)
    grid = Grid(parallel.tensor_parallel_size, parallel.pipeline_parallel_size)
    adapters = adapters_of(vllm_config)
    is_ours = has_our_scheduler(vllm_config)
    sampling = sampling_digest(vllm_config) if is_ours else ""
    media = media_of(vllm_config, keeps_media=is_ours)
    prefill, decode = None, None
    if "prefill" in config.roles:
        prefill = PrefillScheduler(
            secret,
            block_tokens,
            grid,
            groups=groups,
            adapters=adapters,
            media=media,
            sampling=sampling,
            answers=ModelLimits(model.get_vocab_size(), model.max_model_len) if config.transfer.both_ways else None,
        )
    if "decode" in config.roles:
        decode = DecodeScheduler(
            config,
            secret,
            block_tokens,
            grid,
            has_prefix_cache=bool(vllm_config.cache_config.enable_prefix_caching),
            sampling=sampling,
            vocab_size=model.get_vocab_size(),
            groups=groups,
            adapters=adapters,
            media=media,
        )
    return SchedulerSides(config.role, prefill, decode)


def _said_role(params: Any) -> object:
    """Return the role that unverified parameters name; the side that is given them verifies it."""
    fields = params.get(KEY) if isinstance(params, dict) else None
    return fields.get("role") if isinstance(fields, dict) else None
