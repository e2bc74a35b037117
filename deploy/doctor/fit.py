"""Judges what machines and nodes say of themselves, whether two nodes fit, and what was measured between them; and says which pairs are measured together. Pure.

The judgements are those of the proxy and the connector; here they get a name and a place.
"""

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from baton.contracts.kv_transfer import Role
from baton.contracts.node_info import NodeInfo, differences
from baton.contracts.probe import UNLIMITED, Machine, Pushed, Reached
from baton.deploy.doctor.catalogue import Finding
from baton.kv_connector.errors import LayoutError
from baton.kv_connector.layout.pairing import Side, pair
from baton.kv_connector.layout.regions import Region
from baton.kv_connector.protocol.messages import Rank
from baton.proxy.nodes.node import OUR_PROTOCOL, protocol_of, unusable_because

DIFFERENCES: Final[Mapping[str, str]] = {  # field of the fingerprint → finding
    **{name: name for name in ("weights", "dtype", "quantization", "rope", "attention")},
    "kv_cache_dtype": "dtype",
    "block_size_tokens": "block-size",
}
MIN_OPEN_FILES: Final = 8192
RDMA: Final = "rdma"
COMPARED: Final = ("baton", "vllm", "mooncake")  # that should be the same on all nodes
BITS: Final = 8
MEGA: Final = 1e6
FAR_BELOW: Final = 0.25  # of the best pair's bandwidth


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """One node, as far as it could be asked."""

    url: str
    role: Role  # that it is listed with
    info: NodeInfo | None = None
    machine: Machine | None = None
    engines: Sequence[str] = field(default=())  # sessions of its receiving engines

    @property
    def usable(self) -> bool:
        return self.info is not None and self.info.role == self.role and self.machine is not None


def control_addresses(info: NodeInfo) -> list[str]:
    """Return the addresses that decode nodes dial; those of several ranks stand in one entry, joined by commas."""
    return [address for entry in info.control_addresses for address in entry.split(",") if address]


def kv_bytes(info: NodeInfo) -> int:
    return sum(region.stride_bytes * region.num_blocks for region in info.regions)


def token_bytes(info: NodeInfo) -> float | None:
    if info.fingerprint is None or not info.regions or info.fingerprint.block_size_tokens <= 0:
        return None
    return sum(region.block_bytes for region in info.regions) / info.fingerprint.block_size_tokens


def diagnose_machine(machine: Machine, where: str, kv_bytes: int | None = None) -> Iterator[Finding]:
    if machine.open_files != UNLIMITED and machine.open_files < MIN_OPEN_FILES:
        what = f"a process may open {machine.open_files} files; {MIN_OPEN_FILES} is the least that nodes and proxy want"
        yield Finding(code="open-files", where=where, what=what)
    if machine.protocol == RDMA:
        yield from _diagnose_rdma(machine, where, kv_bytes)


def _diagnose_rdma(machine: Machine, where: str, kv_bytes: int | None) -> Iterator[Finding]:
    names = ", ".join(device.name for device in machine.rdma_devices)
    if not names:
        yield Finding(code="rdma-device", where=where, what="the transport is RDMA and there is no RDMA card")
    elif not any(device.active for device in machine.rdma_devices):
        yield Finding(code="rdma-device", where=where, what=f"no port of the RDMA cards ({names}) is active")
    if machine.locked_bytes != UNLIMITED and (kv_bytes is None or machine.locked_bytes < kv_bytes):
        of = "the KV cache" if kv_bytes is None else f"the {kv_bytes} bytes of KV cache"
        what = f"a process may pin {machine.locked_bytes} bytes of memory, and RDMA pins {of}"
        yield Finding(code="locked-memory", where=where, what=what)


def diagnose_node(node: Known) -> Iterator[Finding]:
    if node.info is None:
        return
    if reason := unusable_because(node.role, node.info):
        wrong_role, draining = node.info.role != node.role, node.info.state == "draining"
        code = "wrong-role" if wrong_role else "draining" if draining else "not-ready"
        yield Finding(code=code, where=node.url, what=reason)
    elif node.info.state == "silent":
        yield Finding(code="silent", where=node.url, what="its engine does not answer")
    if node.machine is None:
        yield Finding(code="no-probe", where=node.url, what="the node has no /baton/probe")


def diagnose_versions(nodes: Sequence[Known]) -> Iterator[Finding]:
    for component in COMPARED:
        found: dict[str, list[str]] = {}
        for node in nodes:
            if node.info is not None and (version := node.info.versions.get(component)):
                found.setdefault(version, []).append(node.url)
        if len(found) > 1:
            parts = (f"{version} on {', '.join(urls)}" for version, urls in sorted(found.items()))
            _, odd = min((len(urls), urls) for urls in found.values())
            where = ", ".join(odd)
            yield Finding(code="versions", where=where, what=f"{component} {'; '.join(parts)}")


def diagnose_pair(prefill: Known, decode: Known) -> Iterator[Finding]:
    if prefill.info is None or decode.info is None:
        return
    where = name_of_pair(prefill, decode)
    mine, theirs = protocol_of(prefill.info), protocol_of(decode.info)
    if mine != theirs or mine != OUR_PROTOCOL:
        what = f"the prefill node speaks protocol {mine}, the decode node {theirs}, this Baton {OUR_PROTOCOL}"
        yield Finding(code="protocol", where=where, what=what)
    yield from _diagnose_kv(prefill.info, decode.info, where)
    yield from _diagnose_loopback(prefill, decode, where)


