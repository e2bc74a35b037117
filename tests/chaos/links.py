"""Nodes in network namespaces, and the links between them cut in several ways; for root, with `ip` and `nft`."""

import asyncio
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any, Final

from benchmarks.overlap.network import DATA_DEVICE, DECODE_DATA, DECODE_HTTP, PREFILL_DATA, PREFILL_HTTP, Network
from tests.chaos.actors import CONTROL_PORT, ActorError
from tests.chaos.cluster import Cluster, Shape
from tests.chaos.schedule import Way
from tests.e2e.stack import Stack

LINK_MBIT_S: Final = 100  # a prompt's KV takes 50 ms, so that there is something to cut
DATA_PORTS: Final = "15000-17999"  # of Mooncake's engines
HTTP_DEVICE: Final = "http"
_TABLE: Final = "baton_chaos"


class SpreadCluster(Cluster):
    """All prefill nodes in one namespace, all decode nodes in another, the proxy outside."""

    def __init__(self, stack: Stack, shape: Shape, network: Network) -> None:
        self._network = network
        super().__init__(stack, shape)

    def _place(self, name: str) -> dict[str, Any]:
        prefill = name.startswith("p")
        host, data = (PREFILL_HTTP, PREFILL_DATA) if prefill else (DECODE_HTTP, DECODE_DATA)
        space = self._network.prefill if prefill else self._network.decode
        env = {"VLLM_HOST_IP": data, "MC_TCP_BIND_ADDRESS": data}
        return {"host": host, "bind": "0.0.0.0", "advertise": data, "netns": space, "env": env}


class Cutter:
    """Cuts a link in one way, and heals it."""

    def __init__(self, network: Network, way: Way, control_ports: Sequence[str]) -> None:
        self._network = network
        self._way = way
        self._control_ports = control_ports

    async def strike(self) -> None:
        if self._way is Way.DOWN:
            await _run(f"ip -n {self._network.prefill} link set {DATA_DEVICE} down")
            return
        space = self._network.decode if self._way is Way.DROP_HTTP_DECODE else self._network.prefill
        await _run(f"ip netns exec {space} nft -f -", rules_for(self._way, self._control_ports))

    async def heal(self) -> None:
        if self._way is Way.DOWN:
            await _run(f"ip -n {self._network.prefill} link set {DATA_DEVICE} up")
            return
        space = self._network.decode if self._way is Way.DROP_HTTP_DECODE else self._network.prefill
        await _run(f"ip netns exec {space} nft delete table ip {_TABLE}")


def rules_for(way: Way, control_ports: Sequence[str]) -> str:
    """Return nftables' rules for a way to cut, in the prefill nodes' namespace (or for HTTP_DECODE, in the others')."""
    control = "{ " + ", ".join(control_ports) + " }"
    outgoing, incoming = f"oifname {DATA_DEVICE}", f"iifname {DATA_DEVICE}"
    rules = {
        Way.DROP_ALL: (outgoing, incoming),
        Way.DROP_DATA: (f"{outgoing} tcp dport {DATA_PORTS}", f"{incoming} tcp sport {DATA_PORTS}"),
        Way.DROP_CONTROL: (f"{outgoing} tcp sport {control}", f"{incoming} tcp dport {control}"),
        Way.DROP_TO_DECODE: (outgoing, ""),
        Way.DROP_TO_PREFILL: ("", incoming),
        Way.DROP_HTTP_PREFILL: (f"oifname {HTTP_DEVICE}", f"iifname {HTTP_DEVICE}"),
        Way.DROP_HTTP_DECODE: (f"oifname {HTTP_DEVICE}", f"iifname {HTTP_DEVICE}"),
    }
    out, into = rules[way]
    return "\n".join(
        [
            f"table ip {_TABLE} {{",
            *_chain("out", "output", out),
            *_chain("into", "input", into),
            "}",
            "",
        ]
    )


def cutter_for(network: Network, cluster: Cluster, way: Way) -> Cutter:
    ports = [server.argv[server.argv.index(CONTROL_PORT) + 1] for server in cluster.prefill]
    return Cutter(network, way, ports)


def missing_tools() -> list[str]:
    """Name the programs that are needed and not there."""
    return [tool for tool in ("ip", "tc", "nft") if shutil.which(tool) is None]


def _chain(name: str, hook: str, match: str) -> list[str]:
    if not match:
        return []
    return [
        f" chain {name} {{",
        f"  type filter hook {hook} priority 0; policy accept;",
        f"  {match} drop",
        " }",
    ]


async def _run(command: str, text: str = "") -> None:
    done = await asyncio.to_thread(subprocess.run, command.split(), input=text, capture_output=True, text=True)
    if done.returncode:
        raise ActorError(f"`{command}` failed: {done.stderr.strip()}")
