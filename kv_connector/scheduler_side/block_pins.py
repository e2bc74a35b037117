"""P's block tables in groups with a window, and P's own references on what such a group would have vLLM free too early.

When a prompt has been computed, vLLM frees the blocks that no *later* token reads, before it asks whether they are
still needed. A decode node computes the prompt's last token once more, and may need one block more. So a prompt's
blocks from there on are *pinned* from its last chunk until its request's blocks are let go (I2).
"""

from collections.abc import Sequence

from baton.kv_connector.layout.groups import Group
from baton.kv_connector.layout.windows import EVERYTHING, first_read_block
from baton.kv_connector.scheduler_side.ledger import ReservationLedger

NULL = 0  # the id of vLLM's placeholder


class BlockTables:
    """Of all prompts under way. Groups without a window are none of its concern: their blocks stay."""

    def __init__(self, groups: Sequence[Group], block_tokens: int) -> None:
        self._groups = groups
        self._windows = {number: g.window for number, g in enumerate(groups) if g.window != EVERYTHING}
        self._block_tokens = block_tokens
        self._tables: dict[str, dict[int, list[int]]] = {}  # request → group → block ids, by place
        self._given: dict[str, list[int]] = {}  # request → blocks of each group so far, where places differ
        self._places_differ = any(group.is_single or group.places > 1 for group in groups)
        self.pins = ReservationLedger()

    def place(self, request_id: str, tokens: int, new_blocks: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return a prompt's new blocks, by group, as they follow on its earlier ones; a state's and a long one have their places."""
        if not self._places_differ or not new_blocks:
            return [[*blocks] for blocks in new_blocks]
        given = self._given.setdefault(request_id, [0] * len(self._groups))
        spread = []
        for number, (group, blocks) in enumerate(zip(self._groups, new_blocks, strict=True)):
            spread.append(group.spread(blocks, given[number], tokens, self._block_tokens, NULL))
            given[number] += len(blocks)
        return spread

    def extend(self, request_id: str, tokens: int, new_blocks: Sequence[Sequence[int]]) -> bool:
        """A prompt of so many tokens got more blocks, by group. Returns whether those that D may read are all there."""
        if not self._windows or not new_blocks:
            return True
        tables = self._tables.setdefault(request_id, {number: [] for number in self._windows})
        for number, table in tables.items():
            table.extend(new_blocks[number])
        return all(NULL not in read for read in self._read(request_id, tokens))

    def pin(self, request_id: str, tokens: int) -> None:
        """The last chunk is scheduled: from now on the blocks that D may read are ours too."""
        if request_id in self._tables:
            blocks = self.pins.pool.blocks
            self.pins.take(request_id, [blocks[block] for read in self._read(request_id, tokens) for block in read])

    def forget(self, request_id: str) -> None:
        """The prompt's blocks are let go, or have been taken away."""
        self._given.pop(request_id, None)
        if self._tables.pop(request_id, None) is not None:
            self.pins.release(request_id)

    def _read(self, request_id: str, tokens: int) -> list[list[int]]:
        """The blocks from the first that D reads on, by group; without the places at which a long block never stands."""
        read, last = [], -(-tokens // self._block_tokens) - 1
        for number, table in self._tables[request_id].items():
            first = first_read_block(tokens, self._windows[number], self._block_tokens)
            places = self._groups[number].places
            ends = (place for place in range(first, len(table)) if (place + 1) % places == 0 or place == last)
            read.append([table[place] for place in ends])
        return read
