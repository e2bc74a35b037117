"""Runs the proxy: uvicorn on uvloop and httptools until SIGTERM or Ctrl-C, then streams are allowed to end."""

import errno
import os
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import uvicorn

from baton.contracts.configuration.schema import BatonConfig
from baton.contracts.secret import ClusterSecret, SecretError, read_secret
from baton.proxy.admin.token import AdminTokenError, read_admin_token
from baton.proxy.app import FrontDoor, create_app
from baton.proxy.auth.key_file import KeyFileError
from baton.proxy.http_server.acceptor import BoundedServer
from baton.proxy.http_server.client_protocol import protocol
from baton.proxy.http_server.tls import Tls, TlsError, files_of
from baton.proxy.nodes.discovery import SourceError
from baton.proxy.telemetry.log_format import configure
from baton.proxy.tracing.tracing import TracingError
from baton.proxy.workers.listen import listen_on
from baton.proxy.workers.slot import WorkerSlot
from baton.proxy.workers.supervisor import Serve, Supervisor, exit_cleanly

KEEP_ALIVE_S = 75  # longer than the pools of usual clients keep a connection, so that they close it first
MAX_DIRECTORY_BYTES: Final = 90  # Linux takes 108 for a socket's whole name


class StartError(Exception):
    """The proxy cannot start; the message says why."""


def run(config: BatonConfig) -> None:
    """Serve until told to stop, in this process or `proxy.workers` of them; raise `StartError` if that cannot be."""
    try:
        secret, token_file = _secret(config), config.proxy.admin_token_file
        token = read_admin_token(token_file) if token_file is not None else None
        app, tls = create_app(config, secret, token), _tls(config)
    except (SecretError, AdminTokenError, SourceError, KeyFileError, TracingError, TlsError) as exc:
        raise StartError(str(exc)) from exc
    configure(config.proxy.log_level, config.proxy.log_format)
    if config.proxy.workers == 1:
        _serve(config, app, tls, _listen(config)[0])
        return

    def serve(slot: WorkerSlot, sockets: Sequence[socket.socket]) -> None:
        _serve(config, create_app(config, secret, token, slot), _tls(config), list(sockets))

    signal.signal(signal.SIGTERM, exit_cleanly)  # until the supervisor takes it, and after: the directory is removed
    with TemporaryDirectory(prefix="baton-proxy-") as directory:
        _supervise(config, serve, Path(directory))


def _supervise(config: BatonConfig, serve: Serve, directory: Path) -> None:
    if len(os.fsencode(directory)) > MAX_DIRECTORY_BYTES:
        raise StartError(f"{directory} is too long a name for sockets in it: set TMPDIR to a shorter one")
    Supervisor(serve, _listen(config), directory, stop_timeout_s=_drain_s(config)).run()


def _listen(config: BatonConfig) -> list[list[socket.socket]]:
    host, port = config.proxy.host, config.proxy.port
    try:
        return listen_on(host, port, config.proxy.workers)
    except OSError as exc:
        advice = "; choose another port with --port (`proxy.port`)" if exc.errno == errno.EADDRINUSE else ""
        raise StartError(f"cannot listen on {host}:{port}: {exc.strerror}{advice}") from exc


def _tls(config: BatonConfig) -> Tls | None:
    files = files_of(config.proxy)
    return Tls(files) if files is not None else None


def _serve(config: BatonConfig, app: FrontDoor, tls: Tls | None, sockets: list[socket.socket]) -> None:
    settings = uvicorn.Config(
        app,
        loop="uvloop",
        http=protocol(config.proxy),
        ws="none",
        lifespan="on",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        log_level=config.proxy.log_level,
        log_config=None,  # its lines look like ours
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=_drain_s(config),
    )
    # uvicorn raises the signal again after its clean stop: end then with 0, not as if killed.
    signal.signal(signal.SIGTERM, exit_cleanly)
    with suppress(KeyboardInterrupt):
        BoundedServer(settings, tls, farewell_s=config.proxy.request_timeout_s).run(sockets)


def _secret(config: BatonConfig) -> ClusterSecret:
    if config.cluster.secret_file is None:
        raise StartError("cluster.secret_file is not set: the proxy and the nodes need a common secret")
    return read_secret(config.cluster.secret_file)


def _drain_s(config: BatonConfig) -> int:
    """Return how long open streams may go on: a little less than the launcher waits for us."""
    return max(1, int(config.serve.stop_timeout_s) - 2)
