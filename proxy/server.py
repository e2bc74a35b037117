"""Runs the proxy: uvicorn on uvloop and httptools until SIGTERM or Ctrl-C, then streams are allowed to end."""

import logging
import signal
import sys
from contextlib import suppress
from types import FrameType

import uvicorn

from contracts.configuration.schema import BatonConfig
from contracts.secret import ClusterSecret, SecretError, read_secret
from proxy.accept import BoundedServer
from proxy.admin_token import AdminToken, AdminTokenError, read_admin_token
from proxy.app import create_app
from proxy.connections import protocol
from proxy.sources import SourceError

KEEP_ALIVE_S = 75  # longer than the pools of usual clients keep a connection, so that they close it first


class StartError(Exception):
    """The proxy cannot start; the message says why."""


def run(config: BatonConfig) -> None:
    """Serve until told to stop.

    Raises:
        StartError: the configuration cannot be served.
    """
    try:
        app = create_app(config, _secret(config), _admin_token(config))
    except (SourceError, AdminTokenError) as exc:
        raise StartError(str(exc)) from exc
    settings = uvicorn.Config(
        app,
        host=config.proxy.host,
        port=config.proxy.port,
        loop="uvloop",
        http=protocol(config.proxy),
        ws="none",
        lifespan="on",
        access_log=False,
        server_header=False,
        log_level=config.proxy.log_level,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=_drain_s(config),
    )
    logging.basicConfig(level=config.proxy.log_level.upper())
    # uvicorn raises the signal again after its clean stop: end then with 0, not as if killed.
    signal.signal(signal.SIGTERM, _exit)
    with suppress(KeyboardInterrupt):
        BoundedServer(settings).run()


def _secret(config: BatonConfig) -> ClusterSecret:
    if config.cluster.secret_file is None:
        raise StartError("cluster.secret_file is not set: the proxy and the nodes need a common secret")
    try:
        return read_secret(config.cluster.secret_file)
    except SecretError as exc:
        raise StartError(str(exc)) from exc


def _admin_token(config: BatonConfig) -> AdminToken | None:
    path = config.proxy.admin_token_file
    return read_admin_token(path) if path is not None else None


def _drain_s(config: BatonConfig) -> int:
    """Return how long open streams may go on: a little less than the launcher waits for us."""
    return max(1, int(config.serve.stop_timeout_s) - 2)


def _exit(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(0)
