"""Reasons for people become classes for metrics."""

import pytest

from baton.kv_connector.scheduler_side.tracking import CLASSES, reason_class


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        ("refused by the prefill node: P and D do not fit: dtype", "refused"),
        ("no commit within 120 s", "timeout"),
        ("the prefill node does not answer", "peer_lost"),
        ("the prefill node restarted", "peer_lost"),
        ("a push failed", "push_failed"),
        ("the receiving engine was fenced", "fenced"),
        ("preempted", "prefill_lost"),
        ("aborted before it was scheduled", "prefill_lost"),
        ("the forward pass failed", "prefill_lost"),
        ("no decode node asked for this prompt", "prefill_lost"),
        ("the two nodes see different prompts", "mismatch"),
        ("the KV that arrived is not the KV that was sent", "mismatch"),
        ("what a peer of next year may say", "other"),
        ("", "other"),
    ],
)
def test_a_reason_has_one_class(reason: str, name: str) -> None:
    """A label has few values, whatever the sentence says in detail."""
    assert reason_class(reason) == name
    assert name in CLASSES
