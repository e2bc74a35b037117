"""The servers that chaos is brought upon: small pools, small blocks, small chunks, so that short prompts are enough."""

import signal
from dataclasses import dataclass, field, fields
from typing import Any, Final

from baton.contracts.configuration.schema import TransferConfig
from baton.node.startup.flags import ranks_of
from tests.chaos.workload import BLOCK_BYTES, BLOCK_TOKENS
from tests.e2e.stack import FLOAT32, Server, Stack
from tests.matrix.media import CHAT
from tests.support.ports import free_port

MAX_LENGTH_TOKENS: Final = 384
ROUTE: Final = "/v1/completions"
ADMIN: Final = "an admin token for chaos"
# Of nodes that send and receive: a source needs a free place and the blocks of its streams in its cache.
BOTH_WAYS: Final[dict[str, Any]] = {"prefill_blocks": 64, "decode_blocks": 64, "decode_sequences": 12}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How large the cluster is, and how tight."""

    prefill: int = 2
    decode: int = 2
    prefill_ranks: str = ""  # flags, such as "-tp 2"
    decode_ranks: str = ""
    of_model: tuple[str, ...] = ()  # flags of every node, as the model wants them
    prefill_blocks: int = 24
    decode_blocks: int = 40
    decode_sequences: int = 6  # at once on each decode node; more wait
    step_tokens: int = 96  # on P, of all prompts together
    chunk_tokens: int = 24  # on P, of each prompt: not a divisor of a block, so that chunks end inside blocks
    layer_s: float = 0.002  # what every layer on P takes longer
    request_timeout_s: float = 30.0  # the proxy's
    has_media: bool = False  # prompts with images; the stack's model takes them
    patience: float = 1.0  # how many times as long as a quiet machine this one may take
    transfer: TransferConfig = field(default_factory=TransferConfig)

    @property
    def flags(self) -> list[str]:
        given = [*FLOAT32, "--block-size", str(BLOCK_TOKENS), "--max-model-len", str(MAX_LENGTH_TOKENS), *self.of_model]
        for setting in fields(TransferConfig):
            value = getattr(self.transfer, setting.name)
            if value != setting.default:
                given += [f"--{setting.name.replace('_', '-')}", str(value).lower()]
        return given


class Cluster:
    """The servers by name: p0, p1, d0, d1, proxy."""

    def __init__(self, stack: Stack, shape: Shape) -> None:
        self.stack = stack
        self.shape = shape
        self.prefill = [self._prefill(f"p{index}") for index in range(shape.prefill)]
        self.decode = [self._decode(f"d{index}") for index in range(shape.decode)]
        self.proxy = self._proxy()

    @property
    def nodes(self) -> list[Server]:
        """Prefill and decode nodes."""
        return [*self.prefill, *self.decode]

    @property
    def servers(self) -> list[Server]:
        return [*self.nodes, self.proxy]

    @property
    def url(self) -> str:
        """Where clients ask."""
        return self.proxy.url + (CHAT if self.shape.has_media else ROUTE)

    def named(self, name: str) -> Server:
        return next(server for server in self.servers if server.name == name)

    def stop(self) -> None:
        """Stop all, also those that are stopped by a signal."""
        for server in self.servers:
            server.signal(signal.SIGCONT)
        self.stack.stop(*self.servers)

    def _prefill(self, name: str) -> Server:
        shape = self.shape
        flags = [*shape.flags, "--max-num-batched-tokens", str(shape.step_tokens), "--max-num-seqs", "32"]
        flags += ["--long-prefill-token-threshold", str(shape.chunk_tokens)]
        flags += ["--no-scheduler-reserve-full-isl"]  # prompts may outgrow the pool, and are preempted then
        flags += ranks_with(shape.prefill_ranks, shape.prefill_blocks)
        slow = {
            "target": "tests.chaos.targets:slow_prefill_node",
            "kwargs": {"layer_s": shape.layer_s, "has_media": shape.has_media},
        }
        return self._node("prefill", name, flags, **(slow if shape.layer_s or shape.has_media else {}))

    def _decode(self, name: str) -> Server:
        flags = [*self.shape.flags, "--max-num-seqs", str(self.shape.decode_sequences)]
        flags += ranks_with(self.shape.decode_ranks, self.shape.decode_blocks)
        if self.shape.transfer.both_ways:
            flags += ["--control-port", str(free_port(ranks_of(self.shape.decode_ranks.split())[0]))]
        media = {"target": "tests.support.media_nodes:node", "kwargs": {"role": "decode"}}
        return self._node("decode", name, flags, **(media if self.shape.has_media else {}))

    def _node(self, role: str, name: str, flags: list[str], **more: Any) -> Server:
        """Start a node in its place."""
        place = self._place(name)
        if advertised := place.pop("advertise", ""):
            flags += ["--advertise-host", advertised]
        return self.stack.node(role, *flags, name=name, **place, **more)

    def _place(self, name: str) -> dict[str, Any]:
        """Where a node runs: keywords of `Stack.node`, and `advertise` for what it tells its peers."""
        del name
        return {}

    def _proxy(self) -> Server:
        token = self.stack.folder / "admin.token"
        token.write_text(f"{ADMIN}\n")
        env: dict[str, str | None] = {
            "BATON_PROXY_REQUEST_TIMEOUT_S": str(self.shape.request_timeout_s),
            "BATON_TRANSFER_PEER_TIMEOUT_S": str(TransferConfig().peer_timeout_s),
            "BATON_PROXY_RETURN_ANSWERS": "on" if self.shape.transfer.both_ways else "off",
        }
        flags = ("--log-level", "warning", "--admin-token-file", str(token))
        return self.stack.proxy(self.prefill, self.decode, *flags, env=env)


def ranks_with(flags: str, blocks: int) -> list[str]:
    """Return these flags, and so much memory for each rank that it has its part of so many blocks."""
    ranks, _ = ranks_of(flags.split())  # heads of the model, or its layers, are divided evenly
    return [*flags.split(), "--kv-cache-memory-bytes", str(blocks * BLOCK_BYTES // ranks)]
