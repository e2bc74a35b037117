"""How much of a role's work there is on a node, counted in nodes: 1 is what one can do within the targets. Pure."""

from typing import Final

from baton.proxy.nodes.node import Node

_FULL: Final = 0.9  # of a KV cache
_HALF: Final = 0.5  # of the time with streams; if it is more, they may be a few that never end


def prefill_load(node: Node) -> float | None:
    """Return the seconds of prompts that come through this proxy per second, and that wait; None: too little was seen."""
    now_s = node.clock()
    waiting = node.prompt_bytes - node.computed_prompt_bytes if node.role == "prefill" else node.own_prompt_bytes
    waiting_s = node.prefill_time.predict_s(waiting, now_s)
    return None if waiting_s is None else node.prompt_share.at(now_s, more=waiting_s if waiting else 0.0)


def decode_load(node: Node) -> float | None:
    """Return the tokens, or the KV of running streams where that is more, of all proxies; None: too little was seen."""
    used = node.inter_token.utilisation(node.target_inter_token_s, node.clock())
    load = node.info.load if node.info else None
    if load is None:
        return None
    sequences = (load.running or 0) + (load.waiting or 0)  # those that wait have reserved room for their prompts
    cached = (load.kv_usage or 0.0) * (load.running or 0) / sequences if sequences else 0.0
    if used is None and node.role == "decode" and 0.0 < (share := node.inter_token.busy_share(node.clock())) < _HALF:
        used = share  # at most: it could have those streams all the time
    if used is None:
        return cached / _FULL if cached >= _FULL else None
    return max(used, cached / _FULL)
