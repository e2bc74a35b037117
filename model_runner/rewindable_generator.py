"""A generator of random numbers on a CPU whose last draw can be taken back.

vLLM's V1 runner samples in every step of a prompt that comes in chunks, and takes back the draw of a seeded request by
its generator's offset. A CPU generator has none, so that vLLM ends its engine there ("CPU Generator does not use
offset", 0.28 to 0.33).
"""

import torch


class RewindableGenerator(torch.Generator):
    """Like torch's, with what vLLM asks of an offset."""

    _kept: torch.Tensor

    @classmethod
    def like(cls, other: torch.Generator) -> "RewindableGenerator":
        """Return one that draws what the other would."""
        made = cls(device=other.device)
        made.set_state(other.get_state())
        made.keep()
        return made

    def keep(self) -> None:
        """Remember where it is, before a step draws."""
        self._kept = self.get_state()

    def get_offset(self) -> int:
        """Return a number; only its difference from what `set_offset` gets is of use."""
        return 0

    def set_offset(self, offset: int) -> torch.Generator:
        """Take back the draws since `keep`."""
        if offset >= 0:
            raise ValueError("a CPU generator can only take back its last draw")
        return self.set_state(self._kept)
