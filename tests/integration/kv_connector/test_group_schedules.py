"""Windows and groups on a late device: what D reads is what P's kernels wrote, whatever is recycled meanwhile."""

from collections import Counter

import pytest

from tests.support.async_schedules.group_world import LAYOUTS, GroupWorld, plan_of

SCHEDULES = 100


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_the_last_token_reads_is_what_the_kernels_wrote(name: str) -> None:
    """1,500 tokens in chunks of 512, blocks recycled within a prompt, prefix hits on either node, preemptions."""
    seen = Counter[str]()
    for seed in range(SCHEDULES):
        world = GroupWorld(LAYOUTS[name], plan_of(seed), seed)
        assert not (problem := world.run()), f"seed {seed}: {problem}"
        seen += world.traffic.seen + world.decode_side.seen

    assert not {"hit on P", "hit on D", "freed at the end", "preempted"} - seen.keys()
    assert name == "Mistral" or seen["recycled within a prompt"]
