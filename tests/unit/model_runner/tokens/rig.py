from baton.model_runner.tokens.packing import most_bytes
from baton.model_runner.tokens.transfer import TokenTransfer
from tests.support.fake_device import FakeDevice, Run
from tests.support.fake_lane import FakeLane

SIZES = most_bytes(max_num_seqs=4, speculative_tokens=3, top_logprobs=2)
SOON_S = 0.05


class Rig:
    """A transfer on the fake device."""

    def __init__(self, run: Run, slots: int = 2) -> None:
        self.device = FakeDevice(1, run)
        self.compute = self.device.stream()
        self.lane = FakeLane(self.device, self.compute)
        self.transfer = TokenTransfer(self.lane, SIZES, slots=slots)
