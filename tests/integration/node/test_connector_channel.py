import asyncio
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from baton.node.connector_channel import MAX_OUTCOMES, CancelClient, Outcome, Outcomes, SnapshotClient
from baton.node.errors import ConnectorFailedError, NoAnswerError

Answer = Callable[..., bytes]  # from a question's frames


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
        """Stop answering."""
        self._context.term()
        self._thread.join()


@pytest.fixture
def connector(runtime_dir: Path) -> Iterator[Callable[[Answer, Answer], None]]:
    """Starts both sides of a connector."""
    sides: list[Side] = []

    def start(scheduler: Answer, worker: Answer) -> None:
        sides.append(Side(runtime_dir / "scheduler.sock", scheduler))
        sides.append(Side(runtime_dir / "worker-0.sock", worker))

    yield start
    for side in sides:
        side.stop()


@pytest.fixture
def workers(runtime_dir: Path) -> Iterator[Callable[[int, Answer], None]]:
    """Starts further workers."""
    sides: list[Side] = []
    yield lambda rank, answer: sides.append(Side(runtime_dir / f"worker-{rank}.sock", answer))
    for side in sides:
        side.stop()


def says(content: object) -> Answer:
    """An answer that is always the same."""
    return lambda *_: json.dumps(content).encode()


async def test_the_integrity_check_has_time_of_its_own(runtime_dir: Path) -> None:
    """It looks several times before it answers, on a socket where no snapshot waits behind it."""

    def later(_: bytes) -> bytes:
        time.sleep(0.3)
        return b'{"ok": true}'

    side = Side(runtime_dir / "integrity.sock", later)
    client = SnapshotClient(runtime_dir, timeout_s=0.05)
    try:
        assert await client.integrity() == {"ok": True}
    finally:
        client.stop()
        side.stop()


async def test_both_sides_are_asked(runtime_dir: Path, connector: Callable[[Answer, Answer], None]) -> None:
    """Each gets the word `snapshot` and gives one object; many may ask at once."""
    asked: list[bytes] = []

    def scheduler(request: bytes) -> bytes:
        asked.append(request)
        return b'{"free_blocks": 7, "control_addresses": ["tcp://a:1", "tcp://a:2"]}'

    connector(scheduler, says({"side": "worker"}))
    client = SnapshotClient(runtime_dir)

    found = await asyncio.gather(*(client.both() for _ in range(5)))
    client.stop()
    client.stop()

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
async def test_a_side_that_does_not_answer_properly_is_told(
    answer: Answer, runtime_dir: Path, connector: Callable[[Answer, Answer], None]
) -> None:
    """The other side's answer does not help; the wait is bounded."""
    connector(says({}), answer)
    client = SnapshotClient(runtime_dir, timeout_s=0.2)

    with pytest.raises(NoAnswerError, match="worker-0"):
        await client.both()
    client.stop()


async def test_a_connector_that_is_not_there_may_come(
    runtime_dir: Path, connector: Callable[[Answer, Answer], None]
) -> None:
    """A late answer to an earlier question is not taken for the next one."""
    client = SnapshotClient(runtime_dir, timeout_s=0.1)
    with pytest.raises(NoAnswerError):
        await client.both()

    numbers = iter(range(10))
    connector(says({}), lambda *_: json.dumps({"n": next(numbers)}).encode())
    await asyncio.sleep(0.2)

    assert (await client.both()).worker == {"n": 0}
    client.stop()


async def test_every_worker_is_told_to_cancel(
    runtime_dir: Path, connector: Callable[[Answer, Answer], None], workers: Callable[[int, Answer], None]
) -> None:
    """Each rank holds its own part of a prompt; a transfer was open if one of them had it."""
    asked: list[tuple[bytes, ...]] = []

    def answer(*question: bytes) -> bytes:
        asked.append(question)
        return b'{"open": 1}'

    connector(says({"error": "the scheduler is not asked"}), says({"open": 2}))
    workers(1, answer)
    client = CancelClient(runtime_dir)

    assert await client.cancel(["a", "b", "c"]) == 2
    client.stop()
    client.stop()

    assert asked == [(b"cancel", b'["a", "b", "c"]')]


