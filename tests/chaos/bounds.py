"""How long a client may wait, and how long blocks may stay away, for each fault. Pure; from the configuration."""

from dataclasses import dataclass
from typing import Final

from contracts.configuration.schema import TransferConfig
from tests.chaos.schedule import HTTP_WAYS, Cut, Fault, Kill, Stall

GIVEN_BACK_S: Final = 2.0  # I5, while both nodes are alive, reachable and stepping
STEP_S: Final = 1.0  # of a loaded engine, where five servers share two cores
FENCE_S: Final = 1.0  # at most; 20 to 60 ms on a machine that is not crowded
RESUMED_S: Final = 15.0  # from the moment the fault has ended, to the first answer that used what had failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The configured time-outs, and how long the machine takes to answer a full house."""

    transfer: TransferConfig
    request_timeout_s: float
    service_s: float  # from then on, all clients being served at once by what is left

    def answer_s(self, fault: Fault) -> float:
        """From the fault, or the request's start if that is later, to the end of the answer."""
        if isinstance(fault, Kill) and fault.victim == "proxy":
            return 2 * STEP_S  # the connection breaks at once
        longest_s = self.request_timeout_s + STEP_S
        if isinstance(fault, Stall) and fault.victim == "proxy":
            longest_s = max(longest_s, fault.lasts_s + STEP_S)  # nobody answers while it is stopped
        return min(self._unnoticed_s(fault) + self.service_s, longest_s)

    def _unnoticed_s(self, fault: Fault) -> float:
        """How long nobody need notice the fault."""
        match fault:
            case Kill(victim="decode"):
                return 0.0  # connections break; the proxy asks another node, or ends the stream with an error
            case Stall(victim="proxy"):
                return fault.lasts_s
            case Stall(victim="decode"):
                return fault.lasts_s  # its connections stay open: nothing notices but the request's time-out
            case Cut(way=way) if way in HTTP_WAYS:
                # They stay open here too, and TCP tries ever more rarely: after the healing at most as long again.
                return 2 * fault.lasts_s
            case Cut():
                # The link may heal just before the peer is given up, and break a push that then takes its own time-out.
                return 2 * self.transfer.peer_timeout_s
            case _:  # a prefill node is gone or silent
                return self.transfer.peer_timeout_s

    def later_s(self, fault: Fault) -> float:
        """The same for clients that come during the fault: they are served by what is left."""
        return max(self.answer_s(fault), self.service_s)

    def given_back_s(self, fault: Fault) -> float:
        """From the fault, or the last client's end if that is later, to the moment when nobody holds a block."""
        if fault_is_on_proxy(fault):
            return GIVEN_BACK_S + STEP_S
        return self.transfer.peer_timeout_s + self.transfer.quarantine_max_s + GIVEN_BACK_S + STEP_S

    @property
    def quarantine_s(self) -> float:
        """How long a block may be in quarantine."""
        return self.transfer.quarantine_max_s + STEP_S

    @property
    def beyond_share_s(self) -> float:
        """How long more blocks may be in quarantine than their share of the pool: a fence is due at once."""
        return FENCE_S + STEP_S


def fault_is_on_proxy(fault: Fault) -> bool:
    """Tell whether both nodes are alive and reachable."""
    return isinstance(fault, Kill | Stall) and fault.victim == "proxy"
