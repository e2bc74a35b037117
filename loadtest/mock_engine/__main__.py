"""`python -m baton.loadtest.mock_engine`: a prefill or decode node without an engine."""

import argparse
import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from baton.contracts.secret import SecretError, read_secret
from baton.loadtest import words
from baton.loadtest.errors import LoadtestError
from baton.loadtest.mock_engine.answers import chunks
from baton.loadtest.mock_engine.connection import Connection
from baton.loadtest.mock_engine.engine import COUNTS_PATH, FAULT_PATH, MockEngine
from baton.loadtest.mock_engine.settings import Fault, FaultSetting, Settings
from baton.loadtest.mock_engine.wheel import Ticker


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        settings = _settings(arguments)
        for chat in (False, True):  # a size that cannot be is told now
            chunks(chat=chat, prompt_ids=1, usage=None, event_bytes=settings.chunk_bytes)
        uvloop.run(_serve(settings, arguments))
    except (LoadtestError, SecretError, OSError) as exc:
        print(f"mock_engine: {exc}", file=sys.stderr)
        return 2
    return 0


async def _serve(settings: Settings, arguments: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    secret = read_secret(arguments.secret_file) if arguments.secret_file else None
    with socket.create_server((arguments.host, arguments.port), backlog=4096) as sock:
        port = sock.getsockname()[1]
        engine = MockEngine(settings, Ticker(settings.tick_s), secret, port)
        server = await loop.create_server(lambda: Connection(engine), sock=sock, backlog=4096)
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        print(f"http://{arguments.host}:{port}", flush=True)
        with contextlib.closing(server):
            await stopped.wait()


def _settings(arguments: argparse.Namespace) -> Settings:
    fault = FaultSetting(
        fault=Fault(arguments.fault),
        status=arguments.fault_status,
        after_tokens=arguments.fault_after,
        times=arguments.fault_times,
    )
    return Settings(
        role=arguments.role,
        ttft_s=arguments.ttft_ms / 1000,
        itl_s=arguments.itl_ms / 1000,
        tokens=arguments.tokens,
        chunk_bytes=arguments.chunk_bytes,
        tick_s=arguments.tick_ms / 1000,
        fault=fault,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m baton.loadtest.mock_engine",
        description="A node without an engine; its address is the first line that it prints.",
        epilog=f"GET {COUNTS_PATH} says what it has done. POST {FAULT_PATH} with "
        '{"fault": "cut", "after_tokens": 2, "times": 1} changes the fault.',
    )
    add = parser.add_argument
    add("--role", choices=("prefill", "decode"), required=True)
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=0, help="0: any free one")
    add("--secret-file", type=Path, help="speak as a Baton node; without it, as a plain vLLM")
    add("--ttft-ms", type=words.not_negative, default=0.0)
    add("--itl-ms", type=words.not_negative, default=0.0)
    add("--tokens", type=words.count, default=16, help="of an answer, where a request does not say how many")
    add("--chunk-bytes", type=int, default=0, help="of each token's event, padded; 0: as it comes")
    add("--tick-ms", type=words.above_0, default=1.0, help="delays end on a tick; set it to the ITL for steps")
    add("--fault", choices=list(Fault), default=Fault.NONE)
    add("--fault-status", type=int, default=500)
    add("--fault-after", type=int, default=1, help="tokens that are sent before a cut or a stall")
    add("--fault-times", type=int, default=0, help="requests that meet it; 0: all")
    return parser


if __name__ == "__main__":
    sys.exit(main())
