"""A prefill rank's sender thread, state machine and `layer_sync`, all real, opposite memory of the same device.

The link is a clock: each push reads its source at once, on a stream of its own (so a push that goes out too early takes along
what is not written yet), and is acknowledged when a link of so many bytes per second would have carried it.
"""

import threading
from collections.abc import Sequence
from itertools import count
from typing import Any, Final, NamedTuple, Self

import torch

from baton.contracts.configuration.schema import TransferConfig
from baton.kv_connector.handoff.fan_out import FanOut
from baton.kv_connector.handoff.outgoing import ProducerTransfer, Progress, Prompt
from baton.kv_connector.handoff.producer import Producer
from baton.kv_connector.layout.copy_plan import CopyPlan
from baton.kv_connector.protocol.messages import Commit, Fail, Hello, Message, Rank, Reserve
from baton.kv_connector.protocol.verification import Sampling
from baton.kv_connector.worker_side import sender, waiter
from baton.kv_connector.worker_side.rank_descriptor import RankDescriptor
from baton.kv_connector.worker_side.sync import ModelStream, make_layer_sync, recorder
from tests.gpu.device import Device
from tests.gpu.model import BLOCK_TOKENS, Model
from tests.support.described import fingerprint
from tests.support.plain_memory import plain_caches

DRIVEN: Final = (sender, waiter)  # modules with clocks, threads and queues of their own
PATIENCE_S: Final = 30.0
_PREFILL, _DECODE = 11, 22  # incarnations
_PROMPT: Final = "prompt"


class Submit(NamedTuple):
    """One push as the engine was given it."""

    at_s: float
    layer: int


class _Call:
    def __init__(self, device: Device, due_s: float, read: Any) -> None:
        self._device, self._due_s, self._read = device, due_s, read

    def poll(self) -> bool | None:
        return True if self._device.now() >= self._due_s and self._read.query() else None


class Link:
    """See the head of this file."""

    def __init__(
        self, device: Device, stream: Any, source: torch.Tensor, target: torch.Tensor, bytes_per_s: float
    ) -> None:
        self.submits: list[Submit] = []
        self._device, self._stream, self._bytes_per_s = device, stream, bytes_per_s
        self._source, self._target = (tensor.view(-1).view(torch.uint8) for tensor in (source, target))
        self._layer_bytes = source[0].nbytes
        self._free_s = 0.0  # when the link has carried what it was given

    def submit(self, target: str, plan: CopyPlan) -> _Call:
        now = self._device.now()
        with self._device.on(self._stream):
            for source, destination, length in plan:
                first, place = source - self._source.data_ptr(), destination - self._target.data_ptr()
                self._read(place, first, length)
                self.submits.append(Submit(now, first // self._layer_bytes))
            read = self._device.event()
            read.record(self._stream)
        self._free_s = max(now, self._free_s) + plan.total_bytes / self._bytes_per_s
        return _Call(self._device, self._free_s, read)

    def _read(self, place: int, first: int, length: int) -> None:
        target, source = self._target[place : place + length], self._source[first : first + length]
        self._device.launch(lambda: target.copy_(source, non_blocking=True))


class PushingRank:
    """Pushes what a model writes. One transfer at a time; `streams`: the model's, and one for the link."""

    def __init__(self, device: Device, model: Model, streams: Sequence[Any], policy: str, bytes_per_s: float) -> None:
        layers, blocks, size = model.shape.layers, model.blocks + 1, model.shape.block_bytes
        self.target = torch.zeros_like(model.cache)
        self.link = Link(device, streams[1], model.cache, self.target, bytes_per_s)
        self.stream = streams[0]
        self._device, self._model = device, model
        self._numbers = count(1)
        self._name = ""  # of the prompt under way
        caches, theirs = (
            plain_caches(each.data_ptr(), layers, blocks, size, BLOCK_TOKENS) for each in (model.cache, self.target)
        )
        ours = RankDescriptor("P", "prefill", Rank(), fingerprint(BLOCK_TOKENS), caches)
        self._lock = threading.Lock()
        self._producer = Producer(
            incarnation=_PREFILL,
            layers=layers,
            block_tokens=BLOCK_TOKENS,
            settings=TransferConfig(),
            hello=ours.hello,
            check_compatible=ours.check_compatible,
            terms=ours.terms,
            verify=Sampling.of("off"),
            refused=lambda _: None,
        )
        self._fan_out = FanOut(self._producer)
        limits = TransferConfig()
        self.sender = sender.Sender(
            producer=self._producer,
            fan_out=self._fan_out,
            introduction=ours,
            lock=self._lock,
            engine=self.link,
            max_bytes=limits.push_max_bytes,
            max_descriptors=limits.push_max_descriptors,
            flush=self._producer.outbox.clear,
            enter_device=device.enter,
            patience_s=PATIENCE_S,
        )
        self.sync = make_layer_sync(policy, layers, self.sender.hand, record_on(device))
        hello = RankDescriptor("D", "decode", Rank(), fingerprint(BLOCK_TOKENS), theirs).hello()
        self._say(Hello(node="D", rank=Rank(), fingerprint=hello.fingerprint, regions=hello.regions), receiver=0)

    def __enter__(self) -> Self:
        self.sender.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.sender.stop()

    def begin(self) -> None:
        """A prompt that fills the cache is scheduled, and D has blocks for it. Both caches are emptied first."""
        self._device.launch(lambda: (self._model.cache.zero_(), self.target.zero_()))
        self._device.synchronize()
        self.link.submits.clear()
        self._name = name = f"{_PROMPT}-{next(self._numbers)}"
        now = self._device.now()
        blocks = list(range(1, self._model.blocks + 1))
        prompt = Prompt(self._model.tokens, len(blocks), name.encode())
        with self._lock:
            self._fan_out.start(name, name, [(name, 1)], prompt, now)
            self._fan_out.add_source_blocks(name, blocks)
        self._say(
            Reserve(
                transfer_id=name,
                epoch=1,
                engine="D",
                tokens=prompt.tokens,
                from_token=0,
                blocks=[blocks],
                prompt_hash=prompt.prompt_hash,
            )
        )
        self.sync.begin_step([Progress(name, [blocks], len(blocks))])

    def void(self, reason: str) -> None:
        """The prompt's blocks are given to others from now on: it is preempted, or its pass has failed."""
        with self._lock:
            self._fan_out.void(self._name, reason, self._device.now())
        self.sync.begin_step(())

    def finish(self) -> tuple[ProducerTransfer, Commit | Fail]:
        """The pass has been issued: wait until the transfer has ended; return how.

        Raises:
            TimeoutError: it has not within `PATIENCE_S`.
        """
        self.sync.end_step()
        give_up = self._device.now() + PATIENCE_S
        while not self._producer.ended:
            if self._device.now() > give_up:
                raise TimeoutError(f"no end of the transfer within {PATIENCE_S:g} s")
            self._device.sleep(0.001)
        return self._producer.ended.pop()

    def differing(self) -> int:
        """Return how many elements of D's cache are not what the model has written in the end."""
        self._device.synchronize()
        return sum(int((ours != theirs).sum()) for ours, theirs in zip(self._model.cache, self.target, strict=True))

    def _say(self, body: Any, receiver: int = _PREFILL) -> None:
        with self._lock:
            self._producer.receive(None, Message(_DECODE, receiver, next(self._numbers), body), self._device.now())
            self._producer.outbox.clear()
        self.sender.wake()


def record_on(device: Device) -> ModelStream:
    """Return the product's own recorder on a device."""
    return recorder(device.itself)
