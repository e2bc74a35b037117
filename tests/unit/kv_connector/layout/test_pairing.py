"""Layouts of two ranks, compared: copied as planned, every byte is where its token, head and layer belong."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import pytest
from msgspec.structs import replace

from baton.kv_connector.errors import BlockOutOfRange, LayoutError
from baton.kv_connector.layout import pairing
from baton.kv_connector.layout.copy_plan import plan_units
from baton.kv_connector.layout.pairing import Side, pair, shares_of
from baton.kv_connector.layout.regions import Region, Sections
from baton.kv_connector.layout.tp_mapping import heads_of
from baton.kv_connector.protocol.messages import Rank

TRANSPOSED: Sections = ((3, 1), (1, 3))  # as a CPU kernel packs it: a row per dimension of K, a row per token of V
IN_ORDER: Sections = ((1, 6),)
POOL = 12
TOKENS = 48  # of the prompt


@dataclass(frozen=True, kw_only=True)
class Rig:
    """How a node keeps the KV of one region."""

    heads: int
    tp_size: int
    block_tokens: int
    kernel_blocks: int = 1
    sections: Sections = IN_ORDER
    gap: int = 0

    def side(self, tp: int, names: Sequence[str] = ("l0",), pp: int = 0, pp_size: int = 1) -> Side:
        mine = len(heads_of(self.heads, self.tp_size, tp))
        token_bytes = sum(count * size for count, size in self.sections)
        block_bytes = self.block_tokens * mine * token_bytes
        stride = block_bytes + self.gap
        regions = [
            Region(
                name=name,
                layer=i,
                base_addr=i * POOL * stride,
                block_bytes=block_bytes,
                stride_bytes=stride,
                num_blocks=POOL,
                kernel_blocks=self.kernel_blocks,
                heads=mine,
                total_heads=self.heads,
                sections=self.sections,
            )
            for i, name in enumerate(names)
        ]
        return Side(Rank(tp=tp, tp_size=self.tp_size, pp=pp, pp_size=pp_size), regions, self.block_tokens)

    def fill(self, tp: int, blocks: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """Address → which byte of which token of which head lies there, for a prompt in these blocks."""
        (region,) = self.side(tp).regions
        kernel_tokens = self.block_tokens // self.kernel_blocks
        slab = region.block_bytes // self.kernel_blocks // region.heads
        first = heads_of(self.heads, self.tp_size, tp).start
        found: dict[int, tuple[int, ...]] = {}
        for token, head in product(range(TOKENS), range(region.heads)):
            block, within = divmod(token, self.block_tokens)
            kernel, within = divmod(within, kernel_tokens)
            at = region.base_addr + blocks[block] * region.stride_bytes + (kernel * region.heads + head) * slab
            section = 0
            for count, size in self.sections:
                for _ in range(count):
                    for byte in range(size):
                        found[at + within * size + byte] = (token, head + first, section, byte)
                    at += kernel_tokens * size
                    section += 1
        return found


def blocks_for(rig: Rig, seed: int) -> list[int]:
    return random.Random(seed).sample(range(POOL), -(-TOKENS // rig.block_tokens))


def arrive(prefill: Rig, decode: Rig, tp: int, from_token: int = 0) -> dict[int, tuple[int, ...]]:
    """Push everything that one D rank wants from all P ranks; returns what lies where on D."""
    sources, targets = blocks_for(prefill, 1), blocks_for(decode, 2)
    arrived: dict[int, tuple[int, ...]] = {}
    for other in range(prefill.tp_size):
        found = pair(prefill.side(other), decode.side(tp))
        unit = found.unit_tokens
        units = range(from_token // unit, -(-TOKENS // unit))
        per_src, per_dst = prefill.block_tokens // unit, decode.block_tokens // unit
        there = prefill.fill(other, sources)
        plan = plan_units(
            found.regions,
            [sources[i // per_src] for i in units],
            [targets[i // per_dst] for i in units],
            [i % max(per_src, per_dst) for i in units],
        )
        assert plan.total_bytes == sum(copy.length for copy in plan)
        for src, dst, length in plan:
            for i in range(length):
                assert dst + i not in arrived, "written twice"
                arrived[dst + i] = there[src + i]
    return arrived


def layouts() -> Iterator[tuple[Rig, Rig]]:
    """A hundred pairs of nodes that differ in tensor-parallel size, in blocks, in both, or not at all."""
    blocks = ((8, 1), (8, 2), (16, 1), (16, 2))
    every = product((1, 2, 4), (1, 2, 4), (1, 2, 4), blocks, blocks, (IN_ORDER, TRANSPOSED))
    for heads, ptp, dtp, (pb, pk), (db, dk), sections in random.Random(3).sample(list(every), 100):
        yield (
            Rig(heads=heads, tp_size=ptp, block_tokens=pb, kernel_blocks=pk, sections=sections, gap=5),
            Rig(heads=heads, tp_size=dtp, block_tokens=db, kernel_blocks=dk, sections=sections),
        )


def test_every_byte_arrives_where_its_token_and_head_belong() -> None:
    """Whatever the two sides' sizes: complete, nothing twice, nothing in another's place."""
    for prefill, decode in layouts():
        for tp in range(decode.tp_size):
            expected = decode.fill(tp, blocks_for(decode, 2))
            assert arrive(prefill, decode, tp) == expected, (prefill, decode, tp)


def test_a_prefix_that_d_has_is_left_out_whatever_the_block_sizes() -> None:
    """The first wanted token lies within a block of P's."""
    prefill, decode = Rig(heads=2, tp_size=1, block_tokens=16), Rig(heads=2, tp_size=1, block_tokens=8)

    arrived = arrive(prefill, decode, 0, from_token=24)

    expected = decode.fill(0, blocks_for(decode, 2))
    assert arrived == {at: what for at, what in expected.items() if what[0] >= 24}


