"""Recurrent layers with vLLM's prefix cache on, on either node or both: prompts that a node has in part are exact."""

import pytest

from tests.e2e.client import difference
from tests.e2e.fidelity import answers, choose_prompts
from tests.e2e.stack import Server, Stack
from tests.matrix.kinds import CELLS, RECIPES, Kind, Pair, caching
from tests.matrix.models import ensure
from tests.matrix.trial import NODE

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

KINDS = [
    Kind("falcon-h1", cached=(False, True)),
    Kind("falcon-h1", cached=(True, False)),
    Kind("falcon-h1", cached=(True, True)),
    Kind("granite-4", cached=(True, True)),
    Kind("nemotron-h", cached=(True, True)),
    Kind("qwen3-next", cached=(True, True)),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("cell", [*CELLS, "again"])
@pytest.mark.parametrize("pair", KINDS, indirect=True, ids=str)
def test_states_in_the_prefix_cache_are_exact(pair: Pair, cell: str) -> None:
    """Prompts that come again have their attention's blocks on D, and no state at the end of these: it comes from P."""
    if cell != "again":
        assert pair.run(cell) == []
        return
    assert pair.run("chunked") == []
    before = [hits(node) for node in (pair.prefill, pair.decode)]

    assert pair.run("chunked") == []

    more = [hits(node) > earlier for node, earlier in zip((pair.prefill, pair.decode), before, strict=True)]
    assert more == [*pair.kind.cached]


@pytest.mark.exhaustive
def test_a_step_of_one_and_a_half_blocks_leaves_no_other_state(stack: Stack) -> None:
    """Chunks end with blocks: one that went on into the next would leave a state of too few tokens for the first, or end the engine on a CPU."""
    recipe = RECIPES["falcon-h1"]
    model, tokens = str(ensure("falcon-h1", recipe)), str(recipe.block_tokens * 3 // 2)
    flags = (*NODE, *recipe.flags, *caching(recipe), "--max-num-batched-tokens", tokens)
    prompt = [20, *choose_prompts(6)[-1][:1499]]
    with stack.stopping():
        node = stack.node("decode", *flags, model=model)
        node.wait_ready()
        (cold,) = answers(node.url, model, [prompt])

        (warm,) = answers(node.url, model, [prompt])

    assert warm.cached_tokens == 5 * recipe.block_tokens
    assert difference(cold, warm) == ""


def hits(node: Server) -> float:
    """How many tokens a node has found in its own prefix cache so far."""
    return node.metrics().get("vllm:prefix_cache_hits_total", 0.0)
