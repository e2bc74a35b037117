"""The connector's settings, read once from what the node put into `kv_connector_extra_config`."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from baton.contracts.configuration.schema import LayerSyncPolicy, TransferConfig
from baton.contracts.kv_transfer import Role
from baton.contracts.secret import ClusterSecret, read_secret
from baton.kv_connector.errors import ConnectorConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorConfig:
    """One node's connector. The node launcher writes it (`node/startup/arguments.py`)."""

    runtime_dir: Path  # for the sockets that the node API reads
    secret_file: Path
    weights: str  # digest of the weights' revision
    transfer: TransferConfig
    role: Role = "prefill"  # of the node; the connector sets it
    control_host: str = "127.0.0.1"  # P: address that the control socket binds
    control_port: int = 0
    advertise_host: str = "127.0.0.1"  # address that peers reach this node at
    data_host: str = "127.0.0.1"  # address of the transfer engine
    layerwise: bool = False  # P: ask vLLM for piecewise graphs, since hooks do not run inside captured ones
    has_neighbours: bool = False  # other KV connectors stand beside this one
    engine: int = 0  # index of this data-parallel engine; the connector sets it

    @classmethod
    def from_extra(cls, extra: Mapping[str, Any]) -> "ConnectorConfig":
        """Read `kv_connector_extra_config`; raises `ConnectorConfigError` if a key is unknown or missing."""
        known = {field.name for field in fields(cls)}
        if unknown := set(extra) - known:
            raise ConnectorConfigError(f"unknown keys in kv_connector_extra_config: {', '.join(sorted(unknown))}")
        try:
            return cls(
                **{
                    **extra,
                    "runtime_dir": Path(extra["runtime_dir"]),
                    "secret_file": Path(extra["secret_file"]),
                    "transfer": TransferConfig(**extra["transfer"]),
                }
            )
        except (KeyError, TypeError) as exc:
            raise ConnectorConfigError(f"kv_connector_extra_config is incomplete: {exc}") from exc

    @property
    def roles(self) -> frozenset[Role]:
        """What this engine may be in a transfer: its sides."""
        return frozenset(("prefill", "decode")) if self.transfer.both_ways else frozenset((self.role,))

    @property
    def receives_answers(self) -> bool:
        """Whether what it receives is for its prefix cache alone."""
        return self.transfer.both_ways and self.role == "prefill"

    @property
    def layer_sync(self) -> LayerSyncPolicy:
        """When it hands layers to the sender.

        A decode node computes little of what it sends, and its step may be one captured graph, without layers' hooks.
        """
        sends_answers = self.transfer.both_ways and self.role == "decode"
        return "forward" if sends_answers else self.transfer.layer_sync

    @property
    def outcomes_path(self) -> Path:
        """Where the node hears what becomes of transfers."""
        return self.runtime_dir / "outcomes.sock"

    @property
    def engine_dir(self) -> Path:
        """Folder for the sockets of this engine alone: the node's own for the first one."""
        return self.runtime_dir / f"dp{self.engine}" if self.engine else self.runtime_dir

    def port_of_rank(self, index: int, ranks: int) -> int:
        """Return the control port of a rank of this engine: a node's are numbered on; 0 where the system chooses."""
        return self.control_port and self.control_port + self.engine * ranks + index

    def secret(self) -> ClusterSecret:
        return read_secret(self.secret_file)
