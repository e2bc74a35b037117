"""Speculative decoding on either node: the tokens of one plain server that does without."""

import json
from typing import Any

import pytest

from baton.contracts.http import DISAGGREGATED
from baton.deploy.embedded_model import WEIGHTS
from tests.e2e.client import difference
from tests.e2e.conftest import Trio
from tests.e2e.fidelity import VERIFY, answers
from tests.e2e.stack import FLOAT32, Server, Stack
from tests.support.eagle_heads import write_head

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

DRAFTS = 3
METHODS: dict[str, dict[str, Any]] = {
    "": {},
    "ngram": {"method": "ngram", "num_speculative_tokens": DRAFTS, "prompt_lookup_max": 3, "prompt_lookup_min": 2},
    # A drafter that is the target itself: whatever is not accepted was drafted from another KV.
    "draft": {"method": "draft_model", "model": str(WEIGHTS), "num_speculative_tokens": DRAFTS},
    "eagle": {"method": "eagle", "num_speculative_tokens": DRAFTS},
    "eagle3": {"method": "eagle3", "num_speculative_tokens": DRAFTS},
    "medusa": {"method": "medusa", "num_speculative_tokens": DRAFTS},
}


def served(stack: Stack, prefill: str, decode: str) -> tuple[Server, Server]:
    """Return the proxy and the decode node of a pair that speculates so."""
    heads = {
        name: METHODS[name] | {"model": write_head(name, stack.folder / name)} for name in ("eagle", "eagle3", "medusa")
    }
    methods = METHODS | heads
    flags = [
        [*FLOAT32, *VERIFY, *(["--speculative-config", json.dumps(methods[method])] if method else [])]
        for method in (prefill, decode)
    ]
    nodes = [stack.node("prefill", *flags[0], "--max-num-batched-tokens", "256"), stack.node("decode", *flags[1])]
    return stack.proxy(nodes[:1], nodes[1:]), nodes[1]


def accepted(node: Server) -> float:
    """Which share of the drafted tokens was accepted so far.

    Of 24 at most 21: the first step on D has placeholders for drafts, and vLLM counts them.
    """
    metrics = node.metrics()
    return metrics["vllm:spec_decode_num_accepted_tokens_total"] / metrics["vllm:spec_decode_num_draft_tokens_total"]


@pytest.mark.parametrize(
    ("prefill", "decode", "least_accepted"),
    [
        ("draft", "draft", 0.85),
        pytest.param("", "ngram", 0.0, marks=pytest.mark.matrix),
        pytest.param("", "eagle", 0.0, marks=pytest.mark.matrix),
        pytest.param("ngram", "ngram", 0.0, marks=pytest.mark.matrix),
        pytest.param("", "draft", 0.0, marks=pytest.mark.matrix),
        pytest.param("draft", "", None, marks=pytest.mark.matrix),
        pytest.param("eagle", "eagle", 0.0, marks=pytest.mark.matrix),
        pytest.param("eagle", "ngram", 0.0, marks=pytest.mark.matrix),
        pytest.param("ngram", "eagle", 0.0, marks=pytest.mark.matrix),
        pytest.param("eagle3", "eagle3", 0.0, marks=pytest.mark.matrix),
        pytest.param("", "eagle3", 0.0, marks=pytest.mark.matrix),
        pytest.param("eagle", "eagle3", 0.0, marks=pytest.mark.matrix),
        pytest.param("medusa", "medusa", 0.0, marks=pytest.mark.matrix),
        pytest.param("", "medusa", 0.0, marks=pytest.mark.matrix),
    ],
)
def test_tokens_do_not_depend_on_who_speculates(
    stack: Stack, trio: Trio, prefill: str, decode: str, least_accepted: float | None
) -> None:
    """Exact whichever side drafts; a drafter's KV travels where both have it, so that D drafts as if it had computed it."""
    proxy, node = served(stack, prefill, decode)
    some = slice(0, 13, 3)
    prompts, expected = trio.prompts[some], trio.reference[some]

    found = answers(proxy.url, stack.model, prompts, at_once=3)

    for prompt, wanted, got in zip(prompts, expected, found, strict=True):
        assert difference(wanted, got) == "", f"{len(prompt)} tokens"
        assert got.path == DISAGGREGATED, got.reason
    totals = node.transfers()["worker"]["totals"]
    assert totals["failed"] == totals["mismatched"] == 0
    assert totals["verified"] == totals["loaded"] > 0
    if least_accepted is not None:
        print(f"{prefill or 'none'} to {decode}: accepted {accepted(node):.3f}")
        assert accepted(node) >= least_accepted
