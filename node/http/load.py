"""What this node has to do at this moment: requests that passed its gate, and what vLLM's engine says of itself.

Proxies take off what they sent themselves, so the two first numbers are in their measure: requests, and bytes. The
engine's are those of its last step, read from what vLLM keeps for Prometheus anyway.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from prometheus_client import REGISTRY
from prometheus_client.registry import CollectorRegistry

from baton.contracts.node_info import NodeLoad

RUNNING: Final = "vllm:num_requests_running"
WAITING: Final = "vllm:num_requests_waiting"
KV_USAGE: Final = "vllm:kv_cache_usage_perc"  # a share, in spite of its name
LATENCY: Final = "vllm:inter_token_latency_seconds"
_COUNT: Final = f"{LATENCY}_count"
_SUM: Final = f"{LATENCY}_sum"


class Load:
    """Counts what is in flight."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._registry = registry
        self._requests = 0
        self._prompt_bytes = 0

    @contextmanager
    def request(self, body_bytes: int) -> Iterator[None]:
        self._requests += 1
        self._prompt_bytes += body_bytes
        try:
            yield
        finally:
            self._requests -= 1
            self._prompt_bytes -= body_bytes

    def now(self) -> NodeLoad:
        """Return what there is; of several data-parallel engines the sum, of their caches the fullest."""
        found: dict[str, list[float]] = {}
        for metric in self._registry.restricted_registry((RUNNING, WAITING, KV_USAGE, _COUNT, _SUM)).collect():
            for sample in metric.samples:
                found.setdefault(sample.name, []).append(sample.value)
        return NodeLoad(
            requests=self._requests,
            prompt_bytes=self._prompt_bytes,
            running=int(sum(found[RUNNING])) if RUNNING in found else None,
            waiting=int(sum(found[WAITING])) if WAITING in found else None,
            kv_usage=round(max(found[KV_USAGE]), 4) if KV_USAGE in found else None,
            inter_token_count=int(sum(found[_COUNT])) if _COUNT in found else None,
            inter_token_sum_s=round(sum(found[_SUM]), 6) if _SUM in found else None,
        )
