"""What the node's process hears from the connector."""

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from baton.kv_connector.control import status_server
from baton.kv_connector.control.status_endpoints import IpcEndpoint
from baton.kv_connector.control.status_server import CANCEL, REQUEST, OutcomeSender, StatusServer
from baton.kv_connector.errors import ConnectorError


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context() as made:
        yield made


def ask(context: zmq.Context[zmq.Socket[bytes]], path: Path, *request: bytes) -> dict[str, Any]:
    """Ask as the node does, by default for a snapshot."""
    with context.socket(zmq.REQ) as client:
        client.linger = 0
        client.connect(f"ipc://{path}")
        client.send_multipart(request or (REQUEST,))
        assert client.poll(3000), "no answer"
        answer: dict[str, Any] = json.loads(client.recv())
        return answer


def test_the_server_answers_with_the_snapshot_of_now(context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path) -> None:
    """Every question calls the function again; only this user may ask."""
    count = iter(range(9))
    server = StatusServer(tmp_path / "s", lambda: {"count": next(count)})
    server.start()
    server.start()

    assert [ask(context, tmp_path / "s"), ask(context, tmp_path / "s")] == [{"count": 0}, {"count": 1}]
    assert (tmp_path / "s").stat().st_mode & 0o077 == 0
    server.stop()


def test_a_failing_snapshot_is_answered(context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path) -> None:
    """The node hears what went wrong, also if the snapshot is no JSON, and may ask again."""
    answers: list[Any] = [{"fine": True}, {"bad": object()}]

    def snapshot() -> dict[str, Any]:
        if not answers:
            raise RuntimeError("broken")
        answer: dict[str, Any] = answers.pop()
        return answer

    server = StatusServer(tmp_path / "s", snapshot)
    server.start()

    assert "TypeError" in ask(context, tmp_path / "s")["error"]
    assert ask(context, tmp_path / "s") == {"fine": True}
    assert ask(context, tmp_path / "s") == {"error": "RuntimeError: broken"}
    assert ask(context, tmp_path / "s", b"something else") == {"error": "unknown request"}
    server.stop()


def test_a_cancel_is_passed_on_and_counted(context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path) -> None:
    """The ids reach the worker as they were sent; what goes wrong there is answered, not swallowed."""
    asked: list[list[str]] = []

    def cancel(transfer_ids: list[str]) -> int:
        asked.append(transfer_ids)
        return len(transfer_ids) - 1

    server = StatusServer(tmp_path / "s", dict, cancel)
    server.start()

    assert ask(context, tmp_path / "s", CANCEL, b'["a", "b"]') == {"open": 1}
    assert asked == [["a", "b"]]
    for wrong in ((CANCEL,), (CANCEL, b"[]", b""), (REQUEST, b"[]")):
        assert ask(context, tmp_path / "s", *wrong) == {"error": "unknown request"}
    assert "JSONDecodeError" in ask(context, tmp_path / "s", CANCEL, b"[")["error"]
    assert ask(context, tmp_path / "s") == {}
    server.stop()


def test_a_side_without_transfers_of_its_own_refuses_a_cancel(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    """The scheduler side hears of cancels from its workers."""
    server = StatusServer(tmp_path / "s", dict)
    server.start()

    assert ask(context, tmp_path / "s", CANCEL, b"[]") == {"error": "unknown request"}
    server.stop()


def test_stop_does_not_wait_for_ever(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot that hangs (another thread keeps a lock) must not keep the engine from ending."""
    monkeypatch.setattr(status_server, "_STOP_S", 0.05)
    asked, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def snapshot() -> dict[str, Any]:
        asked.set()
        may_end.wait(10)
        ended.set()
        return {}

    server = StatusServer(tmp_path / "s", snapshot)
    server.start()
    with context.socket(zmq.REQ) as client:
        client.linger = 0
        client.connect(f"ipc://{tmp_path / 's'}")
        client.send(REQUEST)
        assert asked.wait(10)

        server.stop()

        assert not ended.is_set()
        may_end.set()
        assert client.poll(3000)
    server.stop()


def test_stop_needs_no_start_and_no_second_thought(tmp_path: Path) -> None:
    """Stopping is idempotent, before and after a start."""
    never, started = StatusServer(tmp_path / "a", dict), StatusServer(tmp_path / "b", dict)
    started.start()

    for server in (never, never, started, started):
        server.stop()


def test_a_successor_takes_over_the_path(context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path) -> None:
    """A socket file that a killed process left behind is no obstacle."""
    (tmp_path / "s").touch()
    server = StatusServer(tmp_path / "s", lambda: {"alive": True})
    server.start()

    assert ask(context, tmp_path / "s") == {"alive": True}
    server.stop()


def test_a_place_that_is_taken_for_a_moment_is_opened_as_soon_as_it_is_free(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    """After a change of the secret: what listened there before may need a moment to go."""
    attempts: list[str] = []
    reopened = threading.Event()

    class Door(IpcEndpoint):
        look_again_ms = 1

        def open(self, context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
            attempts.append("open")
            if len(attempts) in (2, 3):
                raise ConnectorError("in use")
            return super().open(context)

        def is_outdated(self) -> bool:
            if len(attempts) == 4:
                reopened.set()
            return len(attempts) < 4

    server = StatusServer(tmp_path / "s", lambda: {"alive": True}, door=Door(tmp_path / "s"))
    server.start()

    assert reopened.wait(10)
    assert ask(context, tmp_path / "s") == {"alive": True}
    server.stop()


@pytest.mark.parametrize("name", ["missing/s", "x" * 120])
def test_a_path_that_cannot_be_bound_is_named(tmp_path: Path, name: str) -> None:
    """The message says which path; the server can still be stopped."""
    server = StatusServer(tmp_path / name, dict)

    with pytest.raises(ConnectorError, match=name):
        server.start()

    server.stop()


def test_a_path_that_is_too_long_for_outcomes_is_named(tmp_path: Path) -> None:
    """Else none would ever arrive."""
    with pytest.raises(ConnectorError, match=r"x{120} is too long for a socket"):
        OutcomeSender(tmp_path / ("x" * 120))


def test_outcomes_without_a_receiver_are_dropped(tmp_path: Path) -> None:
    """The scheduler never waits for the node, also after closing."""
    sender = OutcomeSender(tmp_path / "o")

    sent = [sender.send(f"t{i}", "recomputed", "") for i in range(1000)]
    sender.close()
    sender.close()

    assert not any(sent)
    assert not sender.send("t", "recomputed", "")


def test_a_node_that_does_not_read_costs_nothing(tmp_path: Path) -> None:
    """Once its buffer is full, outcomes are dropped, and sending does not wait."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as node:
        node.bind(str(tmp_path / "o"))
        node.listen()
        sender = OutcomeSender(tmp_path / "o")

        sent = [sender.send("t", "recomputed", "x" * 10_000) for _ in range(5_000)]

        assert sent[0]
        assert not sent[-1]
        sender.close()
        assert not sender.send("t", "recomputed", "")


def test_a_transfer_is_told_of_by_id(context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path) -> None:
    """A side that keeps timelines answers with one; another refuses the question."""
    knows = StatusServer(tmp_path / "p", dict, None, lambda transfer_id: {"asked": transfer_id})
    knows_not = StatusServer(tmp_path / "d", dict)
    answers = []
    for name, server in (("p", knows), ("d", knows_not)):
        server.start()
        answers.append(ask(context, tmp_path / name, b"timeline", b"ab"))
        server.stop()

    assert answers == [{"asked": "ab"}, {"error": "unknown request"}]
