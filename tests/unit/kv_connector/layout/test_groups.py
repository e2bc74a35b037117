"""Transfers that the proxy cancels by one id."""

from baton.kv_connector.worker_side.prompt_batches import REMEMBERED, PromptBatches


def test_a_group_is_cancelled_whole() -> None:
    """Every open transfer of it, and not those of another one."""
    groups = PromptBatches()
    for group, transfer in (("g", "g1"), ("g", "g2"), ("g", "g3"), ("h", "h1"), ("", "single")):
        assert not groups.start(group, transfer)
    groups.end("g2")

    first, *members = groups.cancel("g")

    assert (first, set(members)) == ("g", {"g1", "g3"})
    assert groups.cancel("single") == ["single"]


def test_a_prompt_that_starts_too_late_is_unwanted() -> None:
    """Its group was cancelled before vLLM scheduled it."""
    groups = PromptBatches()
    groups.cancel("g")

    assert groups.start("g", "g1")
    assert not groups.start("h", "h1")


def test_nothing_is_kept_of_what_has_ended() -> None:
    """Open transfers and the last cancelled ids, no more."""
    groups = PromptBatches()
    for number in range(REMEMBERED + 10):
        groups.start(f"{number}", f"t{number}")
        groups.cancel(f"{number}")
        groups.end(f"t{number}")
        groups.end("unknown")

    assert (groups._members, groups._group_of, len(groups._cancelled)) == ({}, {}, REMEMBERED)
