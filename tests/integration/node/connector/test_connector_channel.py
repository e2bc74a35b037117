import asyncio
import errno
import json
import socket
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
import zmq

from baton.kv_connector.control.status_server import OutcomeSender
from baton.node.connector.connector_channel import (
    MAX_OUTCOMES,
    ConnectorClient,
    Outcome,
    Outcomes,
    engine_dirs,
    worker_sockets,
)
from baton.node.errors import ConnectorFailedError, ConnectorSilentError, NoAnswerError

Answer = Callable[..., bytes]  # from a question's frames
Start = Callable[..., None]


@pytest.fixture
def runtime_dir() -> Iterator[Path]:
    """A folder short enough for a socket's name."""
    with tempfile.TemporaryDirectory(prefix="baton-test-") as folder:
        yield Path(folder)


class Side:
    """One side of the connector: answers each snapshot request with `answer`."""

    def __init__(self, path: Path, answer: Answer) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.bind(f"ipc://{path}")
        self._answer = answer
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with self._socket as socket:
            while True:
                try:
                    peer, empty, *question = socket.recv_multipart()
                except zmq.ContextTerminated:
                    return
                if reply := self._answer(*question):
                    socket.send_multipart([peer, empty, reply])

    def stop(self) -> None:
        self._context.term()
        self._thread.join()


@pytest.fixture
def connector(runtime_dir: Path) -> Iterator[Start]:
    """Starts the scheduler's side of a connector and its workers'."""
    sides: list[Side] = []

    def start(scheduler: Answer, *workers: Answer) -> None:
        sides.append(Side(runtime_dir / "scheduler.sock", scheduler))
        sides.extend(Side(runtime_dir / f"worker-{rank}.sock", answer) for rank, answer in enumerate(workers))

    yield start
    for side in sides:
        side.stop()


@pytest.fixture
def client(runtime_dir: Path) -> Iterator[ConnectorClient]:
    made = ConnectorClient(runtime_dir)
    yield made
    made.stop()
    made.stop()


def says(content: object) -> Answer:
    return lambda *_: json.dumps(content).encode()


async def test_the_integrity_check_has_time_of_its_own(runtime_dir: Path) -> None:
    """It looks several times before it answers, on a socket where no snapshot waits behind it."""

    def later(_: bytes) -> bytes:
        time.sleep(0.3)
        return b'{"ok": true}'

    side = Side(runtime_dir / "integrity.sock", later)
    client = ConnectorClient(runtime_dir, timeout_s=0.05)
    try:
        assert await client.integrity() == {"ok": True}
    finally:
        client.stop()
        side.stop()


async def test_both_sides_are_asked(connector: Start, client: ConnectorClient) -> None:
    """Each gets the word `snapshot` and gives one object; many may ask at once."""
    asked: list[bytes] = []

    def scheduler(request: bytes) -> bytes:
        asked.append(request)
        return b'{"free_blocks": 7, "control_addresses": ["tcp://a:1", "tcp://a:2"]}'

    connector(scheduler, says({"side": "worker"}))

    found = await asyncio.gather(*(client.both() for _ in range(5)))

    assert asked == [b"snapshot"] * 5
    assert [(snapshots.scheduler["free_blocks"], snapshots.worker) for snapshots in found] == [
        (7, {"side": "worker"})
    ] * 5
    assert found[0].scheduler["control_addresses"] == ["tcp://a:1,tcp://a:2"]


@pytest.mark.parametrize(
    "answer",
    [lambda *_: b"", says([]), lambda *_: b"{", says({"error": "KeyError: x"})],
    ids=["none", "a list", "no JSON", "an error"],
)
async def test_a_worker_that_does_not_answer_properly_is_told(
    answer: Answer, runtime_dir: Path, connector: Start
) -> None:
    """It is not enough that the others did; the wait is bounded."""
    connector(says({}), says({"open": 1}), answer)
    client = ConnectorClient(runtime_dir, timeout_s=0.2)

    with pytest.raises(NoAnswerError, match="worker-1"):
        await client.both()
    with pytest.raises(NoAnswerError, match="worker-1"):
        await client.cancel(["a"])
    client.stop()


