"""What a decode node's scheduler side shows of its transfers."""

from typing import Any

from baton.kv_connector.handoff.metadata import DecodeReport
from tests.unit.kv_connector.scheduler_fakes import BLOCK_TOKENS, PEER, MakeDecode, request


def test_each_transfer_is_shown_as_it_stands(make_decode: MakeDecode) -> None:
    """Its blocks are held until its peer can write to them no more."""
    side = make_decode()
    pool: Any = side._ledger.pool
    shown = []

    def look() -> None:
        said = side.snapshot()
        (transfer,) = said["transfers"]
        assert transfer.pop("age_s") >= 0
        shown.append(
            (transfer.pop("state"), transfer.pop("blocks_held"), said["reservations"], said["reserved_blocks"])
        )
        assert transfer == {"request_id": "r1", "transfer_id": "a" * 32, "role": "decode", "peer": PEER}
        assert said["block_size"] == BLOCK_TOKENS

    side.add_request(req := request("decode", 40))
    look()
    assert side.match(req, 0) == (40, True)
    side.allocated(req, [pool.allocate(3)], 40)
    look()
    side.update(DecodeReport(), {"r1"})
    look()
    side.update(DecodeReport(closed=["r1"]), set())
    look()

    assert shown == [("waiting", 0, 0, 0), ("reserved", 3, 1, 3), ("settled", 3, 1, 3), ("settled", 0, 0, 0)]
