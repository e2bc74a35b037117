"""How long a client may wait, and how long blocks may stay away, for each fault. Pure; from the configuration."""

from dataclasses import dataclass
from typing import Final

from contracts.configuration.schema import TransferConfig
from tests.chaos.schedule import Cut, Fault, Kill, Stall

GIVEN_BACK_S: Final = 2.0  # I5, while both nodes are alive, reachable and stepping
STEP_S: Final = 1.0  # of a loaded engine, where five servers share two cores
RESUMED_S: Final = 15.0  # from the moment the fault has ended, to the first answer that used what had failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The configured time-outs, and how long the machine takes to answer a full house."""

    transfer: TransferConfig
    request_timeout_s: float
    service_s: float  # from then on, all clients being served at once by what is left

    def answer_s(self, fault: Fault) -> float:
        """From the fault, or the request's start if that is later, to the end of the answer."""
        match fault:
            case Kill(victim="proxy"):
                return 2 * STEP_S  # the connection breaks at once
            case Kill(victim="decode"):
                wait_s = 0.0  # so it does here, and the proxy asks another node, or ends the stream with an error
            case Stall(victim="proxy"):
                wait_s = fault.lasts_s
            case Stall(victim="decode"):
                wait_s = min(fault.lasts_s, self.request_timeout_s)  # nothing else notices
            case Kill() | Stall():
                wait_s = self.transfer.peer_timeout_s
            case Cut():
                # The link may heal just before the peer is given up, and break a push that then takes its own time-out.
                wait_s = 2 * self.transfer.peer_timeout_s
        return min(wait_s + self.service_s, self.request_timeout_s + STEP_S)

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


def fault_is_on_proxy(fault: Fault) -> bool:
    """Tell whether both nodes are alive and reachable."""
    return isinstance(fault, Kill | Stall) and fault.victim == "proxy"
