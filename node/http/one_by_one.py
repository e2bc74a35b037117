"""Outputs of a request that starts with tokens, or ends with its first one, handed to vLLM's server one after the other.

vLLM makes one output of those that its server has not read yet. Some parsers of thoughts and tool calls read another
text from several tokens at once than from each by itself; and the client has what they read from each by itself.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from vllm.v1.engine.output_processor import RequestOutputCollector


class OneByOne(RequestOutputCollector):
    """A collector that merges no outputs."""

    _later: deque[Any]
    _taken: Callable[[Any], None]  # is told of each output that the server takes

    def put(self, output: Any) -> None:
        """Take in an output; an error passes all others."""
        if self.output is None or isinstance(output, Exception):
            super().put(output)
        else:
            self._later.append(output)

    async def get(self) -> Any:
        output = await super().get()
        self._advance()
        self._taken(output)
        return output

    def get_nowait(self) -> Any:
        output = super().get_nowait()
        self._advance()
        if output is not None:
            self._taken(output)
        return output

    def _advance(self) -> None:
        if self._later and self.output is None:
            super().put(self._later.popleft())


def merge_nothing(queue: RequestOutputCollector, taken: Callable[[Any], None]) -> None:
    """Have a queue that vLLM has made hand out each output by itself; `taken` is told of each."""
    if not isinstance(queue, OneByOne):
        queue._later = deque()
        queue._taken = taken
        queue.__class__ = OneByOne
