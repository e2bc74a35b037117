"""The API process's ends of the two channels to the connector, which lives in the engine's processes.

*Questions*: the node asks `scheduler.sock` or a `worker-….sock` for a snapshot, or tells every worker to cancel
transfers, and gets one JSON object each. The first data-parallel engine has its sockets in the node's folder, the
others in `dp1`, `dp2`, … below it. Each question has a fresh socket, so that no late answer is taken for the next one.
Ranks on another host have a port in place of the socket, and their address in a file of the same name.
*Outcomes*: the connector sends one line for each transfer that did not go as planned, over a Unix socket that keeps
messages apart (SOCK_SEQPACKET). A line is in the node's buffer before the request's first token leaves the scheduler.

No socket exists before serving starts, so the process may be forked until then.
"""

import asyncio
import json
import socket
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from baton.contracts.decoding import DECODE_ERRORS
from baton.contracts.http import LOCAL, RECOMPUTED
from baton.contracts.secret import ClusterSecret
from baton.kv_connector.control.status_endpoints import FAR_SUFFIX
from baton.model_runner.channel import RUNNER_SOCKET
from baton.node.connector import snapshot_merge
from baton.node.connector.control_client import ControlClient
from baton.node.errors import ConnectorFailedError, ConnectorSilentError

SNAPSHOT_REQUEST = b"snapshot"
CANCEL_REQUEST = b"cancel"
TIMELINE_REQUEST = b"timeline"
ANSWER_TIMEOUT_S = 1.0
INTEGRITY_TIMEOUT_S = 5.0  # the scheduler looks several times before it reports anything
_MAX_LINE_BYTES = 1 << 16
MAX_OUTCOMES = 4096  # of requests whose client left before the first token
_PATHS = (RECOMPUTED, LOCAL)


class Outcome(msgspec.Struct):
    """One line of the connector's: how a transfer's request was answered instead, or that it has blocks reserved."""

    transfer_id: str
    path: str = msgspec.field(name="outcome")
    reason: str = ""


class Snapshots(NamedTuple):
    """What both sides of the connector say about themselves: of several engines and ranks, see `snapshot_merge`."""

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


