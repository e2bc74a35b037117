"""Both scheduler sides with a window and several groups: what is pinned, what is reserved, what is asked for."""

from collections.abc import Sequence
from typing import Any

import pytest

from baton.kv_connector.handoff.metadata import DecodeReport
from baton.kv_connector.handoff.outgoing import Progress
from baton.kv_connector.layout.groups import Group
from baton.kv_connector.scheduler_side.decode import DecodeScheduler
from baton.kv_connector.scheduler_side.prefill import PrefillScheduler
from tests.unit.kv_connector.scheduler_fakes import BLOCK_TOKENS, SECRET, FakePool, MakeDecode, request, step_output

GROUPS = (Group(), Group(window=33))  # of blocks of 16 tokens
TOKENS = 80  # the last token reads from 47 on, the last one of block 2


class Prefill:
    """A prefill node's scheduler side that computes a prompt in two chunks."""

    def __init__(self, null_in: tuple[int, ...] = (), groups: Sequence[Group] = GROUPS, first_blocks: int = 3) -> None:
        self.pool = FakePool(33)
        self.side = PrefillScheduler(SECRET, BLOCK_TOKENS, groups=groups)
        self.side.bind_pool(self.pool)
        self.compute(null_in, first_blocks)

    def compute(self, null_in: tuple[int, ...] = (), first_blocks: int = 3) -> None:
        self.request = request("prefill", TOKENS)
        self.side.add_request(self.request)
        table = [0 if place in null_in else 11 + place for place in range(5)]
        self.first = self.side.take_step(step_output(new=[("r1", ([1, 2, 3], table[:first_blocks]), 0, 48)]))
        self.last = self.side.take_step(step_output(cached=[("r1", ([4, 5], table[first_blocks:]), 48, 32)]))

    def pinned(self) -> list[int]:
        """Blocks with a reference of ours."""
        return [block.block_id for block in self.pool.blocks if block.ref_cnt]


def test_what_a_window_would_free_at_the_end_is_pinned_until_it_has_been_sent() -> None:
    """I2: vLLM frees block 2 of the second group when the request ends, before it asks whether that is needed."""
    made = Prefill()

    assert made.first.progress == [Progress("r1", [[1, 2, 3], [11, 12, 13]], 3)]
    assert made.last.progress == [Progress("r1", [[4, 5], [14, 15]], 5)]
    assert made.pinned() == [13, 14, 15]
    assert made.side.finish_request(made.request, aborted=False)
    assert made.pinned() == [13, 14, 15]
    made.side.update({"r1"})
    assert made.pinned() == []


LONG = (Group(), Group(window=33, places=2))  # of blocks of 16 and of 32 tokens


def test_long_blocks_of_a_later_chunk_follow_on_the_earlier_ones() -> None:
    made = Prefill(groups=LONG, first_blocks=2)

    assert made.first.progress == [Progress("r1", [[1, 2, 3], [0, 11, 0, 12]], 3)]
    assert made.last.progress == [Progress("r1", [[4, 5], [13]], 5)]
    assert made.pinned() == [12, 13]


def test_long_blocks_have_their_places_and_are_pinned_by_them() -> None:
    """The last token reads from token 47 on, in the second block of 32; the third is cut off by the prompt's end."""
    made = Prefill(groups=LONG)  # its second group gets blocks 11, 12 and 13 in the first chunk, 14 and 15 in the last

    assert made.first.progress == [Progress("r1", [[1, 2, 3], [0, 11, 0, 12, 13]], 3)]
    assert made.last.progress == [Progress("r1", [[4, 5], []], 5)]
    assert made.pinned() == [12, 13]
    made.side.finish_request(made.request, aborted=False)
    made.side.update({"r1"})
    made.compute()  # again, as another prompt
    assert made.last.progress == [Progress("r1", [[4, 5], []], 5)]
    assert made.pinned() == [12, 13]
    assert Prefill(null_in=(0,), groups=LONG).first.voids == []
    assert [request_id for request_id, _ in Prefill(null_in=(0, 1), groups=LONG).first.voids] == ["r1"]


