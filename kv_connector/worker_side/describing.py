"""What the node API shows of a decode rank's transfers, sessions and receiving engines."""

from itertools import islice
from typing import Any

from baton.kv_connector.handoff.consumer import Consumer
from baton.kv_connector.layout.tp_mapping import named

MAX_DESCRIBED = 1_000  # transfers in a snapshot: it is made under the lock that the model thread needs


def describe(consumer: Consumer, now: float) -> dict[str, Any]:
    """Return its state as of `now` (s, monotonic). The caller holds the lock of the machine."""
    return {
        "transfers": [
            named(transfer.transfer_id)
            | {
                "state": transfer.phase.name.lower(),
                "age_s": round(now - transfer.since, 3),
                "epoch": transfer.epoch,
                "blocks": transfer.num_blocks,
                "peer": transfer.peer,
            }
            for transfer in islice(consumer.transfers.values(), MAX_DESCRIBED)
        ],
        "open_transfers": len(consumer.transfers),
        "sessions": [
            {
                "peer": peer,
                "state": session.state.name.lower(),
                "reason": session.reason,
                "silent_s": round(session.silent_for(now), 3),
            }
            for peer, session in consumer.sessions.items()
        ],
        "engines": {
            "current": list(consumer.domains.current.values()),
            "retired": list(consumer.domains.retired),
        },
        "quarantined_blocks": consumer.quarantined_blocks(),
    }
