"""Recurrent layers beside speculative decoding: the states of both nodes are the same, and tokens are those of a server that drafts nothing."""

import pytest

from tests.matrix.kinds import CELLS, Kind, Pair

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

KINDS = [
    Kind("falcon-h1", drafts=(2, 2), drafter="ngram"),
    Kind("granite-4", drafts=(3, 3), drafter="ngram"),
    Kind("nemotron-h", drafts=(1, 1), drafter="ngram"),
    Kind("falcon-h1", 2, 1, divides_blocks=True, drafts=(2, 2), drafter="ngram"),
    Kind("qwen3-next", drafts=(2, 2), drafter="ngram"),
]


@pytest.mark.matrix
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("pair", KINDS, indirect=True, ids=str)
def test_states_are_exact_beside_drafts(pair: Pair, cell: str) -> None:
    """The plain server drafts nothing. With a prompt of two tokens, of which P would be asked for one, and one whose last chunk has one token."""
    before = counts(pair)

    assert pair.run(cell) == []

    drafted, accepted = (now - earlier for now, earlier in zip(counts(pair), before, strict=True))
    assert drafted > 0
    assert accepted > 0 or cell == "short" or pair.kind.model != "falcon-h1"  # of the others' drafts none may be right


def counts(pair: Pair) -> tuple[float, float]:
    """How many tokens D has drafted, placeholders among them, and how many of them were accepted."""
    metrics, name = pair.decode.metrics(), "vllm:spec_decode_num_{}_tokens_total"
    return metrics.get(name.format("draft"), 0.0), metrics.get(name.format("accepted"), 0.0)
