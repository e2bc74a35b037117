"""A node whose ranks are on several hosts: which of them is this one? Pure.

vLLM's own flags say it, the same on every host but for `--node-rank`. The first host's process serves HTTP and
schedules; those of the others run ranks alone (`node/follower.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from baton.node.errors import StartRefusedError
from baton.node.startup.flags import given, means, ranks_of, value_of

_COUNT = ("--nnodes", "-n")
_RANK = ("--node-rank", "-r")
_LEADER = ("--master-addr",)
_FOLLOWS = ("--headless",)
_EXECUTOR = ("--distributed-executor-backend",)
_ITSELF = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "::")  # noqa: S104  # compared, not bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """The hosts of a node, and this one's place among them."""

    count: int = 1
    rank: int = 0
    ranks_here: int = 1  # of each engine

    @property
    def follows(self) -> bool:
        """Whether another host is the first one."""
        return self.rank > 0

    @property
    def first_rank(self) -> int:
        """The number of this host's first rank in the engine's grid."""
        return self.rank * self.ranks_here


def hosts_of(arguments: Sequence[str]) -> Hosts:
    """Read the flags for vLLM; refuse such as contradict each other, or ask for what cannot be handed off."""
    _refuse_short_forms(arguments)
    if value_of(arguments, *_EXECUTOR) == "ray":
        raise StartRefusedError(
            "Ray would give all ranks the first host's addresses and sockets: without --distributed-executor-backend, "
            "start Baton on each host, with --nnodes, --node-rank and --master-addr"
        )
    count, rank = _number(arguments, _COUNT, 1), _number(arguments, _RANK, 0)
    ranks, engines = ranks_of(arguments)
    if count < 1 or rank >= count:
        raise StartRefusedError(f"--node-rank {rank} is none of --nnodes {count} hosts, which are numbered from 0")
    if rank == 0 and given(arguments, *_FOLLOWS):
        raise StartRefusedError("the host with --node-rank 0 serves HTTP: --headless is for the node's other hosts")
    if count == 1:
        return Hosts(ranks_here=ranks)
    if engines > 1:
        raise StartRefusedError(
            "a node of several hosts has one engine, not --data-parallel-size: run several nodes, which the proxy chooses from"
        )
    if ranks % count:
        raise StartRefusedError(f"{ranks} ranks cannot be divided among --nnodes {count} hosts evenly")
    if value_of(arguments, *_EXECUTOR) not in (None, "mp"):
        raise StartRefusedError("ranks on several hosts need --distributed-executor-backend mp, which is the default")
    if value_of(arguments, *_LEADER) in (None, "", *_ITSELF):
        raise StartRefusedError("set --master-addr to an address of the node's first host that the others reach")
    return Hosts(count=count, rank=rank, ranks_here=ranks // count)


def _number(arguments: Sequence[str], flag: Sequence[str], default: int) -> int:
    text = value_of(arguments, *flag)
    if text is None:
        return default
    if not text.isdecimal():
        raise StartRefusedError(f"{flag[0]} must be a whole number, not {text!r}")
    return int(text)


def _refuse_short_forms(arguments: Sequence[str]) -> None:
    """Refuse what vLLM's parser would take for one of these flags, and we would overlook."""
    for flag in (*_COUNT, *_RANK, *_LEADER, *_FOLLOWS, *_EXECUTOR):
        for argument in arguments:
            if means(argument, flag) and not given([argument], flag):
                raise StartRefusedError(f"write {argument.split('=')[0]} out: {flag}")
