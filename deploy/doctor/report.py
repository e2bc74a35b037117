"""What a doctor brings back, told to people, and as JSON to CI. Pure."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from baton.contracts.probe import UNLIMITED, Machine
from baton.deploy.doctor.catalogue import Finding
from baton.deploy.doctor.fit import BITS, MEGA, Known, Tried, token_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What one run of the doctor found."""

    findings: list[Finding]
    versions: dict[str, str] = field(default_factory=dict)  # of this machine
    machine: Machine | None = None  # this one
    nodes: list[Known] = field(default_factory=list)
    tried: list[Tried] = field(default_factory=list)

    def count(self, severity: str) -> int:
        return sum(finding.kind.severity == severity for finding in self.findings)


def status(examination: Examination, *, strict: bool) -> int:
    return 1 if examination.count("wrong") or (strict and examination.findings) else 0


def text(examination: Examination) -> str:
    lines = [*_seen(examination)]
    for finding in sorted(examination.findings, key=lambda each: each.kind.severity == "warning"):
        lines.append(f"{finding.kind.severity:<8} {finding.code}  {finding.where}: {finding.what}")
        lines.append(f"{'':<8} fix: {finding.fix}")
    wrong, warnings = examination.count("wrong"), examination.count("warning")
    lines.append(
        f"{wrong} wrong, {warnings} warning{'s' * (warnings != 1)}" if examination.findings else "nothing is wrong"
    )
    return "\n".join(lines)


def as_json(examination: Examination) -> str:
    return json.dumps(
        {
            "wrong": examination.count("wrong"),
            "warnings": examination.count("warning"),
            "findings": [_finding(finding) for finding in examination.findings],
            "versions": examination.versions,
            "machine": _machine(examination.machine),
            "nodes": [_node(node) for node in examination.nodes],
            "pairs": [_pair(tried) for tried in examination.tried],
        },
        indent=2,
        ensure_ascii=False,
    )


def _seen(examination: Examination) -> Iterator[str]:
    if examination.machine is not None:
        yield f"machine  {_versions(examination.versions)}; {_limits(examination.machine)}"
    for node in examination.nodes:
        if node.info is not None:
            found = node.info.fingerprint
            kv = f", {found.dtype}, blocks of {found.block_size_tokens}" if found else ""
            yield f"{node.info.role:<8} {node.url}  {node.info.state}, {_versions(node.info.versions)}{kv}"
    for tried in examination.tried:
        if tried.mbit_s is not None:
            yield f"pair     {tried.where}  {_worth(tried)}"


def _worth(tried: Tried) -> str:
    tokens = _tokens_per_s(tried)
    parts = [f"{tried.mbit_s:.0f} Mbit/s" + (f" ({tokens:.0f} tokens of KV a second)" if tokens else "")]
    parts.append(f"{tried.latency_ms:.2f} ms")
    if tried.push is not None and tried.push.after_idle_s is not None:
        parts.append(f"{tried.push.after_idle_s * 1000:.2f} ms after {tried.idle_s:g} s without a byte")
    return ", ".join(parts)


def _tokens_per_s(tried: Tried) -> float | None:
    each = token_bytes(tried.prefill.info) if tried.prefill.info else None
    return tried.mbit_s * MEGA / BITS / each if each and tried.mbit_s is not None else None


def _versions(versions: dict[str, str]) -> str:
    names = {"baton": "Baton", "vllm": "vLLM", "mooncake": "Mooncake", "protocol": "protocol"}
    return ", ".join(f"{name} {versions[key]}" for key, name in names.items() if key in versions)


def _limits(machine: Machine) -> str:
    files = "any number of" if machine.open_files == UNLIMITED else str(machine.open_files)
    pinned = "any" if machine.locked_bytes == UNLIMITED else f"{machine.locked_bytes} bytes of"
    cards = ", ".join(device.name for device in machine.rdma_devices) or "none"
    return f"{files} open files, {pinned} pinned memory, RDMA cards: {cards}"


def _finding(finding: Finding) -> dict[str, str]:
    return {
        "code": finding.code,
        "severity": finding.kind.severity,
        "where": finding.where,
        "what": finding.what,
        "fix": finding.fix,
    }


def _machine(machine: Machine | None) -> dict[str, Any] | None:
    if machine is None:
        return None
    told: dict[str, Any] = msgspec.to_builtins(machine)
    del told["name"]  # it only tells machines apart
    return told


def _node(node: Known) -> dict[str, Any]:
    info = node.info
    return {
        "url": node.url,
        "role": node.role,
        "says": None
        if info is None
        else {
            "role": info.role,
            "state": info.state,
            "model": info.model,
            "versions": info.versions,
            "weights": info.fingerprint.weights if info.fingerprint else None,
            "control_addresses": info.control_addresses,
        },
        "machine": _machine(node.machine),
    }


def _pair(tried: Tried) -> dict[str, Any]:
    push = tried.push
    return {
        "prefill": tried.prefill.url,
        "decode": tried.decode.url,
        "mbit_s": tried.mbit_s,
        "tokens_s": _tokens_per_s(tried),
        "latency_ms": tried.latency_ms,
        "first_ms": push.first_s * 1000 if push and push.first_s is not None else None,
        "idle_s": tried.idle_s,
        "after_idle_ms": push.after_idle_s * 1000 if push and push.after_idle_s is not None else None,
    }
