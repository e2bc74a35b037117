"""Which ranks of two nodes exchange KV, and which heads. Pure functions of sizes, so that both nodes find the same.

A node is a grid of `pp` pipeline stages, each of `tp` tensor-parallel ranks. A stage's ranks divide its KV heads among
them in order; where there are more ranks than heads, each head is *replicated* on neighbouring ranks, as vLLM does it.
The parts of a recurrent layer's state are divided like heads: its own heads, and the groups of B and C.

One rank of P and one of D that exchange something are joined by a *flow*. A D rank takes each of its heads from one P
rank; where several hold it, from one of them, and different D ranks from different ones.

Every pair of stages has flows, also where they turn out to have no layer in common: then there is nothing to push, and
the flow ends as soon as both sides know each other. Which layers a stage has is known to its rank alone.
"""

from functools import lru_cache

from baton.contracts.kv_transfer import Grid


def heads_of(heads: int, tp_size: int, tp: int) -> range:
    """Return which of a layer's KV heads one tensor-parallel rank has; a cache that all have whole, as MLA's, counts 1.

    There is at least one head; `tp_size` divides `heads` or is a multiple of it.

    Source:
        vLLM's `QKVParallelLinear`: `num_kv_head_replicas`, and `ModelConfig.get_num_kv_heads`.
    """
    first = tp * heads // tp_size
    return range(first, first + max(1, heads // tp_size))


def fits(heads: int, tp_size: int) -> bool:
    """Whether so many ranks can divide the heads, or replicate them, evenly; vLLM starts no others."""
    return heads % tp_size == 0 or tp_size % heads == 0


def source_of(heads: int, head: int, prefill_tp: int, decode_tp: int, tp: int) -> int:
    """Return the P rank (within its stage) from which the D rank `tp` of `decode_tp` takes a head that it has."""
    holders = _holders(heads, head, prefill_tp)
    readers = _holders(heads, head, decode_tp)  # they take turns
    return holders[readers.index(tp) % len(holders)]


@lru_cache(maxsize=1024)  # the same for all layers
def heads_between(heads: int, prefill: tuple[int, int], decode: tuple[int, int]) -> range:
    """Return the heads that travel between two ranks, given as `(tp_size, tp)`; empty if none do."""
    wanted = heads_of(heads, *decode)
    taken = [head for head in wanted if source_of(heads, head, prefill[0], *decode) == prefill[1]]
    return range(taken[0], taken[-1] + 1) if taken else range(0)  # neighbours: both ranks' heads are


@lru_cache(maxsize=1024)
def sources(divided: tuple[int, ...], prefill: Grid, decode: Grid, rank: int) -> tuple[int, ...]:
    """Return the P ranks that a D rank has a flow with; ranks are numbered through the grid, stage by stage.

    `divided` has the number of KV heads, and of parts of whatever else a node's ranks divide.
    """
    mine = rank % decode.tp
    among = {
        source_of(heads, head, prefill.tp, decode.tp, mine)
        for heads in divided
        for head in heads_of(heads, decode.tp, mine)
    }
    return tuple(stage * prefill.tp + tp for stage in range(prefill.pp) for tp in sorted(among))


@lru_cache(maxsize=1024)
def readers(divided: tuple[int, ...], prefill: Grid, decode: Grid, rank: int) -> tuple[int, ...]:
    """Return the D ranks that a P rank has a flow with. May be none: others hold the same heads."""
    return tuple(other for other in range(decode.ranks) if rank in sources(divided, prefill, decode, other))


def flow_id(transfer_id: str, prefill: Grid, decode: Grid, source: int, target: int) -> str:
    """Name the flow of a transfer from one rank to another; between nodes of one rank each it is the transfer."""
    if prefill.ranks == decode.ranks == 1:
        return transfer_id
    return f"{transfer_id}/{source}-{target}"


def named(flow: str) -> dict[str, str]:
    """Return how a record of a flow says which one it is."""
    transfer_id, _, part = flow.partition("/")
    return {"transfer_id": transfer_id, "flow": part} if part else {"transfer_id": transfer_id}


def transfer_id_of_flow(flow: str) -> str:
    return flow.partition("/")[0]


def _holders(heads: int, head: int, tp_size: int) -> list[int]:
    return [tp for tp in range(tp_size) if head in heads_of(heads, tp_size, tp)]