@pytest.mark.parametrize("answer", [lambda *_: b"", says({"error": "unknown request"})], ids=["none", "an error"])
async def test_a_worker_that_does_not_take_a_cancel_is_told(
    answer: Answer,
    runtime_dir: Path,
    connector: Callable[[Answer, Answer], None],
    workers: Callable[[int, Answer], None],
) -> None:
    """It is not enough that the others did; the wait is bounded."""
    connector(says({}), says({"open": 1}))
    workers(1, answer)
    client = CancelClient(runtime_dir, timeout_s=0.2)

    with pytest.raises(NoAnswerError, match="worker-1"):
        await client.cancel(["a"])
    client.stop()


async def test_without_workers_nobody_can_be_told(runtime_dir: Path) -> None:
    """The engine is starting; the caller says it again."""
    client = CancelClient(runtime_dir)

    with pytest.raises(ConnectorFailedError, match="not started"):
        await client.cancel(["a"])
    client.stop()


@pytest.fixture
def outcomes(runtime_dir: Path) -> Iterator[Outcomes]:
    """The started receiving end."""
    receiving = Outcomes(runtime_dir)
    receiving.start()
    receiving.start()
    yield receiving
    receiving.stop()
    receiving.stop()


class Reporter:
    """The connector's end of the outcomes' channel."""

    def __init__(self, runtime_dir: Path) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.PUSH)
        self._socket.connect(f"ipc://{runtime_dir}/outcomes.sock")

    def report(self, transfer_id: str, outcome: str = "recomputed", reason: str = "peer gone") -> None:
        """Say how one transfer went."""
        self.send(json.dumps({"transfer_id": transfer_id, "outcome": outcome, "reason": reason, "new": 1}).encode())

    def send(self, line: bytes) -> None:
        """Send a line as it is."""
        self._socket.send(line)

    def stop(self) -> None:
        """Close everything."""
        self._context.destroy(linger=0)


@pytest.fixture
def reporter(runtime_dir: Path, outcomes: Outcomes) -> Iterator[Reporter]:
    """The started sending end."""
    sending = Reporter(runtime_dir)
    yield sending
    sending.stop()


async def taken(outcomes: Outcomes, transfer_id: str) -> Outcome | None:
    """Wait a little for an outcome to arrive."""
    for _ in range(200):
        if found := outcomes.take(transfer_id):
            return found
        await asyncio.sleep(0.01)
    return None


async def test_an_outcome_is_known_once(outcomes: Outcomes, reporter: Reporter) -> None:
    """It is forgotten when it has been used; other transfers are not touched."""
    reporter.report("a")
    reporter.report("b", "local", "")

    assert await taken(outcomes, "b") == ("local", "")
    assert outcomes.take("a") == ("recomputed", "peer gone")
    assert outcomes.take("a") is None


async def test_what_is_not_understood_is_skipped(outcomes: Outcomes, reporter: Reporter) -> None:
    """The header is a courtesy; the answer is right without it."""
    reporter.send(b"not JSON")
    reporter.report("a", "a word of the future")
    reporter.report("b")

    assert await taken(outcomes, "b")
    assert outcomes.take("a") is None


async def test_outcomes_that_nobody_asks_for_are_bounded(outcomes: Outcomes, reporter: Reporter) -> None:
    """Clients may leave before the first token; the oldest are forgotten."""
    for number in range(MAX_OUTCOMES + 10):
        reporter.report(str(number))
        if number % 500 == 0:
            outcomes.take("")  # the queue of the socket is shorter than that

    assert await taken(outcomes, str(MAX_OUTCOMES + 9))
    assert outcomes.take("9") is None
    assert outcomes.take("10")


def test_without_a_socket_nothing_is_known(runtime_dir: Path) -> None:
    """A server without life-span events still answers."""
    assert Outcomes(runtime_dir).take("a") is None


async def test_every_rank_tells_of_its_flows(
    runtime_dir: Path, connector: Callable[[Answer, Answer], None], workers: Callable[[int, Answer], None]
) -> None:
    """Each is asked for the transfer by name, and the answers say whose they are."""
    connector(says({}), says({"flows": [{"layers": 2}]}))
    workers(1, says({"flows": [{"layers": 3}, {"layers": 4}]}))
    client = SnapshotClient(runtime_dir)

    found = await client.flows("ab" * 16)
    client.stop()

    assert found == [{"layers": 2, "rank": 0}, {"layers": 3, "rank": 1}, {"layers": 4, "rank": 1}]


async def test_flows_of_a_connector_that_has_not_started_cannot_be_told(runtime_dir: Path) -> None:
    """No worker is no answer."""
    client = SnapshotClient(runtime_dir)

    with pytest.raises(ConnectorFailedError, match="not started"):
        await client.flows("ab" * 16)
    client.stop()
