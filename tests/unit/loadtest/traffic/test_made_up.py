from collections.abc import Callable
from typing import Any

import pytest

from baton.loadtest.traffic.made_up import Making, MultiTurn, RandomPrompts, SharedPrefix, Vocabulary
from baton.loadtest.traffic.script import Source
from tests.unit.loadtest.making import making


def prompt(source: Any, index: int) -> Any:
    return next(source.script(index)).prompt


def words(messages: Any) -> list[str]:
    (message,) = messages
    assert message["role"] == "user"
    return str(message["content"]).split(" ")


def test_a_seed_and_an_index_give_the_same_prompt_again() -> None:
    """Any other seed or index another one. Ids outside the vocabulary would be refused, or be special tokens.

    A chat has as many words as tokens were asked for.
    """
    source, other = RandomPrompts(making(tokens=4000)), RandomPrompts(making(tokens=4000, seed=2))
    ids = prompt(source, 3)

    assert ids == prompt(RandomPrompts(making(tokens=4000)), 3)
    assert len({ids, prompt(source, 4), prompt(source, -1), prompt(other, 3)}) == 4
    assert (len(ids), set(ids)) == (4000, set(range(10, 50)))
    assert len(words(prompt(RandomPrompts(making(chat=True, tokens=30)), 0))) == 30
    assert len(Vocabulary(tokens_per_word=3.0).text("key", 30).split(" ")) == 10


def test_lengths_spread_evenly_around_their_middle() -> None:
    """Half a spread of 0.5 each way, input and output on their own."""
    source = RandomPrompts(making(tokens=100, output=10, spread=0.5))
    asks = [next(source.script(index)) for index in range(500)]

    assert {min(a.input_tokens for a in asks), max(a.input_tokens for a in asks)} == {50, 150}
    assert {a.output_tokens for a in asks} == set(range(5, 16))
    assert all(len(a.prompt) == a.input_tokens for a in asks)


@pytest.mark.parametrize(
    "kind", [RandomPrompts, lambda made: SharedPrefix(made, 2, 5), lambda made: MultiTurn(made, 1)]
)
def test_lengths_are_those_of_any_other_seed(kind: Callable[[Making], Source]) -> None:
    """So that runs of different seeds did the same work, and may be compared."""
    one, other = (kind(making(spread=0.5, seed=seed)) for seed in (1, 2))
    asks = [[next(source.script(index)) for index in range(20)] for source in (one, other)]

    assert len({(ask.input_tokens, ask.output_tokens) for ask in asks[0]}) > 3
    assert [(a.input_tokens, a.output_tokens) for a in asks[0]] == [(b.input_tokens, b.output_tokens) for b in asks[1]]
    assert all(a.prompt != b.prompt for a, b in zip(*asks, strict=True))


@pytest.mark.parametrize("chat", [False, True])
def test_prefixes_are_shared_in_turn_and_suffixes_are_not(chat: bool) -> None:
    """Requests 0 and 3 of three prefixes begin alike, 0 and 1 do not. Warming up fills no prefix of the run."""
    source = SharedPrefix(making(chat=chat), prefixes=3, prefix_tokens=40)
    *prompts, warm = [words(prompt(source, at)) if chat else list(prompt(source, at)) for at in (0, 1, 2, 3, -1)]

    assert all(len(each) == 60 for each in prompts)
    assert warm[:40] not in [each[:40] for each in prompts]
    assert prompts[0][:40] == prompts[3][:40] != prompts[1][:40]
    assert prompts[0][40:] != prompts[3][40:]
    assert next(source.script(0)).input_tokens == 60


def test_a_conversation_grows_by_the_answers() -> None:
    """Each turn repeats everything before it. As a completion it is one growing text, which a prefix cache can serve."""
    script = MultiTurn(making(chat=True), turns=3).script(7)
    first: Any = next(script)
    second: Any = script.send("the answer")

    assert [message["role"] for message in second.prompt] == ["user", "assistant", "user"]
    assert second.prompt[0] == first.prompt[0]
    assert second.prompt[1]["content"] == "the answer"
    assert (second.conversation, second.turn) == (7, 1)
    script.send("another")
    with pytest.raises(StopIteration):
        script.send("the last")

    script = MultiTurn(making(), turns=2).script(0)
    text = str(next(script).prompt)
    assert str(script.send(" the answer").prompt).startswith(text + " the answer\nUser: ")
