"""The cluster secret is replaced while transfers go on: real sockets, real workers, real files."""

import itertools
import threading
import time
from pathlib import Path

import pytest

from baton.contracts.secret import ClusterSecret, read_secret
from baton.kv_connector.control.loop import ControlLoop
from tests.support.control_loops import MakeLoop, Recorder
from tests.support.ranks import Ranks

A, B, C = b"secret A, in use", b"secret B, to come", b"another cluster's"
STEPS = [(A,), (A, B), (B, A), (B,)]  # what the secret file holds, one step of a rotation after the other
NEIGHBOURS = [pair for one, next_ in itertools.pairwise(STEPS) for pair in ((one, next_), (next_, one))]


TICK_S = 0.02


def listening(loops: MakeLoop, secret: ClusterSecret) -> tuple[ControlLoop, Recorder, str]:
    """Start a loop that answers every message with itself."""
    loop, heard = loops(secret, TICK_S)
    heard.react = loop.send
    address = loop.listen("127.0.0.1", 0, secret)
    loop.start()
    return loop, heard, address


def dialling(loops: MakeLoop, secret: ClusterSecret) -> tuple[ControlLoop, Recorder]:
    loop, heard = loops(secret, TICK_S)
    loop.start()
    return loop, heard


def meet(dialler: ControlLoop, heard: Recorder, address: str, timeout_s: float = 20.0) -> bool:
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
    _, _, address = listening(loops, ClusterSecret(*listens))

    assert meet(*dialling(loops, ClusterSecret(*dials)), address)


@pytest.mark.parametrize(("listens", "dials"), [((A,), (B,)), ((A, B), (C,))])
def test_processes_without_a_common_secret_never_meet(
    loops: MakeLoop, listens: tuple[bytes, ...], dials: tuple[bytes, ...]
) -> None:
    """However often it is tried; the listener counts the attempts."""
    prefill, p, address = listening(loops, ClusterSecret(*listens))

    assert not meet(*dialling(loops, ClusterSecret(*dials)), address, timeout_s=0.8)
    assert p.got == []
    refused = prefill._refusals.snapshot()["handshake"]
    assert 1 <= refused < 60, "a dialler without the key must not hammer"


def test_a_dialler_finds_the_key_whatever_the_listener_changes_to(loops: MakeLoop, tmp_path: Path) -> None:
    """Any number of rotations under the same connection; the address stays the same."""
    file = tmp_path / "secret"
    file.write_bytes(A)
    _, _, address = listening(loops, read_secret(file))
    decode, d = dialling(loops, ClusterSecret(A, B))
    for value in (A, B, A, B):
        file.write_bytes(value)
        time.sleep(0.1)
        assert meet(decode, d, address), value


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
    with Ranks(tmp_path, prefill_secret=secrets["p"], decode_secret=secrets["d"], reconnect_timeout_s=10.0) as ranks:
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
    _, p, address = listening(loops, read_secret(file))
    thief, t = dialling(loops, ClusterSecret(A))
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
    prefill, _, address = listening(loops, read_secret(file))
    server = prefill._server
    assert server is not None
    decode, d = dialling(loops, ClusterSecret(A, B))
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
