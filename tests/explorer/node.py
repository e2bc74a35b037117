"""The scheduler of a node that both receives and sends KV, and the blocks of its pool that two requests share.

vLLM counts who holds a block and gives a block that is *cached* to each prompt that begins with the same tokens; one that
nothing holds stays cached until another request gets it. It caches what it computes as soon as it has scheduled it (E5),
and what it receives once the connector has reported it received. If that failed, the request lets its blocks go and
computes the prompt in others. The connector holds received blocks too, from allocation until no write can come (I3).

On node B a stream's first block is received from A; a second request begins with the same block and sends it on. On
node A the sender's prompt may be found again by the request that takes the stream's KV back.

Blocks that are free are alike, so a block that has been let go and is not cached is as good as new.
"""

from typing import Any, NamedTuple, TypeAlias

Event: TypeAlias = tuple[Any, ...]  # name, then arguments

# Blocks: of the received transfer and of what a stream computes itself, on B; that of a request's own; the sender's, on A.
RECEIVED, COMPUTED, OWN, SENT = 1, 4, 3, 5
STREAM, PEER, OTHER = "stream", "peer", "other"  # who holds a block: a request, the connector for a peer, another request


class Block(NamedTuple):
    """One block that requests share. Content: arriving, unwritten, right; none: it is free."""

    content: str = ""
    cached: bool = False
    holders: frozenset[str] = frozenset()

    def held(self, *holders: str) -> "Block":
        return self._replace(holders=self.holders | {*holders})

    def dropped(self, *holders: str) -> "Block":
        """Give references back. What is neither held nor cached is free."""
        left = self._replace(holders=self.holders - {*holders})
        return left if left.holders or left.cached else Block()


class State(NamedTuple):
    """A node's. Stream: new, waiting (for its KV), lost (will get none), again (to be scheduled), running, over."""

    blocks: dict[int, Block]
    stream: str = "new"
    problem: str = ""

    def key(self) -> tuple[Any, ...]:
        return (self.stream, self.problem, *self.blocks.values())

    def put(self, number: int, block: Block, stream: str = "", problem: str = "") -> "State":
        blocks = {**self.blocks, number: block}
        return State(blocks, stream or self.stream, self.problem or problem)

    def drop(self, holder: str, stream: str = "") -> "State":
        blocks = {number: block.dropped(holder) for number, block in self.blocks.items()}
        return State(blocks, stream or self.stream, self.problem)


class Scheduler:
    """Node B's: what happens to its blocks. A handler returns the state after an event, `None` if vLLM would not do it."""

    NUMBERS = (RECEIVED, COMPUTED)

    def initial(self) -> State:
        return State(dict.fromkeys(self.NUMBERS, Block()))

    def events(self, state: State) -> list[Event]:
        """What may happen of itself."""
        found: list[Event] = [("evict", n) for n, block in state.blocks.items() if block.cached and not block.holders]
        found += [("write", n) for n, block in state.blocks.items() if block.content == "unwritten"]
        if state.stream in ("lost", "again"):
            found += [("schedule", n) for n in self.cached(state) or [COMPUTED]]
        if state.stream == "running":
            found += [("preempt",)]
        if state.stream in ("running", "again"):
            found += [("end",)]
        return found

    def apply(self, state: State, event: Event) -> State | None:
        name, *arguments = event
        after: State | None = getattr(self, f"on_{name}")(state, *arguments)
        return after

    def at_rest(self, state: State) -> bool:
        """Whether no request is left and no block is held."""
        return state.stream in ("new", "over") and not any(block.holders for block in state.blocks.values())

    def cached(self, state: State) -> list[int]:
        """Return the blocks that a prompt is offered."""
        return [number for number, block in state.blocks.items() if block.cached]

    # --- by itself ---------------------------------------------------------------------------------------------------

    def on_schedule(self, state: State, number: int) -> State:
        """The stream is scheduled without its peer: it takes a cached block, or computes one, which is cached at once."""
        block = state.blocks[number]
        return state.put(number, block.held(STREAM) if block.cached else Block("unwritten", True, frozenset({STREAM})), "running")

    def on_write(self, state: State, number: int) -> State:
        """The device has computed the block."""
        return state.put(number, state.blocks[number]._replace(content="right"))

    def on_preempt(self, state: State) -> State:
        return state.drop(STREAM, "again")

    def on_end(self, state: State) -> State:
        return state.drop(STREAM, "over")

    def on_evict(self, state: State, number: int) -> State:
        """Another request is given the block, and writes there."""
        return state.put(number, Block())

    # --- what the decode side does -----------------------------------------------------------------------------------

    def on_allocate(self, state: State, lead: int) -> State | None:  # noqa: ARG002  # the shape
        if state.stream not in ("new", "lost"):
            return None
        return state.put(RECEIVED, Block("arriving", False, frozenset({STREAM, PEER})), "waiting")

    def on_loaded(self, state: State) -> State:
        """vLLM hears that the KV is there: it caches the block, and the stream runs."""
        assert state.stream == "waiting", "only a request that waits is told"
        return state.put(RECEIVED, state.blocks[RECEIVED]._replace(content="right", cached=True), "running")

    def on_failed(self, state: State) -> State:
        """vLLM hears that it will not come."""
        return state.drop(STREAM, "again") if state.stream == "waiting" else state

    def on_lost(self, state: State) -> State:
        return state._replace(stream="lost") if state.stream == "new" else state

    def on_closed(self, state: State) -> State:
        """No peer can write any more."""
        return state.drop(PEER)

    on_leave = on_end

    # --- what the prefill side does, for the second request ------------------------------------------------------------

    def on_start(self, state: State, lead: int) -> State | None:
        """The second request is scheduled, on a cached block if there is one."""
        if lead == OWN:
            return None if self.cached(state) else state
        if lead not in self.cached(state):
            return None
        block = state.blocks[lead]
        problem = ""
        if PEER in block.holders:
            problem = "I3: a request was given a block that a peer may still write to"
        elif block.content == "arriving":
            problem = "I4: a request was given a received block before its commit"
        return state.put(lead, block.held(OTHER), problem=problem)

    def on_ready(self, state: State, lead: int) -> State:
        """The device has computed the second request's step, and so every one before it."""
        if lead not in state.blocks:
            return state
        block = state.blocks[lead]
        if block.content == "unwritten":
            block = block._replace(content="right")
        problem = "" if block.content == "right" else "I2: a request computed on a block that was not its prompt's any more"
        return state.put(lead, block, problem=problem)

    def on_drop(self, state: State, lead: int) -> State:
        return state.put(lead, state.blocks[lead].dropped(OTHER)) if lead in state.blocks else state
