"""Why a transfer came to nothing, in few enough words for a metric's label. Pure.

Reasons are sentences for people, some of them P's; a label needs a small, fixed set. What is not recognised, as from a
newer peer, is "other".
"""

from typing import Final

OTHER: Final = "other"
_PHRASES: Final = (
    ("refused", ("refused",)),
    ("timeout", ("no commit within", "not verified within", "had not started it")),
    ("peer_lost", ("does not answer", "restarted", "fell silent")),
    ("push_failed", ("a push failed",)),
    ("fenced", ("engine was fenced",)),
    (
        "prefill_lost",
        ("preempted", "aborted", "forward pass failed", "device failed", "no decode node asked", "stood still"),
    ),
    ("mismatch", ("different prompts", "does not fit the prompt", "another prompt", "not the KV that was sent")),
    ("ranks", ("the proxy takes this node for", "the proxy names", "prefill ranks pushed", "divides this rank's KV")),
)
CLASSES: Final = (*(name for name, _ in _PHRASES), OTHER)


def reason_class(reason: str) -> str:
    return next((name for name, phrases in _PHRASES if any(phrase in reason for phrase in phrases)), OTHER)
