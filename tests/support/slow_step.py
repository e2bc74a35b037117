"""A logits processor that changes nothing and takes its time, so that an answer of a tiny model is still under way when its node is struck."""

import os
import time
from typing import TYPE_CHECKING, Final

import torch
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor

if TYPE_CHECKING:
    from vllm.config import VllmConfig

FLAGS: Final = ("--logits-processors", "tests.support.slow_step:SlowStep")
STEP_S: Final = "SLOW_STEP_S"  # environment: what a step takes longer; nothing if unset


class SlowStep(LogitsProcessor):
    """Sleeps in every step."""

    def __init__(
        self, vllm_config: "VllmConfig", device: torch.device, is_pin_memory: bool
    ) -> None:  # vLLM's signature
        self._step_s = float(os.environ.get(STEP_S, "0"))

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        time.sleep(self._step_s)
        return logits

    def is_argmax_invariant(self) -> bool:
        """No: vLLM leaves out those that are where all requests are greedy."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """It has none."""
