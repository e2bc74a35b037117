"""What a decode rank makes of a commit."""

import pytest

from baton.kv_connector.protocol.messages import Commit
from tests.unit.kv_connector.handoff.machines import HASH, ready_to_push


@pytest.mark.parametrize(("tokens", "prompt_hash"), [(41, HASH), (40, b"another")])
def test_a_commit_of_another_prompt_is_not_used(tokens: int, prompt_hash: bytes) -> None:
    """I7: nothing more will be written, so the blocks come back, but the request recomputes."""
    pair = ready_to_push()

    pair.to_d(Commit(transfer_id="t", epoch=1, tokens=tokens, prompt_hash=prompt_hash))

    [resolved] = pair.resolved()
    assert resolved.reason == "the prefill node committed another prompt"
    assert pair.d.closed == ["d-t"]
