"""What is counted of token transfers; read by any thread, for the node's `/metrics`."""

from typing import Any, Final

from baton.kv_connector.telemetry.histogram import Histogram

SECONDS: Final = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


class Counts:
    """Times and totals of one `TokenTransfer`. Two readers that end their waits at the same instant may count as one."""

    def __init__(self) -> None:
        self.to_host_s = Histogram(SECONDS)  # from submit to tokens on the host
        self.wait_s = Histogram(SECONDS)  # how long readers waited, those that did not have to included
        self.submitted = 0
        self.slot_waits = 0  # submits that found no free slot
        self.grown = 0  # slots that had to be enlarged
        self.slots_in_use_max = 0

    def snapshot(self) -> dict[str, Any]:
        return {
            "histograms": {"to_host_s": self.to_host_s.snapshot(), "wait_s": self.wait_s.snapshot()},
            "submitted": self.submitted,
            "slot_waits": self.slot_waits,
            "grown": self.grown,
            "slots_in_use_max": self.slots_in_use_max,
        }
