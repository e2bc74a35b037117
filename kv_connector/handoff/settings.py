"""Bounds of the hand-off, in seconds and shares. Time-outs affect liveness, never safety."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffSettings:
    """The part of `TransferConfig` that the state machines need."""

    beat_interval_s: float = 0.5
    peer_timeout_s: float = 5.0  # silent for so long: taken for dead
    reconnect_timeout_s: float = 1.0  # the same, once the connection has broken
    transfer_timeout_s: float = 120.0  # reservation to commit
    orphan_timeout_s: float = 30.0  # finished prompt that no decode rank asks for and nobody cancels
    quarantine_max_s: float = 2.0  # oldest dirty epoch to fence
    quarantine_max_share: float = 0.1  # of the pool
    pool_blocks: int = 1  # size of the pool on D, blocks
