"""Requests for a prompt that another request of the same transfer is getting: several answers to one prompt. Pure.

vLLM makes several engine requests of one (`n`, or a prompt that stands twice in a batch) and gives all of them the same
parameters. The first one is the *owner* and receives the KV. Its siblings wait until the owner's prompt is in vLLM's
prefix cache, received or computed, and then find it there. A sibling may have a transfer too, with a first token of its
own: then it receives what the cache does not have, the prompt's last block. Without a prefix cache no sibling waits.
"""


class SharedPrompts:
    """Which requests wait for the prompt of another one, by request id."""

    def __init__(self, *, can_share: bool) -> None:
        """`can_share`: whether vLLM keeps a prefix cache."""
        self._can_share = can_share
        self._owner_of: dict[str, str] = {}
        self._busy: dict[str, int] = {}  # owner whose prompt is not cached yet → tokens of the prompt
        self.total = 0

    def own(self, request_id: str, prompt_tokens: int, *, after: str | None = None) -> None:
        """A request is the first one of its transfer; `after`: one that gets the same prompt with another transfer."""
        self._busy[request_id] = prompt_tokens
        if after is not None:
            self.join(request_id, after)

    def join(self, request_id: str, owner: str) -> None:
        self.total += 1
        if self._can_share and owner in self._busy:
            self._owner_of[request_id] = owner

    def must_wait(self, request_id: str) -> bool:
        """Whether a request had better not begin yet. Bounded by its owner's life."""
        return self._owner_of.get(request_id) in self._busy

    def scheduled(self, request_id: str, computed_tokens: int) -> None:
        """A request's first tokens, so many, will have been computed and cached when the step has run."""
        if computed_tokens >= self._busy.get(request_id, computed_tokens + 1):
            del self._busy[request_id]

    def end(self, request_id: str) -> None:
        self._busy.pop(request_id, None)
        self._owner_of.pop(request_id, None)
