"""What datasets of tests are made of."""

from baton.loadtest.traffic.made_up import Lengths, Making, Vocabulary


def making(*, chat: bool = False, seed: int = 1, tokens: int = 20, output: int = 5, spread: float = 0.0) -> Making:
    lengths = Lengths(input_tokens=tokens, output_tokens=output, spread=spread)
    return Making(seed=seed, chat=chat, lengths=lengths, vocabulary=Vocabulary(low=10, high=50))
