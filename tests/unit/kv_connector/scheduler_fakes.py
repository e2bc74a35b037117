"""Stand-ins for vLLM's scheduler objects: only the attributes that the connector reads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

from baton.contracts.configuration.schema import TransferConfig
from baton.contracts.kv_transfer import CHOICE, SINGLE, Grids, Role, Start, TransferParams, sign
from baton.contracts.secret import ClusterSecret
from baton.kv_connector.config import ConnectorConfig

if TYPE_CHECKING:
    from baton.kv_connector.scheduler_side.decode import DecodeScheduler

SECRET = ClusterSecret(b"a secret for unit tests")
BLOCK_TOKENS = 16
PEER = "tcp://127.0.0.1:9100"
MakeDecode: TypeAlias = "Callable[..., DecodeScheduler]"  # the fixture `make_decode`


@dataclass
class FakeBlock:
    block_id: int
    ref_cnt: int = 0

    @property
    def is_null(self) -> bool:
        return self.block_id == 0


class FakePool:
    """vLLM's `BlockPool` as far as references go."""

    def __init__(self, num_blocks: int) -> None:
        self.num_gpu_blocks = num_blocks
        self.blocks = [FakeBlock(i) for i in range(num_blocks)]

    @property
    def null_block(self) -> FakeBlock:
        return self.blocks[0]

    def allocate(self, count: int) -> list[FakeBlock]:
        """Give out free blocks, as vLLM does for a request."""
        free = [block for block in self.blocks[1:] if block.ref_cnt == 0][:count]
        self.touch(free)
        return free

    def touch(self, blocks: Any) -> None:
        for block in blocks:
            block.ref_cnt += 1

    def free_blocks(self, blocks: Any) -> None:
        for block in blocks:
            block.ref_cnt -= 1
            assert block.ref_cnt >= 0, f"block {block.block_id} was freed twice"

    def get_cached_block(self, block_hash: Any, kv_cache_group_ids: Any) -> list[FakeBlock]:
        """It has every block cached."""
        return [self.blocks[1]]

    def get_num_free_blocks(self) -> int:
        return sum(block.ref_cnt == 0 for block in self.blocks[1:])


@dataclass
class FakeRequest:
    """vLLM's `Request`."""

    request_id: str
    prompt_token_ids: list[int]
    kv_transfer_params: dict[str, Any] | None = None
    skip_reading_prefix_cache: bool = False
    mm_features: list[Any] = field(default_factory=list)
    lora_request: Any = None
    cache_salt: str | None = None
    prompt_embeds: Any = None
    prefill_stats: Any = None
    output_tokens: int = 0  # that it has
    max_tokens: int = 20
    sampling_params: Any = field(
        default_factory=lambda: SimpleNamespace(prompt_logprobs=None, num_logprobs=None, extra_args=None)
    )

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.output_tokens


def request(
    role: Role,
    tokens: int,
    *,
    request_id: str = "r1",
    transfer_id: str = "a" * 32,
    several: bool = False,
    choices: bool = False,
    grids: Grids = SINGLE,
    first_token: bool = False,
    relays: bool = False,
    start: Start = (),
    start_sent: bool = False,
    kv_only: bool = False,
    choice: int | None = None,
    peer: str | None = None,
    **more: Any,
) -> Any:
    """A request with signed parameters; `several`: one prompt of a batch; `choice`: of the answer, as the API server says."""
    params = TransferParams(
        transfer_id=transfer_id,
        role=role,
        peer=peer if peer is not None else PEER if role == "decode" else "",
        several=several,
        choices=choices,
        grids=grids,
        first_token=first_token,
        relays=relays,
        start=start,
        start_sent=start_sent,
        kv_only=kv_only,
    )
    made = FakeRequest(request_id, list(range(tokens)), sign(params, SECRET), **more)
    if choice is not None:
        made.sampling_params.extra_args = {CHOICE: choice}
    return made


def config(runtime_dir: Path, **transfer: Any) -> ConnectorConfig:
    return ConnectorConfig(
        runtime_dir=runtime_dir,
        secret_file=runtime_dir / "secret",
        weights="w",
        transfer=TransferConfig(**transfer),
    )


def step_output(
    new: Sequence[tuple[str, Any, int, int]] = (),
    cached: Sequence[tuple[str, Any, int, int]] = (),
    preempted: set[str] | None = None,
) -> Any:
    """A `SchedulerOutput`: per request its id, its new blocks (a tuple: by KV cache group), tokens computed before, tokens scheduled."""
    return SimpleNamespace(
        preempted_req_ids=preempted or set(),
        scheduled_new_reqs=[
            SimpleNamespace(req_id=r, block_ids=_by_group(blocks), num_computed_tokens=computed, prompt_token_ids=[])
            for r, blocks, computed, _ in new
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=[r for r, *_ in cached],
            new_block_ids=[None if blocks is None else _by_group(blocks) for _, blocks, *_ in cached],
            num_computed_tokens=[computed for _, _, computed, _ in cached],
        ),
        num_scheduled_tokens={r: scheduled for r, _, _, scheduled in [*new, *cached]},
    )


def _by_group(blocks: list[int] | tuple[list[int], ...]) -> tuple[list[int], ...]:
    return blocks if isinstance(blocks, tuple) else (blocks,)
