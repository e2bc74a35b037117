"""A decode rank that holds the secret and abuses it, beside a pair that gets on well."""

from collections import Counter

import msgspec

from baton.contracts.node_info import RegionInfo
from baton.kv_connector.protocol.messages import Body, Hello, Message
from baton.kv_connector.telemetry.refusals import Refused
from tests.unit.kv_connector.handoff.machines import PEER, D, P, Pair, hello

E = 31  # incarnation of a decode rank that is up to no good
POOL = 50  # blocks that it says it has


class Scene:
    """A pair that gets on well, and a second decode rank that knows the names of everything."""

    def __init__(self) -> None:
        self.pair = Pair()
        self.refused: list[Refused] = []
        self.pair.p._count = self.pair.d._count = self.refused.append
        self.pair.watch()
        self.says(greeting())
        self.refused.clear()

    def says(self, body: Body, sender: int = E) -> list[Body]:
        """The second rank says something; returns what it is answered."""
        self.pair.talk()
        self.pair.sequence += 1
        receiver = 0 if isinstance(body, Hello) else P
        self.pair.p.receive("its route", Message(sender, receiver, self.pair.sequence, body), self.pair.now)
        answers = [message.body for route, message in self.pair.p.outbox if route == "its route"]
        self.pair.p.outbox = [item for item in self.pair.p.outbox if item[0] != "its route"]
        return answers

    def slips_in(self, body: Body) -> None:
        """P tells the good rank something that it would not say by itself."""
        self.pair.d.receive(PEER, self.pair.p.sessions[D].stamp(body), self.pair.now)

    def counts(self) -> Counter[Refused]:
        return Counter(self.refused)

    def ends_well(self) -> bool:
        """Whether the good transfer arrives."""
        if not self.pair.d.transfers["t"].wish:
            self.pair.reserve()
        self.pair.start()
        self.pair.write()
        self.pair.push()
        return [resolved.ok for resolved in self.pair.resolved()] == [True]


def greeting(pool: int = POOL) -> Hello:
    """An introduction with one region."""
    region = RegionInfo(name="l", layer=0, base_addr=0, block_bytes=1, stride_bytes=1, num_blocks=pool)
    return msgspec.structs.replace(hello("e"), regions=[region])
