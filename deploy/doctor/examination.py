"""What a doctor brings back: findings, and what was seen besides. Pure data."""

from dataclasses import dataclass, field
from typing import Any

from baton.contracts.probe import Machine
from baton.deploy.doctor.catalogue import Finding
from baton.deploy.doctor.fit import Known
from baton.deploy.doctor.links import Tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """One run."""

    findings: list[Finding]
    versions: dict[str, str] = field(default_factory=dict)  # of this machine
    machine: Machine | None = None  # this one
    nodes: list[Known] = field(default_factory=list)
    tried: list[Tried] = field(default_factory=list)

    def count(self, severity: str) -> int:
        """How many findings there are of a severity."""
        return sum(finding.kind.severity == severity for finding in self.findings)


def described(machine: Machine) -> dict[str, Any]:
    return {
        "data_host": machine.data_host,
        "protocol": machine.protocol,
        "open_files": machine.open_files,
        "locked_bytes": machine.locked_bytes,
        "rdma_devices": [{"name": each.name, "active": each.active} for each in machine.rdma_devices],
    }