@pytest.mark.parametrize("block_tokens", [1, 8])
def test_equal_layouts_travel_as_whole_blocks(block_tokens: int) -> None:
    """Where nothing differs there is one copy for a run of blocks."""
    rig = Rig(heads=2, tp_size=1, block_tokens=block_tokens)
    found = pair(rig.side(0), rig.side(0))

    plan = plan_units(found.regions, [3, 4, 5], [7, 8, 9], [0, 0, 0])

    assert found.whole
    assert not pair(rig.side(0), Rig(heads=2, tp_size=2, block_tokens=block_tokens).side(0)).whole
    assert len(plan) == 1


@pytest.mark.parametrize(("source", "target"), [(POOL, 0), (-1, 0), (0, POOL), (0, -1)])
@pytest.mark.parametrize("block_tokens", [8, 16])
def test_no_unit_lies_outside_of_its_pool(source: int, target: int, block_tokens: int) -> None:
    """On neither side, whether whole blocks travel or parts of them: memory beside the pool would be read or written."""
    found = pair(
        Rig(heads=2, tp_size=1, block_tokens=8).side(0), Rig(heads=2, tp_size=1, block_tokens=block_tokens).side(0)
    )

    with pytest.raises(BlockOutOfRange):
        plan_units(found.regions, [0, source], [0, target], [0, 0])


def test_shares_add_up_to_everything_that_a_rank_has() -> None:
    """Over all P ranks, stages included: what a commit counts is complete exactly then (I4)."""
    prefill, decode = Rig(heads=4, tp_size=2, block_tokens=8), Rig(heads=4, tp_size=4, block_tokens=8)
    wanted = decode.side(3, ["l0", "l1", "l2"])
    stages = [["l0", "l1"], ["l2"]]

    shares = [
        pair(prefill.side(tp, names, pp=pp, pp_size=2), wanted).shares
        for pp, names in enumerate(stages)
        for tp in range(2)
    ]

    assert sum(shares) == shares_of(wanted, 2) == 3
    assert shares == [0, 2, 0, 1]


def test_stages_without_a_common_layer_have_nothing_to_push() -> None:
    """That is no error: other stages have those layers."""
    rig = Rig(heads=2, tp_size=1, block_tokens=8)

    found = pair(rig.side(0, ["l0"], pp=0, pp_size=2), rig.side(0, ["l1"], pp=1, pp_size=2))

    assert (found.shares, found.layers) == (0, ())


def test_ranks_that_cannot_divide_a_block_meet_their_equals() -> None:
    """Between equal sizes a layout that is not understood is good enough."""
    rig = Rig(heads=4, tp_size=2, block_tokens=8)
    opaque = [side._replace(regions=[replace(side.regions[0], total_heads=0)]) for side in map(rig.side, range(2))]

    assert [pair(opaque[0], other).shares for other in opaque] == [1, 0]


def changed(rig: Rig, **changes: object) -> Side:
    """One rank whose region says something else."""
    side = rig.side(0)
    return side._replace(regions=[replace(side.regions[0], **changes)])


PLAIN = Rig(heads=2, tp_size=1, block_tokens=8)
SMALL = Rig(heads=2, tp_size=1, block_tokens=4)
MANY = Rig(heads=8192, tp_size=1, block_tokens=64)


def staged(side: Side) -> Side:
    """The same rank, as the first of two pipeline stages."""
    return side._replace(rank=Rank(pp_size=2))


