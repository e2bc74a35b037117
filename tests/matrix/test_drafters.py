"""MTP drafters: tokens of one plain server without any, and drafts as good as one server's where both nodes have the drafter."""

import asyncio
from collections.abc import Sequence

import httpx
import pytest

from tests.e2e.client import complete
from tests.e2e.stack import Server, Stack
from tests.matrix.drafter_models import DRAFTING
from tests.matrix.kinds import CELLS, Kind, Pair, pair_of

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

KINDS = [
    *(Kind(model, drafts=(1, 1)) for model in DRAFTING),
    Kind("mimo-mtp", drafts=(2, 2)),
    Kind("mimo-mtp", drafts=(0, 1)),
    Kind("exaone-moe-mtp", drafts=(0, 1)),
    Kind("exaone-moe-mtp", drafts=(1, 0)),
    Kind("exaone-moe-mtp", drafts=(2, 2)),
    Kind("exaone-moe-mtp", 2, 1, divides_blocks=True, drafts=(1, 1)),
    Kind("glm4-moe-mtp", 2, 2, drafts=(1, 1)),
]
LONG_ANSWER = 160  # tokens: D's first step counts placeholders as drafts
PROMPTS_OF = (600, 900, 1300)  # tokens


@pytest.mark.matrix
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("pair", KINDS, indirect=True, ids=str)
def test_tokens_do_not_depend_on_the_drafter(pair: Pair, cell: str) -> None:
    """A plain server that drafts nothing gives the same; and digests of the target's KV are equal."""
    assert pair.run(cell) == []


def test_a_drafter_on_both_nodes_drafts_as_well_as_one_servers(stack: Stack) -> None:
    """The KV of its layers has come with the target's."""
    with pair_of(stack, Kind("mimo-mtp", drafts=(1, 1)), drafts_alone=1) as both:
        assert both.run("chunked") == []
        handed_over = accepted_length(both.decode, both.proxy, both)
        alone = accepted_length(both.plain, both.plain, both)
    print(f"accepted length: one server {alone:.3f}, handed over {handed_over:.3f}")
    assert alone > 1.5
    assert handed_over == pytest.approx(alone, rel=0.02)


@pytest.mark.matrix
def test_without_ps_drafter_fewer_drafts_are_accepted(stack: Stack) -> None:
    """The control of the test above: this drafter needs its KV of the prompt."""
    with pair_of(stack, Kind("mimo-mtp", drafts=(0, 1))) as pair:
        without = accepted_length(pair.decode, pair.proxy, pair)
    print(f"accepted length without P's drafter {without:.3f}")
    assert without < 1.5


def accepted_length(node: Server, door: Server, pair: Pair) -> float:
    """Ask for long answers; return how many tokens a step of `node` has given, on average."""
    before = _counts(node)
    prompts = [[19 - number, *pair.prompts[-1][1:length]] for number, length in enumerate(PROMPTS_OF)]
    asyncio.run(_ask(door.url, pair.model, prompts))
    drafts, tokens = (now - earlier for now, earlier in zip(_counts(node), before, strict=True))
    return 1 + tokens / drafts


async def _ask(url: str, model: str, prompts: Sequence[Sequence[int]]) -> None:
    async with httpx.AsyncClient(timeout=300) as client:
        for prompt in prompts:
            await complete(client, url, model, prompt, max_tokens=LONG_ANSWER)


def _counts(node: Server) -> tuple[float, float]:
    metrics = node.metrics()
    drafts, accepted = "vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_accepted_tokens_total"
    return metrics.get(drafts, 0.0), metrics.get(accepted, 0.0)
