"""The transfers of one request with several prompts."""

import pytest

from baton.kv_connector.worker_side import prompt_batches
from baton.kv_connector.worker_side.prompt_batches import PromptBatches


def test_a_group_names_the_transfers_that_are_open() -> None:
    """And itself: the proxy may mean a transfer by it."""
    batches = PromptBatches()
    assert not batches.start("group", "a")
    assert not batches.start("group", "b")
    assert batches.start("", "c") is False
    assert not batches.start("other", "d")
    batches.end("b")
    batches.end("c")

    named, *members = batches.cancel("group")

    assert (named, members) == ("group", ["a"])
    assert batches.start("group", "e")
    assert not batches.start("other", "f")
    batches.end("a")
    batches.end("e")
    assert batches.cancel("group") == ["group"]
    assert batches.cancel("a") == ["a"]
    batches.end("d")
    batches.end("f")
    assert batches._members == {}


def test_cancels_of_long_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory is bounded; the last ones stay in it."""
    monkeypatch.setattr(prompt_batches, "REMEMBERED", 2)
    batches = PromptBatches()
    for named in ("a", "b", "c"):
        batches.cancel(named)

    assert [batches.start(named, f"of {named}") for named in ("a", "b", "c")] == [False, True, True]