async def test_a_connector_that_is_not_there_may_come(connector: Start, client: ConnectorClient) -> None:
    """The engine is starting; the caller asks again."""
    for asked in (client.both(), client.cancel(["a"]), client.flows("ab" * 16)):
        with pytest.raises(ConnectorFailedError, match="not started"):
            await asked

    connector(says({}), says({"n": 0}))

    assert (await client.both()).worker == {"n": 0}


async def test_every_worker_is_told_to_cancel(connector: Start, client: ConnectorClient) -> None:
    """Each rank holds its own part of a prompt; a transfer was open if one of them had it."""
    asked: list[tuple[bytes, ...]] = []

    def answer(*question: bytes) -> bytes:
        asked.append(question)
        return b'{"open": 1}'

    connector(says({"error": "the scheduler is not asked"}), says({"open": 2}), answer)

    assert await client.cancel(["a", "b", "c"]) == 2
    assert asked == [(b"cancel", b'["a", "b", "c"]')]


async def test_every_rank_tells_of_its_flows(connector: Start, client: ConnectorClient) -> None:
    """Each is asked for the transfer by name, and the answers say whose they are."""
    connector(says({}), says({"flows": [{"layers": 2}]}), says({"flows": [{"layers": 3}, {"layers": 4}]}))

    found = await client.flows("ab" * 16)

    assert found == [{"layers": 2, "rank": 0}, {"layers": 3, "rank": 1}, {"layers": 4, "rank": 1}]


@pytest.fixture
async def outcomes(runtime_dir: Path) -> AsyncIterator[Outcomes]:
    """The started receiving end."""
    receiving = Outcomes(runtime_dir)
    receiving.start()
    receiving.start()
    yield receiving
    receiving.stop()
    receiving.stop()


@pytest.fixture
def sender(runtime_dir: Path) -> Iterator[OutcomeSender]:
    """The connector's end; it may be there first."""
    sending = OutcomeSender(runtime_dir / "outcomes.sock")
    yield sending
    sending.close()


async def test_an_outcome_is_known_as_soon_as_it_is_sent(
    outcomes: Outcomes, sender: OutcomeSender, runtime_dir: Path
) -> None:
    """Without a turn of the event loop in between: the first token may follow at once. It is forgotten when it was used.

    Only this user may send any.
    """
    assert (runtime_dir / "outcomes.sock").stat().st_mode & 0o077 == 0
    for number in range(1000):
        assert sender.send(f"a{number}", "recomputed", "peer gone")
        assert outcomes.take(f"b{number}") is None
        assert outcomes.take(f"a{number}") == Outcome(f"a{number}", "recomputed", "peer gone")
        assert outcomes.take(f"a{number}") is None


async def test_a_reservation_is_waited_for_with_a_bound(outcomes: Outcomes, sender: OutcomeSender) -> None:
    """It may have come before, come in time, or not come."""
    sender.send_reserved("now")
    assert await outcomes.wait_until_reserved("now", 0)
    sender.send_reserved("before")
    waiting = asyncio.create_task(outcomes.wait_until_reserved("later", 10))
    await asyncio.sleep(0.01)
    sender.send_reserved("later")

    assert await outcomes.wait_until_reserved("before", 10)
    assert await waiting
    assert not await outcomes.wait_until_reserved("never", 0.01)
    assert not await outcomes.wait_until_reserved("never", 0)
    assert not outcomes._awaited


