import pytest

from tests.chaos.phases import OnDecode, OnPrefill, Phase, View, phase_of

COLUMN_BYTES = 800  # 8 layers of 100


def view(prefill: str, decode: str, pushed_bytes: int = 0) -> View:
    """What the nodes say; "" for a node that says nothing."""
    return View(
        transfer_id="t",
        prefill=OnPrefill(node="p0", state=prefill, pushed_bytes=pushed_bytes) if prefill else None,
        decode=OnDecode(node="d0", state=decode) if decode else None,
    )


@pytest.mark.parametrize(
    ("prefill", "decode", "pushed_bytes", "phase"),
    [
        ("queued", "waiting", 0, Phase.QUEUED),
        ("queued", "reserved", 0, Phase.WAITING),
        ("running", "waiting", 0, Phase.BETWEEN_CHUNKS),
        ("running", "reserved", 1600, Phase.BETWEEN_CHUNKS),
        ("running", "reserved", 1500, Phase.BETWEEN_LAYERS),
        ("complete", "reserved", 1600, Phase.WAITING),
        ("held", "reserved", 1500, Phase.WAITING),
        ("complete", "waiting", 0, Phase.FINISHED),
        ("held", "waiting", 0, Phase.FINISHED),
    ],
)
def test_both_ledgers_name_the_phase(prefill: str, decode: str, pushed_bytes: int, phase: Phase) -> None:
    """A phase follows from what both nodes say."""
    assert phase_of(view(prefill, decode, pushed_bytes), COLUMN_BYTES) is phase


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [("", "waiting"), ("queued", ""), ("held", ""), ("void", "reserved"), ("running", "settled"), ("", "settled")],
)
def test_what_is_not_known_is_no_phase(prefill: str, decode: str) -> None:
    """Where one side is silent, or the KV has arrived, nothing is claimed."""
    assert phase_of(view(prefill, decode), COLUMN_BYTES) is None
