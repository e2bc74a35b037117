"""Control loops whose handlers record what they hear."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from baton.contracts.secret import ClusterSecret
from baton.kv_connector.control.loop import ControlLoop, PeerKey

SECRET = ClusterSecret(b"a secret of the cluster")


class Recorder:
    """A handler that keeps what it gets."""

    def __init__(self) -> None:
        self.got: list[tuple[PeerKey, bytes]] = []
        self.ticks = 0
        self.lost: list[PeerKey] = []
        self.react: Callable[[PeerKey, bytes], None] = lambda *_: None
        self.react_to_tick: Callable[[], None] = lambda: None

    def on_payload(self, peer: PeerKey, payload: bytes) -> None:
        self.got.append((peer, payload))
        self.react(peer, payload)

    def on_tick(self) -> None:
        self.ticks += 1
        self.react_to_tick()

    def on_disconnect(self, peer: PeerKey) -> None:
        self.lost.append(peer)

    @property
    def payloads(self) -> list[bytes]:
        return [payload for _, payload in self.got]


MakeLoop = Callable[..., tuple[ControlLoop, Recorder]]


@contextmanager
def recording_loops() -> Iterator[MakeLoop]:
    """Yield what makes loops, not started; they are stopped in the end."""
    with ExitStack() as stack:

        def make(secret: ClusterSecret | None = SECRET, tick_s: float = 10.0) -> tuple[ControlLoop, Recorder]:
            handler = Recorder()
            loop = ControlLoop(handler, tick_s, secret=secret)
            stack.callback(loop.stop)
            return loop, handler

        yield make