class ConnectorClient:
    """Asks both sides of the connector for their state, and has every worker cancel transfers.

    What was asked and gave no answer raises `NoAnswerError`: `ConnectorSilentError` if it only did not answer in time.
    """

    def __init__(
        self, runtime_dir: Path, secret: ClusterSecret | None = None, *, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> None:
        """Ask no rank yet; without a secret, ranks on other hosts cannot be asked."""
        self._runtime_dir = runtime_dir
        self._client = ControlClient(timeout_s, secret)

    def start(self) -> None:
        """Open what must not be opened first when descriptors are nearly used up; idempotent."""
        self._client.start()

    def stop(self) -> None:
        """Close everything; idempotent."""
        self._client.stop()

    async def both(self) -> Snapshots:
        found = engine_dirs(self._runtime_dir)
        workers = [worker_sockets(folder) for folder in found]
        if not any(workers):
            raise ConnectorFailedError("the connector has not started")
        schedulers = [folder / "scheduler.sock" for folder in found]
        paths = [*schedulers, *(path for of_engine in workers for path in of_engine)]
        answers = iter(await self._ask(paths, SNAPSHOT_REQUEST))
        of_engines = [next(answers) for _ in schedulers]
        of_ranks = [[next(answers) for _ in of_engine] for of_engine in workers if of_engine]
        return Snapshots(snapshot_merge.schedulers(of_engines), snapshot_merge.workers(of_ranks))

    async def flows(self, transfer_id: str) -> list[dict[str, Any]]:
        """Return what the prefill ranks know of the layers of one transfer."""
        answers = await self._ask_workers(TIMELINE_REQUEST, transfer_id.encode())
        return [{**flow, "rank": rank} for rank, answer in enumerate(answers) for flow in answer["flows"]]

    async def cancel(self, transfer_ids: Sequence[str]) -> int:
        """Cancel transfers on every worker; return how many were open. Repeating it is harmless."""
        answers = await self._ask_workers(CANCEL_REQUEST, json.dumps(transfer_ids).encode())
        return max(int(answer.get("open", 0)) for answer in answers)

    async def runner(self) -> dict[str, Any]:
        """Return what the worker has counted of its tokens' way to the host."""
        sockets = [folder / RUNNER_SOCKET for folder in engine_dirs(self._runtime_dir)]
        # There may be the file of an address in place of a socket.
        found = [far if (far := path.with_suffix(FAR_SUFFIX)).exists() else path for path in sockets]
        return snapshot_merge.runners(await self._ask(found, SNAPSHOT_REQUEST))

    async def integrity(self) -> dict[str, Any]:
        """Have the block pool checked; return what was found."""
        found = [folder / "integrity.sock" for folder in engine_dirs(self._runtime_dir)]
        return snapshot_merge.integrity(await self._ask(found, SNAPSHOT_REQUEST, timeout_s=INTEGRITY_TIMEOUT_S))

    async def _ask_workers(self, *question: bytes) -> list[dict[str, Any]]:
        workers = [path for folder in engine_dirs(self._runtime_dir) for path in worker_sockets(folder)]
        if not workers:
            raise ConnectorFailedError("the connector has not started")
        return await self._ask(workers, *question)

    async def _ask(
        self, paths: Sequence[Path], *question: bytes, timeout_s: float | None = None
    ) -> list[dict[str, Any]]:
        return await asyncio.gather(*(self._client.ask_worker(path, *question, timeout_s=timeout_s) for path in paths))


class Outcomes:
    """Which transfers did not go as planned, as far as the connector has said."""

    def __init__(self, runtime_dir: Path) -> None:
        self._path = runtime_dir / "outcomes.sock"
        self._known: OrderedDict[str, Outcome] = OrderedDict()
        self._reserved: OrderedDict[str, None] = OrderedDict()
        self._awaited: dict[str, asyncio.Event] = {}
        self._listener: socket.socket | None = None
        self._senders: list[socket.socket] = []

    def start(self) -> None:
        """Listen for the connectors of all engines; idempotent. In the event loop."""
        if self._listener is None:
            self._loop = asyncio.get_running_loop()
            self._path.unlink(missing_ok=True)
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._listener.setblocking(False)
            self._listener.bind(str(self._path))
            self._path.chmod(0o600)
            self._listener.listen()
            self._loop.add_reader(self._listener, self._accept)

    def stop(self) -> None:
        """Close everything; idempotent."""
        while self._senders:
            self._forget(self._senders[0])
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def take(self, transfer_id: str) -> Outcome | None:
        """Return a transfer's outcome and forget it; None if it went as planned.

        What the connector sent before the request's first token is known here: its `send` writes into our buffer.
        """
        self._hear()
        return self._known.pop(transfer_id, None)

    async def wait_until_reserved(self, transfer_id: str, timeout_s: float) -> bool:
        """Wait until a decode node has reserved blocks for a transfer; return whether it has."""
        self._hear()
        if transfer_id not in self._reserved and timeout_s:
            event = self._awaited[transfer_id] = asyncio.Event()
            try:
                async with asyncio.timeout(timeout_s):
                    await event.wait()
            except TimeoutError:
                return False
            finally:
                self._awaited.pop(transfer_id, None)
        return transfer_id in self._reserved

    def _hear(self) -> None:
        self._accept()
        for sender in tuple(self._senders):
            self._drain(sender)

    def _accept(self) -> None:
        while self._listener is not None:
            try:
                sender, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # EMFILE: it waits in the backlog with its lines, for a response that asks
                self._loop.remove_reader(self._listener)
                return
            sender.setblocking(False)
            self._senders.append(sender)
            self._loop.add_reader(sender, self._drain, sender)  # while no response asks

    def _drain(self, sender: socket.socket) -> None:
        while True:
            try:
                line = sender.recv(_MAX_LINE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                line = b""
            if not line:
                self._forget(sender)
                return
            self._add(line)

    def _forget(self, sender: socket.socket) -> None:
        self._loop.remove_reader(sender)
        self._senders.remove(sender)
        sender.close()

    def _add(self, encoded: bytes) -> None:
        try:
            line = msgspec.json.decode(encoded, type=Outcome)
        except DECODE_ERRORS:
            return  # of another version: the header is a courtesy, the answer is right either way
        if line.path in _PATHS:
            self._known[line.transfer_id] = line
        elif line.path == "reserved":
            self._reserved[line.transfer_id] = None
            if event := self._awaited.get(line.transfer_id):
                event.set()
        for known in (self._known, self._reserved):
            if len(known) > MAX_OUTCOMES:
                known.popitem(last=False)