async def test_several_engines_and_one_that_starts_again_are_heard(outcomes: Outcomes, runtime_dir: Path) -> None:
    """Each data-parallel engine has a connection; an ended one is closed."""
    senders = [OutcomeSender(runtime_dir / "outcomes.sock") for _ in range(3)]
    for number, each in enumerate(senders):
        each.send(f"a{number}", "recomputed", "")
        each.close()
    assert [outcomes.take(f"a{number}") for number in range(3)] == [
        Outcome(f"a{number}", "recomputed") for number in range(3)
    ]
    again = Outcomes(runtime_dir)
    sender = OutcomeSender(runtime_dir / "outcomes.sock")
    assert sender.send("b", "recomputed", "")
    outcomes.stop()

    again.start()

    assert sender.send("c", "recomputed", "")
    assert again.take("c")
    sender.close()
    again.stop()


async def test_what_is_not_understood_is_skipped(outcomes: Outcomes, runtime_dir: Path) -> None:
    """The header is a courtesy; the answer is right without it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sender:
        sender.connect(str(runtime_dir / "outcomes.sock"))
        lines = {"a": "a word of the future", "b": "local"}
        sender.send(b"not JSON")
        for transfer_id, outcome in lines.items():
            sender.send(json.dumps({"transfer_id": transfer_id, "outcome": outcome, "new": 1}).encode())

        assert outcomes.take("b") == Outcome("b", "local")
        assert outcomes.take("a") is None


async def test_outcomes_that_no_response_asks_for_are_bounded(
    outcomes: Outcomes, sender: OutcomeSender, runtime_dir: Path
) -> None:
    """Clients may leave before the first token; the oldest are forgotten, and the socket's buffer does not fill, also after an engine that has ended."""
    former = OutcomeSender(runtime_dir / "outcomes.sock")
    assert former.send("former", "recomputed", "")
    assert outcomes.take("former")
    former.close()
    assert outcomes.take("former") is None
    for number in range(MAX_OUTCOMES + 10):
        assert sender.send(str(number), "recomputed", "")
        if number % 50 == 0:
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    assert outcomes.take(str(MAX_OUTCOMES + 9))
    assert outcomes.take("9") is None
    assert outcomes.take("10")


async def test_a_connector_that_finds_no_descriptor_left_is_heard_by_the_next_question(
    outcomes: Outcomes, sender: OutcomeSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop does not try again and again: it has answers to give."""
    attempts: list[socket.socket] = []

    def without_descriptors(listener: socket.socket) -> None:
        attempts.append(listener)
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as full:
        full.setattr(socket.socket, "accept", without_descriptors)
        assert sender.send("a", "recomputed", "")
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(attempts) == 1

    assert outcomes.take("a")


def test_engines_and_ranks_are_asked_in_the_order_of_their_numbers(runtime_dir: Path) -> None:
    """Answers are told apart by it. Nothing else in the folder is asked."""
    ranks = [f"worker-{rank}.{'addr' if rank == 2 else 'sock'}" for rank in range(11)]
    for name in (*ranks, "worker-0.lock"):
        (runtime_dir / name).touch()
    for name in (*(f"dp{engine}" for engine in range(10, 0, -1)), "dpx"):
        (runtime_dir / name).mkdir()

    assert [path.name for path in worker_sockets(runtime_dir)] == ranks
    assert engine_dirs(runtime_dir) == [runtime_dir, *(runtime_dir / f"dp{engine}" for engine in range(1, 11))]


def test_folders_that_cannot_be_listed_are_no_sign_of_an_engine_that_has_ended(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes a descriptor; a node that drains would not wait for transfers that go on."""
    monkeypatch.setattr(Path, "glob", Mock(side_effect=OSError(errno.EMFILE, "too many open files")))

    for listing in (engine_dirs, worker_sockets):
        with pytest.raises(ConnectorSilentError, match="cannot be listed: too many open files"):
            listing(runtime_dir)


def test_without_a_socket_nothing_is_known(runtime_dir: Path) -> None:
    """A server without life-span events still answers."""
    assert Outcomes(runtime_dir).take("a") is None
