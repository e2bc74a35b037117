"""Why one node serves a request: sentences for the response header, and their labels in `baton_decisions_total`."""

from typing import Final

from baton.proxy.request import eligibility, single_node

NO_PREFILL_CONFIGURED: Final = "no prefill node is configured"
NO_PREFILL_READY: Final = "no prefill node is ready"
NO_PREFILL_MATCHES: Final = "no ready prefill node makes KV that a ready decode node can use"
NO_PREFILL_SPEAKS: Final = "no ready prefill node speaks the same protocol version as a ready decode node and the proxy"
ONE_TOKEN: Final = "one token is asked for, which a prefill node gives"  # noqa: S105  # no password
SHORT: Final = "little of the prompt is new to the decode node"
ON_DECODE: Final = "a pair comes too near the latency targets, or has done so within 10 s, and the decode node has less to do, or more of the prompt"
ON_PREFILL: Final = "a pair comes too near the latency targets, or has done so within 10 s, and the prefill node has less to do, or more of the prompt"

LABELS: Final = {
    eligibility.BEST_OF: "best_of",
    eligibility.BEAM_SEARCH: "beam_search",
    eligibility.PROMPT_LOGPROBS: "prompt_logprobs",
    eligibility.NO_PROMPT: "no_prompt",
    eligibility.EMBEDDINGS: "embeddings",
    eligibility.MEDIA: "media",
    single_node.BACKGROUND: "background",
    single_node.TOOLS: "built_in_tools",
    single_node.TRUNCATION: "truncation",
    single_node.PREVIOUS: "previous_response",
    NO_PREFILL_CONFIGURED: "no_prefill_configured",
    NO_PREFILL_READY: "no_prefill_ready",
    NO_PREFILL_MATCHES: "no_prefill_matches",
    NO_PREFILL_SPEAKS: "no_prefill_speaks",
    ONE_TOKEN: "one_token",
    SHORT: "short",
    ON_DECODE: "on_decode",
    ON_PREFILL: "on_prefill",
}
