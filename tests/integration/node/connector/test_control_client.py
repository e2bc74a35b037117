"""The node's questions to ranks on other hosts."""

import socket
import tempfile
from pathlib import Path

import pytest

from baton.contracts.secret import ClusterSecret
from baton.kv_connector.control.status_endpoints import TcpEndpoint
from baton.kv_connector.control.status_server import StatusServer
from baton.kv_connector.errors import ConnectorError
from baton.node.connector.connector_channel import ConnectorClient
from baton.node.connector.control_client import ControlClient
from baton.node.errors import ConnectorFailedError, ConnectorSilentError, NoAnswerError
from tests.e2e.waiting import until
from tests.support.ports import free_port

HERE = "127.0.0.1"
OLD, NEW = b"the secret of this cluster", b"the secret that replaces it"


class Changing(ClusterSecret):
    """A secret that a test changes, as a file does."""

    def change(self, *values: bytes) -> None:
        self._values = values


def serve(folder: Path, secret: ClusterSecret, name: str = "worker-1.sock") -> StatusServer:
    """A rank on another host, whose address is in the same folder."""
    door = TcpEndpoint(folder / name, HERE, secret)
    server = StatusServer(folder / name, lambda: {"far": True}, len, lambda _: {"flows": []}, door)
    server.start()
    return server


async def test_a_far_rank_answers_and_takes_cancels(tmp_path: Path) -> None:
    """As one here does; its file takes the place of the socket."""
    server = serve(tmp_path, ClusterSecret(OLD))
    asker, cancels = (
        ControlClient(5.0, ClusterSecret(OLD)),
        ConnectorClient(tmp_path, ClusterSecret(OLD), timeout_s=5.0),
    )
    path = tmp_path / "worker-1.addr"

    assert await asker.ask_worker(path, b"snapshot") == {"far": True}
    assert await cancels.cancel(["a", "b"]) == 2
    assert not path.with_suffix(".sock").exists()
    asker.stop()
    cancels.stop()
    server.stop()


async def test_the_rank_that_samples_may_be_far(tmp_path: Path) -> None:
    """The last pipeline stage is on the last host."""
    server = serve(tmp_path, ClusterSecret(OLD), "runner.sock")
    client = ConnectorClient(tmp_path, ClusterSecret(OLD), timeout_s=5.0)

    with pytest.raises(KeyError, match="syncs"):  # it is asked; this one says something else
        await client.runner()
    client.stop()
    server.stop()


@pytest.mark.parametrize("secret", [None, ClusterSecret(NEW)], ids=["none", "another"])
async def test_a_client_without_the_secret_is_not_answered(secret: ClusterSecret | None, tmp_path: Path) -> None:
    """A client without the cluster's secret could otherwise cancel transfers."""
    server = serve(tmp_path, ClusterSecret(OLD))
    asker = ControlClient(0.5, secret)

    with pytest.raises(NoAnswerError):
        await asker.ask_worker(tmp_path / "worker-1.addr", b"snapshot")
    asker.stop()
    server.stop()


async def test_the_secret_may_be_replaced(tmp_path: Path) -> None:
    """Both are tried while there are two, and the rank's port opens again with the new one."""
    theirs, ours = Changing(OLD), Changing(OLD)
    server, asker = serve(tmp_path, theirs), ControlClient(5.0, ours)
    path = tmp_path / "worker-1.addr"
    address = path.read_text()

    ours.change(NEW, OLD)
    assert await asker.ask_worker(path, b"snapshot") == {"far": True}
    theirs.change(NEW, OLD)
    ours.change(NEW)

    def answered() -> bool:
        return not server._door.is_outdated()

    await until(answered)
    assert await asker.ask_worker(path, b"snapshot") == {"far": True}
    assert path.read_text() == address
    asker.stop()
    server.stop()


@pytest.mark.parametrize("far", [False, True])
async def test_a_process_that_accepts_nothing_is_silent_and_one_that_ended_has_failed(*, far: bool) -> None:
    """The kernel queues connections for a process that is stopped, until the queue is full; it refuses them for one that ended.

    So has one without a file of its address.
    """
    with tempfile.TemporaryDirectory(prefix="baton-test-") as folder:
        path = Path(folder) / ("worker-1.addr" if far else "worker-0.sock")
        stopped = socket.socket(socket.AF_INET if far else socket.AF_UNIX, socket.SOCK_STREAM)
        stopped.bind((HERE, free_port()) if far else str(path))
        stopped.listen(1)
        if far:
            path.write_text(f"tcp://{HERE}:{stopped.getsockname()[1]}")
        asker = ControlClient(0.1, ClusterSecret(OLD))

        for _ in range(4):  # more than the queue takes
            with pytest.raises(ConnectorSilentError):
                await asker.ask_worker(path, b"snapshot")
        stopped.close()
        with pytest.raises(ConnectorFailedError, match="gone"):
            await asker.ask_worker(path, b"snapshot")
        path.unlink()
        with pytest.raises(ConnectorFailedError, match="cannot be read" if far else "gone"):
            await asker.ask_worker(path, b"snapshot")
        asker.stop()


def test_an_address_that_is_not_this_hosts_is_named(tmp_path: Path) -> None:
    """The rank does not start."""
    with socket.create_server((HERE, 0)) as taken:
        door = TcpEndpoint(tmp_path / "worker-1.sock", HERE, ClusterSecret(OLD))
        door._port = taken.getsockname()[1]
        server = StatusServer(tmp_path / "worker-1.sock", dict, door=door)

        with pytest.raises(ConnectorError, match="cannot answer the node"):
            server.start()
        server.stop()
