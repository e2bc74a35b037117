"""Taking what a state machine has produced."""

from typing import TypeVar

T = TypeVar("T")


def take_outputs(output: list[T]) -> list[T]:
    """Empty an output list and return what was in it.

    Emptied before anything is done with it: were it emptied afterwards, an exception halfway would have the same
    outputs acted on again, and vLLM dies of a request that is reported finished twice.
    """
    taken = output.copy()
    output.clear()
    return taken
