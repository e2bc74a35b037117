"""Sends travel while the next step computes, and no buffer is written while one of them reads it."""

import pytest
import torch

from baton.model_runner.pipeline.handles import Handle, PipelineError, Tensors
from baton.model_runner.pipeline.send_window import SendWindow


class LateTransport:
    """Reads a message when it is waited for, and no earlier, as gloo does for a receiver that comes late."""

    def __init__(self) -> None:
        self.posted: list[Message] = []

    def post(self, tensors: Tensors, **_: object) -> list[Handle]:
        self.posted.append(Message(tensors))
        return [self.posted[-1]]

    def arrived(self) -> list[float]:
        """Deliver the rest and return the first number of every message."""
        return [message.read() for message in self.posted]


class Message:
    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors
        self._read: float | None = None
        self.waits = 0

    def is_completed(self) -> bool:
        return self._read is not None

    def wait(self) -> None:
        self.waits += 1
        self.read()

    def read(self) -> float:
        if self._read is None:
            self._read = float(self._tensors["hidden_states"].flatten()[0])
        return self._read


def compute(window: SendWindow, steps: int) -> None:
    """Compute and send some steps; each writes its number into the same buffer, as a captured graph does."""
    output = torch.empty(4, 2)
    for step in range(steps):
        output.fill_(step)
        assert window.send({"hidden_states": output}) == []  # the worker would wait for it before its next forward pass


def test_every_message_arrives_with_the_values_of_its_own_step() -> None:
    """However late it is read, and although the model writes the same buffer in each step (vLLM #54962)."""
    transport = LateTransport()

    compute(SendWindow(transport.post, timeout_s=1), 6)

    assert max(message.waits for message in transport.posted) == 1  # a second wait never returns from gloo
    assert transport.arrived() == [0, 1, 2, 3, 4, 5]


def test_a_send_is_waited_for_only_when_its_slot_is_needed() -> None:
    """Two messages are under way while the stage computes on; the third send waits for the first."""
    transport = LateTransport()
    window = SendWindow(transport.post, timeout_s=1)

    compute(window, 2)
    assert [message.waits for message in transport.posted] == [0, 0]

    compute(window, 1)
    assert [message.waits for message in transport.posted] == [1, 0, 0]


def test_a_slot_takes_messages_of_any_size() -> None:
    """Steps differ in tokens, and a larger one gets new memory. What is no tensor is sent as it is."""
    seen: list[Tensors] = []

    def post(tensors: Tensors) -> list[Handle]:
        seen.append(tensors | {name: tensors[name].clone() for name in ("hidden_states", "residual")})
        return []

    window = SendWindow(post, timeout_s=1, slots=1)
    sent = [torch.rand(tokens, 3) for tokens in (2, 5, 1)]
    for tensor in sent:
        window.send({"hidden_states": tensor, "residual": tensor.T, "layers": 4})

    assert all(torch.equal(got["hidden_states"], want) for got, want in zip(seen, sent, strict=True))
    assert all(torch.equal(got["residual"], want.T) for got, want in zip(seen, sent, strict=True))
    assert [got["layers"] for got in seen] == [4] * 3


def test_a_send_that_failed_is_told_at_the_next_use_of_its_slot() -> None:
    """A neighbour that has ended is an error of the step, with gloo's reason."""

    class Broken(Message):
        def wait(self) -> None:
            raise RuntimeError("Connection closed by peer")

    window = SendWindow(lambda tensors: [Broken(tensors)], timeout_s=1, slots=1)
    window.send({"hidden_states": torch.zeros(1)})

    with pytest.raises(PipelineError, match=r"sending to the next pipeline stage failed: Connection closed by peer"):
        window.send({"hidden_states": torch.zeros(1)})
