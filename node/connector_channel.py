"""The API process's ends of the two channels to the connector, which lives in the engine's processes.

*Questions*: the node asks `scheduler.sock` or a `worker-….sock` for a snapshot, or tells every worker to cancel
transfers, and gets one JSON object each. The first data-parallel engine has its sockets in the node's folder, the others
in `dp1`, `dp2`, … below it. A fresh socket for each question: there are a few a second, and an answer that comes too
late can then never be taken for the next one. Ranks on another host have a port in place of the socket, and their
address in a file of the same name.
*Outcomes*: the connector pushes one line for each transfer that did not go as planned. They are read when somebody
asks, without a task: until then they wait in ZMQ's queue.

No socket exists before serving starts, so the process may be forked until then.
"""

import asyncio
import json
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import zmq

from baton.contracts.http import LOCAL, RECOMPUTED
from baton.contracts.secret import ClusterSecret
from baton.kv_connector.status_doors import FAR_SUFFIX
from baton.model_runner.channel import RUNNER_SOCKET
from baton.node import combine
from baton.node.asker import Asker
from baton.node.errors import ConnectorFailedError, ConnectorSilentError

SNAPSHOT_REQUEST = b"snapshot"
CANCEL_REQUEST = b"cancel"
TIMELINE_REQUEST = b"timeline"
ANSWER_TIMEOUT_S = 1.0
INTEGRITY_TIMEOUT_S = 5.0  # the scheduler looks several times before it reports anything
MAX_OUTCOMES = 4096  # of requests whose client left before the first token
_PATHS = (RECOMPUTED, LOCAL)


class Outcome(NamedTuple):
    """How a transfer's request was answered instead."""

    path: str
    reason: str


class _Line(msgspec.Struct):
    transfer_id: str
    outcome: str
    reason: str = ""


class Snapshots(NamedTuple):
    """What both sides of the connector say about themselves: of several engines and ranks, see `combine`."""

    scheduler: dict[str, Any]
    worker: dict[str, Any]


def engine_dirs(runtime_dir: Path) -> list[Path]:
    """Return the folders of a node's engines, as far as there are any, in their order."""
    others = [path for path in _list_files(runtime_dir, "dp*") if path.name[2:].isdecimal()]
    return [runtime_dir, *sorted(others, key=lambda path: int(path.name[2:]))]


def worker_sockets(engine_dir: Path) -> list[Path]:
    """Return the sockets of an engine's ranks, or their addresses' files, in the ranks' order."""
    found = [path for path in _list_files(engine_dir, "worker-*") if path.suffix in (".sock", FAR_SUFFIX)]
    return sorted(found, key=lambda path: int(path.stem.removeprefix("worker-")))


def _list_files(folder: Path, pattern: str) -> list[Path]:
    try:
        return list(folder.glob(pattern))
    except OSError as exc:  # EMFILE: a folder cannot be read without a descriptor
        raise ConnectorSilentError(f"the connector's sockets cannot be listed: {exc.strerror}") from exc


def _here_or_far(path: Path) -> Path:
    """Return the file of an address if that is what there is in place of a socket."""
    far = path.with_suffix(FAR_SUFFIX)
    return far if far.exists() else path