def name_of_pair(prefill: Known, decode: Known) -> str:
    return f"{prefill.url} → {decode.url}"


def _diagnose_kv(prefill: NodeInfo, decode: NodeInfo, where: str) -> Iterator[Finding]:
    if prefill.fingerprint is None or decode.fingerprint is None:
        return  # they are not ready, which is said of them
    found = differences(prefill.fingerprint, decode.fingerprint)
    for difference in found:
        name = difference.partition(":")[0]
        what = difference.replace(" here", " on the prefill node").replace(" there", " on the decode node")
        yield Finding(code=DIFFERENCES[name], where=where, what=what)
    if not found and (reason := _layout(prefill, decode)):
        yield Finding(code="layout", where=where, what=reason)


def _layout(prefill: NodeInfo, decode: NodeInfo) -> str:
    """Why the regions of their first ranks, which they describe, cannot be mapped; "" if they can."""
    try:
        pair(_first_rank(prefill), _first_rank(decode))
    except LayoutError as exc:
        return str(exc)
    return ""


def _first_rank(info: NodeInfo) -> Side:
    rank = Rank(tp_size=info.tensor_parallel_size, pp_size=info.pipeline_parallel_size)
    tokens = info.fingerprint.block_size_tokens if info.fingerprint else 0
    return Side(rank, [Region.from_info(region) for region in info.regions], tokens)


def _diagnose_loopback(prefill: Known, decode: Known, where: str) -> Iterator[Finding]:
    if prefill.info is None or prefill.machine is None or decode.machine is None:
        return
    if prefill.machine.name == decode.machine.name:
        return  # loopback means the same to both
    for own, other, addresses in (
        ("prefill", "decode", control_addresses(prefill.info)),
        ("decode", "prefill", decode.engines),
    ):
        if announced := next(filter(_is_loopback, addresses), ""):
            what = f"the {own} node announces {announced}, which on the {other} node's machine is that machine itself"
            yield Finding(code="loopback-advertised", where=where, what=what)


def _is_loopback(address: str) -> bool:
    name = address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a link should be worth."""

    min_mbit_s: float
    max_latency_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What was tried between two nodes. What is None was not."""

    prefill: Known
    decode: Known
    control: Reached | None = None  # D to P's control addresses; the first that failed, if any did
    data: Reached | None = None  # P to D's transfer engines that serve; likewise
    push: Pushed | None = None
    problem: str = ""  # why a push could not even be tried
    idle_s: float = 0.0

    @property
    def where(self) -> str:
        return name_of_pair(self.prefill, self.decode)

    def finding(self, code: str, what: str) -> Finding:
        return Finding(code=code, where=self.where, what=what)

    @property
    def mbit_s(self) -> float | None:
        found = self.push.bytes_per_s if self.push else None
        return None if found is None else found * BITS / MEGA

    @property
    def latency_ms(self) -> float | None:
        found = self.push.latency_s if self.push else None
        return None if found is None else found * 1000


def diagnose_links(tried: Sequence[Tried], wanted: Wanted) -> Iterator[Finding]:
    best = max((each.mbit_s or 0.0 for each in tried), default=0.0)
    for each in tried:
        yield from _diagnose_control(each)
        yield from _diagnose_data(each)
        yield from _diagnose_worth(each, wanted, best)


def rounds(prefill: Sequence[Known], decode: Sequence[Known]) -> list[list[tuple[Known, Known]]]:
    """Pair each prefill node with each decode node, in rounds in which no node is busy twice."""
    count = max(len(prefill), len(decode)) if prefill and decode else 0
    turns = [
        [(prefill[at], decode[(at + turn) % count]) for at in range(len(prefill)) if (at + turn) % count < len(decode)]
        for turn in range(count)
    ]
    return [turn for turn in turns if turn]


def _diagnose_control(tried: Tried) -> Iterator[Finding]:
    if tried.control is not None and tried.control.problem:
        code = "control-secret" if tried.control.refused else "control-unreachable"
        yield tried.finding(code, tried.control.problem)


def _diagnose_data(tried: Tried) -> Iterator[Finding]:
    push = tried.push
    if push is not None and push.problem and push.bytes_per_s is not None:
        yield tried.finding("idle-gap", f"after {tried.idle_s:g} s without a byte, {push.problem}")
    elif push is not None and push.problem:
        yield tried.finding("data-unreachable", push.problem)
    elif tried.data is not None and tried.data.problem:
        yield tried.finding("data-unreachable", tried.data.problem)
    elif tried.problem:
        yield tried.finding("probe-failed", tried.problem)


def _diagnose_worth(tried: Tried, wanted: Wanted, best: float) -> Iterator[Finding]:
    mbit_s, latency_ms = tried.mbit_s, tried.latency_ms
    if mbit_s is not None and mbit_s < wanted.min_mbit_s:
        yield tried.finding("slow-link", f"KV travels at {mbit_s:.0f} Mbit/s, {wanted.min_mbit_s:g} are wanted")
    elif mbit_s is not None and mbit_s < FAR_BELOW * best:
        yield tried.finding("slow-link", f"KV travels at {mbit_s:.0f} Mbit/s, and at {best:.0f} between the best pair")
    if latency_ms is not None and latency_ms > wanted.max_latency_ms:
        yield tried.finding(
            "latency", f"a push of a few bytes takes {latency_ms:.1f} ms, {wanted.max_latency_ms:g} are wanted"
        )
