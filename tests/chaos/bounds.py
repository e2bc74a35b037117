"""How long a client may wait, and how long blocks may stay away, for each fault. Pure; from the configuration.

What the configuration bounds is bounded alike everywhere. What the machine takes on top of it is given `patience` times as
long: 1 where speed is judged; many where a test that also runs on slow and crowded machines only guards against hanging.
"""

from dataclasses import dataclass
from typing import Final

from baton.contracts.configuration.schema import TransferConfig
from tests.chaos.schedule import HTTP_WAYS, Cut, Fault, Kill, Stall

GIVEN_BACK_WITHIN_S: Final = 2.0  # I5, while both nodes are alive, reachable and stepping
_STEP_S: Final = 1.0  # of a loaded engine, where five servers share two cores
_FENCE_S: Final = 1.0  # at most; 20 to 60 ms on a machine that is not crowded
_RETURNS_S: Final = 10.0  # how long an answer's KV waits to return, and how long that takes, at most
_RESUMED_S: Final = 15.0  # from the moment the fault has ended, to the first answer that used what had failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The configured time-outs, and how long the machine takes to answer a full house."""

    transfer: TransferConfig
    request_timeout_s: float
    service_s: float  # from then on, all clients being served at once by what is left, on a quiet machine
    patience: float = 1.0

    def answer_s(self, fault: Fault) -> float:
        """From the fault, or the request's start if that is later, to the end of the answer."""
        if isinstance(fault, Kill) and fault.victim == "proxy":
            return 2 * self.step_s  # the connection breaks at once
        longest_s = self.request_timeout_s + self.step_s
        if isinstance(fault, Stall) and fault.victim == "proxy":
            longest_s = max(longest_s, fault.lasts_s + self.step_s)  # a stopped proxy answers no client
        return min(self._unnoticed_s(fault) + self.served_s, longest_s)

    def _unnoticed_s(self, fault: Fault) -> float:
        """How long the fault may go unnoticed by every process."""
        match fault:
            case Kill(victim="decode") if not self.transfer.both_ways:
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
            case _:  # a prefill node is gone or silent, or one that sends the KV of an answer
                return self.transfer.peer_timeout_s

    def later_s(self, fault: Fault) -> float:
        """The same for clients that come during the fault: they are served by what is left.

        A proxy that is stopped reads their requests when it goes on, and their time begins then.
        """
        if isinstance(fault, Stall) and fault.victim == "proxy":
            return fault.lasts_s + min(self.served_s, self.request_timeout_s + self.step_s)
        return max(self.answer_s(fault), self.served_s)

    def given_back_s(self, fault: Fault) -> float:
        """From the fault, or the last client's end if that is later, to the moment when no node holds a block."""
        if fault_is_on_proxy(fault):
            return self.settled_s
        return self.transfer.peer_timeout_s + self.transfer.quarantine_max_s + self.settled_s

    @property
    def step_s(self) -> float:
        """One step of a loaded engine."""
        return self.patience * _STEP_S

    @property
    def served_s(self) -> float:
        """From the moment that all requests are with nodes that work, to the last answer."""
        return self.patience * self.service_s

    @property
    def idle_given_back_s(self) -> float:
        """How long blocks may stay away where no node was struck."""
        return self.patience * GIVEN_BACK_WITHIN_S + self.step_s

    @property
    def settled_s(self) -> float:
        """The same after the last client's end: the KV of answers may return."""
        return self.idle_given_back_s + (_RETURNS_S if self.transfer.both_ways else 0.0)

    @property
    def resumed_s(self) -> float:
        """How long, after the fault, until what had failed is used again."""
        return self.patience * _RESUMED_S

    @property
    def quarantine_s(self) -> float:
        """How long a block may be in quarantine."""
        return self.transfer.quarantine_max_s + self.step_s

    @property
    def beyond_share_s(self) -> float:
        """How long more blocks may be in quarantine than their share of the pool: a fence is due at once."""
        return self.patience * _FENCE_S + self.step_s


def fault_is_on_proxy(fault: Fault) -> bool:
    """Tell whether both nodes are alive and reachable."""
    return isinstance(fault, Kill | Stall) and fault.victim == "proxy"
