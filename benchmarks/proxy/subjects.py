"""Which proxies are measured, and how each one is started. Pure but for looking whether a peer is installed."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from benchmarks.proxy.figures import ASGI, BATON, HTTPX, VLLM_ROUTER

PEERS: Final = {"vllm-router": "0.1.17", "sglang-router": "0.3.2"}
DEFAULT_PEERS_DIR: Final = Path.home() / ".cache" / "baton" / "peers"
GREEDY: Final = "baton, greedy"
TRACED: Final = 0.01  # of Baton's requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a proxy listens, and what it stands in front of."""

    port: int
    spare_port: int
    prefill_url: str
    decode_url: str
    secret_file: Path
    collector_url: str  # of traces


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A proxy that is measured."""

    name: str
    what: str  # for the report
    dialect: Literal["baton", "vllm"]
    command: Callable[[Place], list[str]]
    body: Mapping[str, Any] = field(default_factory=dict)  # further fields of each request


@dataclass(frozen=True, slots=True)
class Missing:
    """A proxy that cannot be measured on this machine."""

    name: str
    reason: str


def subjects(peers_dir: Path) -> tuple[list[Subject], list[Missing]]:
    found = list(OURS)
    missing = []
    for name, version in PEERS.items():
        if (peers_dir / "bin" / name).exists():
            found.append(_router(name, version, peers_dir / "bin"))
        else:
            missing.append(Missing(name, f"{name} {version} is not installed in its environment: see --install-peers"))
    return found, missing


def _baton(place: Place) -> list[str]:
    urls = ("--prefill", place.prefill_url, "--decode", place.decode_url)
    listening = ("--host", "127.0.0.1", "--port", str(place.port))
    traces = ("--otlp-endpoint", place.collector_url, "--trace-share", str(TRACED))
    secret = ("--secret-file", str(place.secret_file))
    return [sys.executable, "-m", "baton.proxy", "--placement", "pairs", *listening, *urls, *traces, *secret]


def _relay(module: str) -> Callable[[Place], list[str]]:
    def command(place: Place) -> list[str]:
        urls = ("--prefill", place.prefill_url, "--decode", place.decode_url)
        return [sys.executable, "-m", f"benchmarks.proxy.relays.{module}", "--port", str(place.port), *urls]

    return command


def _router(name: str, version: str, folder: Path) -> Subject:
    starts = (
        ["vllm-router", "--vllm-pd-disaggregation"] if name == VLLM_ROUTER else [name, "launch", "--pd-disaggregation"]
    )
    bootstrap = [] if name == VLLM_ROUTER else ["none"]

    def command(place: Place) -> list[str]:
        urls = ["--prefill", place.prefill_url, *bootstrap, "--decode", place.decode_url]
        ports = ["--host", "127.0.0.1", "--port", str(place.port), "--prometheus-port", str(place.spare_port)]
        quiet = ["--log-level", "warning" if name == VLLM_ROUTER else "warn", "--worker-startup-check-interval", "1"]
        return [str(folder / starts[0]), *starts[1:], *urls, *ports, "--policy", "round_robin", *quiet]

    what = f"{name} {version} (Rust), prefill/decode mode, round robin, log level warning; no shim"
    return Subject(name=name, what=what, dialect="vllm", command=command)


OURS: Final = (
    Subject(
        name=BATON,
        what="`python -m baton.proxy --placement pairs`, else with its defaults (metrics, breaker, prefix affinity, admission, failover) and 1 % traces",
        dialect="baton",
        command=_baton,
    ),
    Subject(
        name=GREEDY,
        what="the same, asked with `temperature: 0`: streams pass through what remembers token ids, to resume them",
        dialect="baton",
        command=_baton,
        body={"temperature": 0},
    ),
    Subject(
        name=ASGI,
        what="pure ASGI on uvicorn, aiohttp client, both legs at once, no features",
        dialect="vllm",
        command=_relay("asgi_relay"),
    ),
    Subject(
        name=HTTPX,
        what="FastAPI and httpx, one leg after the other: the shape of vLLM's example proxies",
        dialect="vllm",
        command=_relay("httpx_relay"),
    ),
)
