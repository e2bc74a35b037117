"""What `usage` calls cached: tokens of a prompt that no node had to compute, in D's prefix cache or in P's.

vLLM counts all KV that a connector brought as cached, since D did not compute it. P did, for this very request, but for
what its own prefix cache held. P names that number with COMMIT, and it takes the place of vLLM's here, before the
request's first output: `num_cached_tokens` is what becomes `prompt_tokens_details.cached_tokens`. vLLM has a way of its
own for this (`remote_prefill_cached_tokens`), but wants to know the number before the request begins on D.

The breakdown by source (`vllm:prompt_tokens_by_source_total`) stays as vLLM made it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.request import Request


def bill(request: "Request", cached_on_prefill_tokens: int) -> None:
    """Set how many of a prompt's tokens are reported as cached: prefix-cache hits on either node, counted once."""
    stats = getattr(request, "prefill_stats", None)
    if stats is None:  # an older vLLM counts elsewhere, or the first output has taken the numbers with it
        return
    cached = max(stats.num_local_cached_tokens, cached_on_prefill_tokens)
    stats.num_cached_tokens = min(cached, request.num_prompt_tokens)


def bill_prompt_alone(request: "Request", prompt_tokens: int) -> None:
    """Leave out tokens that have been put behind a prompt of so many: vLLM's server takes the one number from the other."""
    if stats := getattr(request, "prefill_stats", None):
        stats.num_cached_tokens = min(stats.num_cached_tokens, prompt_tokens)
