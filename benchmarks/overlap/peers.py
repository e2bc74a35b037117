"""vLLM's own connectors, as they are put up here, and what they need that their documentation does not say."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp

from benchmarks.harness import BenchError
from benchmarks.overlap.network import DATA_DEVICE, PREFILL_DATA, PREFILL_HTTP
from benchmarks.overlap.processes import Place
from benchmarks.overlap.servers import EAGER, Servers
from benchmarks.overlap.subjects import Mooncake, Nixl, WireBytes

_MOONCAKE: Final = "benchmarks.overlap.targets:vllm_with_mooncake"
_NIXL: Final = "benchmarks.overlap.targets:vllm_with_nixl"
NIXL_WHEELS: Final = ("nixl==1.5.1", "nixl-cu12==1.5.1")  # the second holds the library; it needs no CUDA for memory
NIXL_FOLDER: Final = Path.home() / ".cache" / "baton" / "nixl"
NIXL_DECODE: Final = "nixl-decode"
INSTALL_TIMEOUT_S: Final = 600.0
_NIXL_TRANSPORT: Final = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": DATA_DEVICE}


class PeerError(BenchError):
    """A peer cannot be put up; the message is for the person who asked."""


def install_nixl() -> None:
    """Put NIXL's wheels into a folder of their own, unless they are there.

    Raises:
        PeerError: pip could not get them.
    """
    if (NIXL_FOLDER / "nixl").exists():
        return
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(NIXL_FOLDER), *NIXL_WHEELS]
    try:
        subprocess.run(command, check=True, timeout=INSTALL_TIMEOUT_S)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as exc:
        raise PeerError(f"NIXL cannot be installed: {exc}") from exc


class Client(NamedTuple):
    """What measures."""

    http: aiohttp.ClientSession
    wire_bytes: WireBytes


async def mooncake_decode(servers: Servers) -> str:
    """Start the MooncakeConnector's decode node; return its URL."""
    return await servers.vllm("mooncake-decode", _MOONCAKE, servers.decode, _mooncake_flags("kv_consumer"))


async def mooncake_prefill(servers: Servers, client: Client, name: str, chunk: Sequence[str], decode: str) -> Mooncake:
    """Start the MooncakeConnector's prefill node; return the pair."""
    bootstrap = servers.next_port()
    env = {"VLLM_MOONCAKE_BOOTSTRAP_PORT": str(bootstrap)}
    flags = [*_mooncake_flags("kv_producer"), *chunk]
    return Mooncake(
        http=client.http,
        model=servers.model,
        prefill=await servers.vllm(name, _MOONCAKE, servers.prefill, flags, env=env),
        decode=decode,
        bootstrap=f"http://{PREFILL_HTTP}:{bootstrap}",
        bootstrap_for_decode=f"http://{PREFILL_DATA}:{bootstrap}",
        wire_bytes=client.wire_bytes,
    )


async def nixl_decode(servers: Servers) -> str:
    """Start the NixlConnector's decode node; return its URL."""
    return await _nixl(servers, NIXL_DECODE, servers.decode, "kv_consumer", ())


async def nixl_prefill(servers: Servers, client: Client, name: str, chunk: Sequence[str], decode: str) -> Nixl:
    """Start the NixlConnector's prefill node; return the pair."""
    prefill = await _nixl(servers, name, servers.prefill, "kv_producer", chunk)
    return Nixl(http=client.http, model=servers.model, prefill=prefill, decode=decode, wire_bytes=client.wire_bytes)


async def _nixl(servers: Servers, name: str, place: Place, role: str, chunk: Sequence[str]) -> str:
    connector = {"kv_connector": "NixlConnector", "kv_role": role, "kv_buffer_device": "cpu"}
    env = {
        **_NIXL_TRANSPORT,
        "NIXL_FOLDER": str(NIXL_FOLDER),
        "VLLM_NIXL_SIDE_CHANNEL_HOST": place.data_host,
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(servers.next_port()),
    }
    return await servers.vllm(name, _NIXL, place, [EAGER, *_transfer(connector), *chunk], env=env)


def _mooncake_flags(role: str) -> list[str]:
    connector = {"kv_connector": "MooncakeConnector", "kv_role": role}
    return [EAGER, *_transfer(connector | {"kv_connector_extra_config": {"mooncake_protocol": "tcp"}})]


def _transfer(connector: dict[str, Any]) -> tuple[str, str]:
    return ("--kv-transfer-config", json.dumps(connector))