@pytest.mark.parametrize("how", ["aborted", "preempted"])
def test_a_void_prompt_is_not_pinned(how: str) -> None:
    """Another request may have its blocks at once."""
    made = Prefill()

    if how == "aborted":
        made.side.finish_request(made.request, aborted=True)
    else:
        made.side.take_step(step_output(preempted={"r1"}))

    assert made.pinned() == []


def test_a_block_that_is_gone_though_d_reads_it_voids_the_prompt() -> None:
    """Should vLLM ever free more than it says: that is a recomputed prompt, never the null block's content."""
    made = Prefill(null_in=(0, 1, 2))

    assert [request_id for request_id, _ in made.first.voids] == ["r1"]
    assert made.pinned() == []
    assert Prefill(null_in=(0, 1)).first.voids == []


class Decode:
    """A decode node's scheduler side, and what vLLM allocates for it."""

    def __init__(self, side: DecodeScheduler) -> None:
        self.side = side
        self.pool: Any = side._ledger.pool

    def admit(self, tokens: int, local: int, *places: tuple[int, int]) -> Any:
        """Allocate blocks at `[first, stop)` of each group, null blocks before; return what is reserved."""
        made = request("decode", tokens)
        self.side.add_request(made)
        missing, _ = self.side.match(made, local)
        assert missing == tokens - 1 - local
        groups = [[self.pool.blocks[0]] * first + self.pool.allocate(stop - first) for first, stop in places]
        self.side.allocated(made, groups, missing)
        (reserved,) = self.side.take_step(step_output()).reserved
        return reserved.wish


@pytest.fixture
def decode(make_decode: MakeDecode) -> Decode:
    """With 32 free blocks."""
    return Decode(make_decode(groups=GROUPS))


def test_d_asks_for_all_tokens_but_the_last(decode: Decode) -> None:
    """And reserves what vLLM allocates then, in lists of one length, with 0 for what no kernel reads."""
    wish = decode.admit(TOKENS, 0, (0, 5), (2, 5))

    assert (wish.tokens, wish.from_token) == (TOKENS, 0)
    assert wish.blocks == [[1, 2, 3, 4, 5], [0, 0, 6, 7, 8]]
    # I3: one reference each beside vLLM's, until the epoch is closed, and none on the null block
    assert [block.ref_cnt for block in decode.pool.blocks[:10]] == [0, *[2] * 8, 0]
    decode.side.update(DecodeReport(closed=["r1"]), set())
    assert [block.ref_cnt for block in decode.pool.blocks[:10]] == [0, *[1] * 8, 0]


@pytest.mark.parametrize(
    ("groups", "places", "wanted"),
    [
        (GROUPS, [(0, 5), (3, 5)], [[3, 4, 5, 0], [0, 6, 7, 0]]),
        (LONG, [(0, 6), (1, 3)], [[3, 4, 5, 6], [0, 7, 0, 8]]),  # long blocks at their places
    ],
)
def test_a_block_for_the_last_token_alone_is_not_reserved(
    make_decode: MakeDecode, groups: Sequence[Group], places: list[tuple[int, int]], wanted: list[list[int]]
) -> None:
    """VLLM allocates it when it computes that token."""
    wish = Decode(make_decode(groups=groups)).admit(TOKENS + 1, 32, *places)

    assert (wish.from_token, wish.blocks) == (32, wanted)


@pytest.mark.parametrize(("groups", "tokens", "local"), [(GROUPS, 33, 32), (LONG, TOKENS, 16)])
def test_what_d_computes_itself_is_not_asked_for(
    make_decode: MakeDecode, groups: Sequence[Group], tokens: int, local: int
) -> None:
    """The last token; and all of a prompt whose cached prefix ends within a long block, which vLLM could copy while P writes it."""
    side, made = make_decode(groups=groups), request("decode", tokens)
    side.add_request(made)

    assert side.match(made, local) == (0, False)
