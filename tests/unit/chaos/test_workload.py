from itertools import combinations

from tests.chaos.workload import BLOCK_TOKENS, MAX_PROMPT_TOKENS, draw_prompts


def test_prompts_of_a_family_share_whole_blocks() -> None:
    """So that blocks are shared between requests, and differ after that."""
    prompts = draw_prompts(1, families=3, members=4)

    for family, blocks in enumerate((1, 2, 4)):
        members = prompts[4 * family : 4 * family + 4]
        for one, other in combinations(members, 2):
            assert one[: blocks * BLOCK_TOKENS] == other[: blocks * BLOCK_TOKENS]
            assert one != other


def test_prompts_fit_and_come_again_with_the_same_seed() -> None:
    """A run can be repeated."""
    prompts = draw_prompts(1, families=6, members=8)

    assert draw_prompts(1, families=6, members=8) == prompts != draw_prompts(2, families=6, members=8)
    assert all(BLOCK_TOKENS < len(prompt) <= MAX_PROMPT_TOKENS for prompt in prompts)