@pytest.mark.parametrize(
    ("prefill", "decode", "words"),
    [
        (PLAIN.side(0), PLAIN.side(0, ["l0", "l1"]), "1 KV regions in the prefill rank, 2 in the decode rank"),
        (PLAIN.side(0), PLAIN.side(0, ["l9"]), "'l0' of the prefill rank is unknown"),
        (PLAIN.side(0), staged(PLAIN.side(0, ["l9"])), "'l9' of the decode rank is unknown"),
        (staged(PLAIN.side(0, ["l9"])), PLAIN.side(0), "'l9' of the prefill rank is unknown"),
        (PLAIN.side(0), changed(PLAIN, total_heads=4), "2 KV heads in all in the prefill rank, 4"),
        (PLAIN.side(0), changed(PLAIN, heads=1), "1 KV heads in a rank of 1, 2 would be its part of 2"),
        (PLAIN.side(0), changed(PLAIN, block_bytes=48, stride_bytes=96), "48 B .* in the prefill rank, 24"),
        (
            changed(PLAIN, total_heads=0),
            changed(Rig(heads=2, tp_size=2, block_tokens=8), total_heads=0),
            "tensor-parallel sizes 1 and 2 need a KV layout .* VLLM_KV_CACHE_LAYOUT=HND",
        ),
        (changed(PLAIN, sections=()), SMALL.side(0), "blocks of 8 and 4 tokens .* same --block-size"),
        (PLAIN.side(0), changed(SMALL, sections=((2, 3),)), "B for a token of a head"),
        (PLAIN.side(0), Rig(heads=2, tp_size=1, block_tokens=12).side(0), "8 tokens in a kernel block .* 12"),
        (PLAIN.side(0), Rig(heads=2, tp_size=1, block_tokens=8 * 65).side(0), "8 tokens in a block .* 520"),
        (PLAIN.side(0)._replace(rank=Rank(tp=2, tp_size=2)), PLAIN.side(0), "is no rank of any grid"),
        (PLAIN.side(0)._replace(rank=Rank(tp_size=3)), PLAIN.side(0), "2 KV heads cannot be divided among 3 ranks"),
        (MANY.side(0), Rig(heads=8192, tp_size=1, block_tokens=4).side(0), "131072 pieces in each block are too many"),
        (changed(PLAIN, window=9), PLAIN.side(0), "9 tokens in the attention window in the prefill rank, 0"),
        (changed(PLAIN, window=9), changed(SMALL, window=9), "8 tokens in a block of a layer with a window, .* 4"),
        (changed(PLAIN, places=2), PLAIN.side(0), "2 scheduler blocks in a block in the prefill rank, 1"),
        (
            changed(PLAIN, places=2),
            changed(SMALL, places=2),
            "8 tokens in a block of a layer with a window, long blocks",
        ),
        (PLAIN.side(0)._replace(block_tokens=0), PLAIN.side(0), "a block of 0 tokens cannot have 1 parts"),
    ],
)
def test_what_cannot_be_mapped_is_refused_with_both_values(prefill: Side, decode: Side, words: str) -> None:
    """Before any byte moves; the sentence says what to change."""
    with pytest.raises(LayoutError, match=words):
        pair(prefill, decode)


def test_a_block_may_have_as_many_pieces_as_are_bearable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two heads, whose tokens come in two pieces."""
    monkeypatch.setattr(pairing, "MAX_PIECES", 4)

    assert len(pair(PLAIN.side(0), SMALL.side(0)).regions) == 1


def test_a_block_may_be_64_times_as_long_as_the_other_sides() -> None:
    """Not longer: see above."""
    longest = Rig(heads=2, tp_size=1, block_tokens=64 * PLAIN.block_tokens)

    assert len(pair(PLAIN.side(0), longest.side(0)).regions[0].strips) == 64


def test_a_long_block_is_divided_into_kernel_blocks_by_its_own_length() -> None:
    """Three times a scheduler block's eight tokens, in kernel blocks of eight."""
    long = changed(PLAIN, places=3, kernel_blocks=3, block_bytes=3 * 96, stride_bytes=3 * 96)

    assert pair(long, long).whole


def test_layers_share_one_list_of_pieces() -> None:
    """A model of a hundred layers is compared as fast as one of one layer."""
    names = ["l0", "l1"]

    first, second = pair(PLAIN.side(0, names), SMALL.side(0, names)).regions

    assert first.strips is second.strips


def drafting(drafter: str, tp_size: int = 1, **changes: object) -> Side:
    """A rank with one layer of the target and one of a drafter."""
    side = Rig(heads=2, tp_size=tp_size, block_tokens=16).side(0, ("l0", "draft"))
    target, draft = side.regions
    return side._replace(regions=[target, replace(draft, drafter=drafter, **changes)])


def test_a_drafters_layers_travel_to_the_same_drafter_and_count_for_nothing() -> None:
    """D resumes on the target's layers alone, and compares those alone."""
    prefill, decode = drafting("small", base_addr=1 << 20), drafting("small")

    made = pair(prefill, decode)

    assert [one.src for one in made.regions] == prefill.regions
    assert [one.dst for one in made.regions] == decode.regions
    assert [one.src.name for one in made.of_target] == ["l0"]
    assert made.layers == (0, 1)
    assert made.of_layer(1) == [made.regions[1]]
    assert made.shares == shares_of(drafting("small"), 1) == 2


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        (drafting("small"), Rig(heads=2, tp_size=1, block_tokens=16).side(0)),
        (Rig(heads=2, tp_size=1, block_tokens=16).side(0), drafting("small")),
        (drafting("small"), drafting("other")),
        (drafting("small"), drafting("small", total_heads=4)),
    ],
    ids=["only P drafts", "only D drafts", "different drafters", "it cannot be mapped"],
)
def test_a_drafters_layers_stay_where_they_are_of_no_use(prefill: Side, decode: Side) -> None:
    """The target's layers travel all the same."""
    made = pair(prefill, decode)

    assert [one.src.name for one in made.regions] == ["l0"]
    assert made.shares == shares_of(decode, 1) == 2
