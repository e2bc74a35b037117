import asyncio
from dataclasses import dataclass, field


@dataclass(slots=True)
class Fabric:
    """What the nodes of one test share in place of KV: which transfers were computed."""

    computed: dict[str, asyncio.Event] = field(default_factory=dict)
    failed: dict[str, asyncio.Event] = field(default_factory=dict)  # transfers that were cancelled at their source
    lost: asyncio.Event = field(default_factory=asyncio.Event)  # a node has died

    def event(self, transfer_id: str) -> asyncio.Event:
        return self.computed.setdefault(transfer_id, asyncio.Event())

    def failure(self, transfer_id: str) -> asyncio.Event:
        return self.failed.setdefault(transfer_id, asyncio.Event())

    async def settled(self, transfer_id: str) -> bool:
        """Wait until a transfer has ended; return whether its KV has come."""
        ends = self.event(transfer_id), self.failure(transfer_id), self.lost
        waits = [asyncio.create_task(end.wait()) for end in ends]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return ends[0].is_set()
