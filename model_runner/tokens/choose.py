"""Which transfer belongs to which device."""

import torch

from baton.model_runner.tokens.host import HostTransfer
from baton.model_runner.tokens.lanes import StreamLane
from baton.model_runner.tokens.packing import Sizes
from baton.model_runner.tokens.transfer import TokenTransfer

Transfer = TokenTransfer | HostTransfer


def transfer_for(device: torch.device, sizes: Sizes) -> Transfer:
    if device.type == "cpu":
        return HostTransfer()
    return TokenTransfer(StreamLane(device), sizes)
