"""A producer and a consumer on one table, with a network between them that does what a test says."""

from collections.abc import Callable
from typing import Any

from baton.contracts.configuration.schema import TransferConfig
from baton.kv_connector.handoff.consumer import Consumer
from baton.kv_connector.handoff.incoming import BlockReservation, Resolved
from baton.kv_connector.handoff.outgoing import Prompt, Push
from baton.kv_connector.handoff.producer import Producer
from baton.kv_connector.handoff.pushing import TransferLayout
from baton.kv_connector.protocol.messages import Body, Commit, Fail, Hello, Message, Rank, Reserve
from tests.support.described import fingerprint

P, D = 11, 21  # incarnations
PEER = "tcp://p:1"
SETTINGS = TransferConfig()
HASH = b"prompt"
PROMPT = Prompt(tokens=40, blocks=3, prompt_hash=HASH)
WISH = BlockReservation(tokens=40, from_token=0, blocks=[[4, 5, 6]], prompt_hash=HASH)


def hello(node: str = "p") -> Hello:
    return Hello(node=node, rank=Rank(), fingerprint=fingerprint(), regions=[])


def reservation(
    name: str = "t", *, epoch: int = 1, engine: str = "e", blocks: list[list[int]] | None = None
) -> Reserve:
    """What a decode rank asks for that has blocks for the whole prompt."""
    return Reserve(
        transfer_id=name,
        epoch=epoch,
        engine=engine,
        tokens=40,
        from_token=0,
        blocks=[[1, 2, 3]] if blocks is None else blocks,
        prompt_hash=HASH,
    )


def make_producer(incarnation: int = P, refuse: str = "", **changes: Any) -> Producer:
    """Make a producer of two layers that judges every introduction with `refuse`."""
    layers = changes.get("layers", 2)
    usual: dict[str, Any] = {
        "layers": layers,
        "block_tokens": 16,
        "settings": SETTINGS,
        "hello": hello,
        "check_compatible": lambda _: refuse,
        "terms": lambda _: TransferLayout(range(layers), regions=range(layers)),
        "verify": lambda _: False,
        "refused": lambda _: None,
    }
    return Producer(incarnation=incarnation, **(usual | changes))


def make_consumer(incarnation: int = D, refuse: str = "", pool_blocks: int = 100) -> Consumer:
    """Make a consumer with one engine, e0."""
    consumer = Consumer(
        incarnation=incarnation,
        domains=1,
        settings=SETTINGS,
        pool_blocks=pool_blocks,
        hello=lambda: hello("d"),
        check_compatible=lambda _: refuse,
        refused=lambda _: None,
    )
    consumer.engine_added(0, "e0")
    return consumer


class Pair:
    """One P, one D, and the mail between them, delivered in order by `talk`."""

    def __init__(self, producer: Producer | None = None, consumer: Consumer | None = None) -> None:
        self.p = producer or make_producer()
        self.d = consumer or make_consumer()
        self.now = 0.0
        self.loses: Callable[[Body], bool] = lambda _: False
        self.heard: list[Body] = []  # everything that arrived, in order
        self.sequence = 10_000  # of messages that a test makes up

    def talk(self) -> None:
        while self.p.outbox or self.d.outbox:
            to_p, self.d.outbox = self.d.outbox, []
            for _, message in to_p:
                if not self.loses(message.body):
                    self.heard.append(message.body)
                    self.p.receive("route", message, self.now)
            to_d, self.p.outbox = self.p.outbox, []
            for _, message in to_d:
                if not self.loses(message.body):
                    self.heard.append(message.body)
                    self.d.receive(PEER, message, self.now)

    def after(self, seconds: float) -> None:
        """Let time pass in steps of a beat, talking all the while."""
        end = self.now + seconds
        while self.now < end:
            self.now += 0.5
            self.d.tick(self.now)
            self.p.tick(self.now)
            self.talk()

    def watch(self, name: str = "t") -> None:
        self.d.watch(name, f"d-{name}", PEER, self.now)
        self.d.announce()
        self.talk()

    def reserve(self, name: str = "t", epoch: int = 1, wish: BlockReservation = WISH) -> None:
        """D allocates blocks for a request that it may not have watched yet, and they are zeroed."""
        self.d.watch(name, f"d-{name}", PEER, self.now)
        self.d.announce()
        self.d.prepare(f"d-{name}", epoch, wish, self.now)
        self.d.zeroed([f"d-{name}"], self.now)
        self.talk()

    def start(self, name: str = "t", prompt: Prompt = PROMPT) -> None:
        self.p.start(name, f"p-{name}", prompt, self.now)
        self.p.add_source_blocks(f"p-{name}", [1, 2, 3])
        self.talk()

    def write(self, name: str = "t", blocks: int = 3) -> None:
        """P's device has written the first blocks of all layers."""
        for layer in range(2):
            self.p.ready(f"p-{name}", layer, blocks, self.now)

    def next_push(self, max_units: int) -> Push:
        push = self.p.next_push(lambda _: max_units)
        assert push is not None
        return push

    def pushes(self, max_blocks: int = 100) -> list[Push]:
        pushes = []
        while push := self.p.next_push(lambda _: max_blocks):
            self.p.push_begun(push, self.now)
            pushes.append(push)
        return pushes

    def push(self, *, ok: bool = True) -> None:
        """Push everything that may be pushed, with this outcome."""
        for push in self.pushes():
            self.p.push_done(push, ok, self.now)
        self.talk()

    def to_p(self, body: Body, sender: int = D, receiver: int = P) -> None:
        """Deliver a message that D did not send."""
        self.sequence += 1
        self.p.receive("route", Message(sender, receiver, self.sequence, body), self.now)

    def to_d(self, body: Body, sender: int = P, receiver: int = D) -> None:
        """Deliver a message that P did not send."""
        self.sequence += 1
        self.d.receive(PEER, Message(sender, receiver, self.sequence, body), self.now)

    def resolved(self) -> list[Resolved]:
        resolved, self.d.resolved = self.d.resolved, []
        return resolved

    def heard_of(self, kind: type[Body]) -> list[Body]:
        return [body for body in self.heard if isinstance(body, kind)]


def reserved() -> Pair:
    """Both sides know the transfer `t`; nothing is written yet."""
    pair = Pair()
    pair.reserve()
    pair.start()
    return pair


def ready_to_push() -> Pair:
    pair = reserved()
    pair.write()
    return pair


def verifying() -> Pair:
    """Everything has arrived, with digests that D has not compared yet."""
    pair = ready_to_push()
    pair.p._verify = lambda _: True
    pair.push()
    pair.p.digested(pair.p.to_digest[0], b"digests!", 0.0)
    pair.talk()
    return pair


def outcome(pair: Pair) -> Commit | Fail:
    """The last outcome that P reached."""
    return pair.p.ended[-1][1]


def committed(pair: Pair) -> Commit:
    """The last outcome, which is a commit."""
    commit = outcome(pair)
    assert isinstance(commit, Commit)
    return commit
