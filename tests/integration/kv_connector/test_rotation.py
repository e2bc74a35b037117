"""The cluster secret is replaced while transfers go on: real sockets, real workers, real files."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from baton.contracts.secret import ClusterSecret, read_secret
from baton.kv_connector.control.loop import ControlLoop, PeerKey
from tests.support.ranks import Ranks

A, B, C = b"secret A, in use", b"secret B, to come", b"another cluster's"
STEPS = [(A,), (A, B), (B, A), (B,)]  # what the secret file holds, one step of a rotation after the other
NEIGHBOURS = [pair for one, next_ in itertools.pairwise(STEPS) for pair in ((one, next_), (next_, one))]


class Echo:
    """Answers every message with itself, and remembers it."""

    def __init__(self, answer: bool) -> None:
        self.loop: ControlLoop | None = None
        self.got: list[bytes] = []
        self._answer = answer

    def on_payload(self, peer: PeerKey, payload: bytes) -> None:
        """Keep it, answer it."""
        self.got.append(payload)
        if self._answer and self.loop:
            self.loop.send(peer, payload)

    def on_tick(self) -> None:
        """Nothing."""

    def on_disconnect(self, peer: PeerKey) -> None:
        """Nothing."""


MakeLoop = Callable[..., tuple[ControlLoop, Echo]]


@pytest.fixture
def loops() -> Iterator[MakeLoop]:
    """Makes started loops that are stopped in the end."""
    made = []

    def make(secret: ClusterSecret, *, listen: bool = False) -> tuple[ControlLoop, Echo]:
        handler = Echo(answer=listen)
        loop = handler.loop = ControlLoop(handler, 0.02, secret=secret)
        made.append(loop)
        return loop, handler

    yield make
    for loop in made:
        loop.stop()


def meet(dialler: ControlLoop, heard: Echo, address: str, timeout_s: float = 20.0) -> bool:
    """Whether an answer comes back before the time is up."""
    before, give_up = len(heard.got), time.monotonic() + timeout_s
    while time.monotonic() < give_up:
        dialler.send(("dial", address), b"hello")
        time.sleep(0.02)
        if len(heard.got) > before:
            return True
    return False


@pytest.mark.parametrize(("listens", "dials"), NEIGHBOURS)
def test_neighbouring_steps_of_a_rotation_meet(
    loops: MakeLoop, listens: tuple[bytes, ...], dials: tuple[bytes, ...]
) -> None:
    """While processes change one by one, each prefill rank is reached by each decode rank, the old by the new too."""
    (prefill, _), (decode, d) = loops(ClusterSecret(*listens), listen=True), loops(ClusterSecret(*dials))
    address = prefill.listen("127.0.0.1", 0, ClusterSecret(*listens))
    prefill.start()
    decode.start()

    assert meet(decode, d, address)


@pytest.mark.parametrize(("listens", "dials"), [((A,), (B,)), ((A, B), (C,))])
def test_processes_without_a_common_secret_never_meet(
    loops: MakeLoop, listens: tuple[bytes, ...], dials: tuple[bytes, ...]
) -> None:
    """However often it is tried; the listener counts the attempts."""
    (prefill, p), (decode, d) = loops(ClusterSecret(*listens), listen=True), loops(ClusterSecret(*dials))
    address = prefill.listen("127.0.0.1", 0, ClusterSecret(*listens))
    prefill.start()
    decode.start()

    assert not meet(decode, d, address, timeout_s=0.8)
    assert p.got == []
    refused = prefill._refusals.snapshot()["handshake"]
    assert 1 <= refused < 60, "a dialler without the key must not hammer"


def test_a_dialler_finds_the_key_whatever_the_listener_changes_to(loops: MakeLoop, tmp_path: Path) -> None:
    """Any number of rotations under the same connection; the address stays the same."""
    file = tmp_path / "secret"
    file.write_bytes(A)
    secret = ClusterSecret(A, B)
    (prefill, _), (decode, d) = loops(followed(file), listen=True), loops(secret)
    address = prefill.listen("127.0.0.1", 0, followed(file))
    prefill.start()
    decode.start()
    for value in (A, B, A, B):
        file.write_bytes(value)
        time.sleep(0.1)
        assert meet(decode, d, address), value


def followed(file: Path) -> ClusterSecret:
    """A secret file that is looked at each time."""
    return read_secret(file)


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes look at their files often enough for a test."""
    monkeypatch.setattr("baton.contracts.secret.LOOK_AGAIN_S", 0.02)


def test_a_rotation_without_restart_harms_no_transfer(tmp_path: Path) -> None:
    """Each file changes on its own, P's first or D's; a transfer that is half-way at each change arrives whole."""
    files = {name: tmp_path / name for name in "pd"}
    for file in files.values():
        file.write_bytes(A)
    secrets = {name: read_secret(file) for name, file in files.items()}
    with Ranks(tmp_path, prefill_secret=secrets["p"], decode_secret=secrets["d"], receive_engines=1) as ranks:
        for step, values in enumerate(STEPS[1:]):
            for order, name in enumerate("pd" if step % 2 else "dp"):
                transfer = f"t{step}{order}"
                ranks.ask(transfer, 40, [7, 3, 4])
                ranks.compute(transfer, tokens=40, blocks=[1, 2], ready=1)
                ranks.wait_until(lambda: ranks.arrived({7: 1}))
                files[name].write_bytes(b"\n".join(values))
                time.sleep(0.15)
                ranks.compute(transfer, tokens=40, blocks=[5], ready=3, first=False)
                ranks.wait_until(lambda done=f"d-{transfer}": done in ranks.closed)  # type: ignore[misc]  # bound now
                assert ranks.arrived({7: 1, 3: 2, 4: 5})
        assert ranks.failed == {}
        assert [secret.values for secret in secrets.values()] == [(B,), (B,)]


def test_after_a_rotation_the_old_secret_opens_nothing(tmp_path: Path, loops: MakeLoop) -> None:
    """What a thief had is worth nothing any more, on a connection that is made from then on."""
    file = tmp_path / "secret"
    file.write_bytes(A)
    (prefill, p), (thief, t) = loops(followed(file), listen=True), loops(ClusterSecret(A))
    address = prefill.listen("127.0.0.1", 0, followed(file))
    prefill.start()
    thief.start()
    assert meet(thief, t, address)

    file.write_bytes(b"\n".join((B, A)))
    time.sleep(0.2)

    p.got.clear()
    assert not meet(thief, t, address, timeout_s=0.5)
    assert p.got == []


def test_a_port_that_is_taken_while_it_is_closed_is_tried_again(loops: MakeLoop, tmp_path: Path) -> None:
    """The listener opens again as soon as it can; the loop goes on without it until then."""
    file = tmp_path / "secret"
    file.write_bytes(A)
    (prefill, _), (decode, d) = loops(followed(file), listen=True), loops(ClusterSecret(A, B))
    address = prefill.listen("127.0.0.1", 0, followed(file))
    server = prefill._server
    assert server is not None
    prefill.start()
    decode.start()
    assert meet(decode, d, address)
    failing = threading.Event()

    original, attempts = server.__class__.__init__, []

    def fail_at_first(self: object, *arguments: object) -> None:
        attempts.append(1)
        if len(attempts) < 5:
            failing.set()
            raise OSError("in use")
        original(self, *arguments)  # type: ignore[arg-type]  # passed through

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server.__class__, "__init__", fail_at_first)
        file.write_bytes(B)
        assert failing.wait(5)
        assert meet(decode, d, address)