class SnapshotClient:
    """Asks both sides of the connector for their state."""

    def __init__(
        self, runtime_dir: Path, secret: ClusterSecret | None = None, *, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> None:
        """Ask nobody yet; without a secret, ranks on other hosts cannot be asked."""
        self._runtime_dir = runtime_dir
        self._asker = Asker(timeout_s, secret)
        self._patient_asker = Asker(INTEGRITY_TIMEOUT_S)

    def start(self) -> None:
        """Open what must not be opened first when descriptors are nearly used up; idempotent."""
        self._asker.start()
        self._patient_asker.start()

    async def both(self) -> Snapshots:
        """Return both snapshots.

        Raises:
            NoAnswerError: one side gave no snapshot; `ConnectorSilentError` if it only did not answer in time.
        """
        found = engine_dirs(self._runtime_dir)
        workers = [worker_sockets(folder) for folder in found]
        if not any(workers):
            raise ConnectorFailedError("the connector has not started")
        schedulers = [folder / "scheduler.sock" for folder in found]
        paths = [*schedulers, *(path for of_engine in workers for path in of_engine)]
        answers = iter(await asyncio.gather(*(self._asker.ask(path, SNAPSHOT_REQUEST) for path in paths)))
        of_engines = [next(answers) for _ in schedulers]
        of_ranks = [[next(answers) for _ in of_engine] for of_engine in workers if of_engine]
        return Snapshots(combine.schedulers(of_engines), combine.workers(of_ranks))

    async def flows(self, transfer_id: str) -> list[dict[str, Any]]:
        """Return what the prefill ranks know of the layers of one transfer.

        Raises:
            NoAnswerError: there is no rank, or one gave no answer.
        """
        workers = [path for folder in engine_dirs(self._runtime_dir) for path in worker_sockets(folder)]
        if not workers:
            raise ConnectorFailedError("the connector has not started")
        asked = (self._asker.ask(path, TIMELINE_REQUEST, transfer_id.encode()) for path in workers)
        answers = await asyncio.gather(*asked)
        return [{**flow, "rank": rank} for rank, answer in enumerate(answers) for flow in answer["flows"]]

    async def runner(self) -> dict[str, Any]:
        """Return what the worker has counted of its tokens' way to the host.

        Raises:
            NoAnswerError: it gave no answer.
        """
        found = [_here_or_far(folder / RUNNER_SOCKET) for folder in engine_dirs(self._runtime_dir)]
        return combine.runners(await asyncio.gather(*(self._asker.ask(path, SNAPSHOT_REQUEST) for path in found)))

    async def integrity(self) -> dict[str, Any]:
        """Have the block pool checked; return what was found.

        Raises:
            NoAnswerError: the scheduler gave no answer.
        """
        found = [folder / "integrity.sock" for folder in engine_dirs(self._runtime_dir)]
        answers = await asyncio.gather(*(self._patient_asker.ask(path, SNAPSHOT_REQUEST) for path in found))
        return combine.integrity(answers)

    def stop(self) -> None:
        """Close everything; idempotent."""
        self._asker.stop()
        self._patient_asker.stop()


class CancelClient:
    """Tells every worker of this node that nobody wants some transfers any more."""

    def __init__(
        self, runtime_dir: Path, secret: ClusterSecret | None = None, *, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> None:
        """Tell nobody yet; without a secret, ranks on other hosts cannot be told."""
        self._runtime_dir = runtime_dir
        self._asker = Asker(timeout_s, secret)

    def start(self) -> None:
        """Open what must not be opened first when descriptors are nearly used up; idempotent."""
        self._asker.start()

    async def cancel(self, transfer_ids: Sequence[str]) -> int:
        """Return how many of them were open on some worker.

        Raises:
            NoAnswerError: there is no worker, or one did not take it. It may be said again.
        """
        workers = [path for folder in engine_dirs(self._runtime_dir) for path in worker_sockets(folder)]
        if not workers:
            raise ConnectorFailedError("the connector has not started")
        ids = json.dumps(transfer_ids).encode()
        answers = await asyncio.gather(*(self._asker.ask(path, CANCEL_REQUEST, ids) for path in workers))
        return max(int(answer.get("open", 0)) for answer in answers)

    def stop(self) -> None:
        """Close everything; idempotent."""
        self._asker.stop()


class Outcomes:
    """Which transfers did not go as planned, as far as the connector has said."""

    def __init__(self, runtime_dir: Path) -> None:
        self._endpoint = f"ipc://{runtime_dir}/outcomes.sock"
        self._known: OrderedDict[str, Outcome] = OrderedDict()
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None

    def start(self) -> None:
        """Bind the socket that the connector pushes to; idempotent."""
        if self._socket is None:
            self._context = zmq.Context()
            self._socket = self._context.socket(zmq.PULL)
            self._socket.setsockopt(zmq.LINGER, 0)
            self._socket.bind(self._endpoint)

    def stop(self) -> None:
        """Close everything; idempotent."""
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context, self._socket = None, None

    def take(self, transfer_id: str) -> Outcome | None:
        """Return a transfer's outcome and forget it; None if it went as planned."""
        self._drain()
        return self._known.pop(transfer_id, None)

    def _drain(self) -> None:
        while self._socket is not None:
            try:
                line = msgspec.json.decode(self._socket.recv(zmq.NOBLOCK), type=_Line)
            except zmq.Again:
                return
            except msgspec.DecodeError:
                continue  # of another version: the header is a courtesy, the answer is right either way
            if line.outcome in _PATHS:
                self._known[line.transfer_id] = Outcome(line.outcome, line.reason)
            if len(self._known) > MAX_OUTCOMES:
                self._known.popitem(last=False)
