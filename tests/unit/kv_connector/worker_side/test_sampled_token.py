"""Which token of a step's output is a request's, and what is sent of it."""

from types import SimpleNamespace
from typing import Any

import pytest

from baton.kv_connector.protocol.messages import MAX_TOKEN, SampledToken
from baton.kv_connector.worker_side.sampled_token import has_token, sampled_token


class Logprobs:
    """Of two requests; each row has the token itself and then the best."""

    IDS = ([5, 6, 7], [8, 9, 10])
    VALUES = ([-0.5, -1.0, -1.5], [-2.0, -0.25, -3.0])
    RANKS = (0, 2)

    def slice_request(self, row: int, count: int) -> SimpleNamespace:
        rows = slice(row, row + count)
        return SimpleNamespace(
            logprob_token_ids=self.IDS[rows], logprobs=self.VALUES[rows], sampled_token_ranks=self.RANKS[rows]
        )


def output(*tokens: list[int], logprobs: Any = None) -> Any:
    return SimpleNamespace(req_id_to_index={"a": 0, "b": 1}, sampled_token_ids=[*tokens], logprobs=logprobs)


@pytest.mark.parametrize(
    ("tokens", "found"),
    [(([5], [8]), True), (([5], []), False), ((), False)],
    ids=["sampled", "a chunk that is not the last", "a step that samples nothing"],
)
def test_a_request_has_a_token_when_its_row_has_one(tokens: tuple[list[int], ...], found: bool) -> None:
    """A request that is not in the output has none."""
    assert has_token(output(*tokens), "b") is found
    assert not has_token(output([5], [8]), "elsewhere")


@pytest.mark.parametrize(
    ("logprobs", "token"),
    [
        (0, SampledToken(id=8)),
        (1, SampledToken(id=8, logprob_ids=(8,), logprobs=(-2.0,), rank=2)),
        (2, SampledToken(id=8, logprob_ids=(8, 9), logprobs=(-2.0, -0.25), rank=2)),
    ],
)
def test_the_first_token_goes_with_the_logprobs_that_are_wanted(logprobs: int, token: SampledToken) -> None:
    """Of the request's own row, and no more of them."""
    found = output([5], [8, 9], logprobs=Logprobs())
    assert sampled_token(found, "b", logprobs) == token
    other = sampled_token(found, "a", logprobs)
    assert other is not None
    assert (other.id, other.logprobs, other.rank) == (5, (-0.5, -1.0)[:logprobs], 0)


def test_a_token_without_the_logprobs_that_are_wanted_is_not_sent() -> None:
    """D samples it again."""
    assert sampled_token(output([5], [8]), "b", 1) is None


@pytest.mark.parametrize(("token", "is_sent"), [(0, True), (MAX_TOKEN, True), (-1, False), (MAX_TOKEN + 1, False)])
def test_a_number_that_the_protocol_does_not_know_is_not_sent(token: int, is_sent: bool) -> None:
    """A peer would refuse the commit."""
    assert (sampled_token(output([5], [token]), "b", 0) == SampledToken(id=token)) is is_sent
