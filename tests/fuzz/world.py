"""Two honest ranks, two hostile ones, and the schedulers of all.

The hostile decode rank has memory and an engine of its own, into which P pushes what it asks for by the rules. The
hostile prefill rank listens, since the honest decode rank dials it. All that they say goes through real sockets
(`lines.py`).
"""

import random
import time
from collections import deque
from pathlib import Path

from baton.kv_connector.handoff.incoming import BlockReservation
from baton.kv_connector.handoff.metadata import Abandoned, DecodeStep, PrefillStep, Reserved, Watched
from tests.fuzz.frames import Mutator
from tests.fuzz.healthy import HONEST, Healthy
from tests.fuzz.hostile import OWN_BLOCKS, HostileDecode, HostilePrefill, Speaker
from tests.fuzz.lines import OLD_LINES, Lines
from tests.support.memory_engine import MemoryReceiver
from tests.support.ranks import BLOCK_TOKENS, LAYERS, Memory, Ranks

PEER_TIMEOUT_S = 10.0  # longer than a busy machine lets a thread wait
MAX_REQUESTS = 100  # of the hostile ranks, on each side
QUEUE = 2_000  # answers that may wait before more is said
P, D = 11, 22  # incarnations of the honest ranks


class World:
    """Everything; `say` lets a hostile rank say something."""

    def __init__(self, folder: Path, seed: int, *, tombstones: int = 4_096, connections: int = 512) -> None:
        """`tombstones` and `connections` are P's bounds, so low that a run reaches them: growth beyond would show."""
        self.random = random.Random(seed)
        self.mutator = Mutator(self.random)
        self.ranks = Ranks(folder, receive_engines=2, peer_timeout_s=PEER_TIMEOUT_S, kv_verify="sample:2")
        self.ranks.prefill._producer.tombstones._capacity = tombstones
        self.ranks.prefill._speakers._capacity = connections
        self.healthy = Healthy(self.ranks, self.random)
        self.lines = Lines(self.ranks, while_waiting=self.schedule)
        self.valid = 0  # frames that were said as they should be, in their place
        self.hostile_prompts = self.hostile_reservations = 0
        self._memory = Memory()
        self._engines: deque[MemoryReceiver] = deque()  # of the hostile decode rank, newest last
        self._honest_engines: list[str] = []
        self._decode = HostileDecode(self.random, P, self._memory)
        self._prefill = HostilePrefill(self.random, D, self._memory)
        self._processes = 0  # of the hostile decode rank
        for layer in range(LAYERS):
            for block in (0, *OWN_BLOCKS):
                self.ranks.target.write(layer, block, f"nobody writes to {block} of {layer}")

    def start(self) -> None:
        """Start the ranks; the honest ones meet first, so that P knows whose engines are whose."""
        self.ranks.prefill.start()
        self.ranks.decode.start()
        while self.healthy.arrived < 5:
            self.healthy.step()
            time.sleep(0.001)
        self.lines.begin()
        with self.ranks.decode._lock:
            self._honest_engines = list(self.ranks.decode._consumer.domains.current.values())

    def stop(self) -> None:
        self.ranks.decode.stop()
        self.ranks.prefill.stop()
        self.lines.close()

    @property
    def mutated(self) -> int:
        """Frames that have arrived and were not what they should have been, or not in their place."""
        return self.lines.arrived - self.valid

    def say(self) -> None:
        """Let a hostile rank say something, spoilt. Raises `TimeoutError`: the honest rank does not take it."""
        decode_speaks = self.random.random() < 0.6
        speaker: Speaker = self._decode if decode_speaks else self._prefill
        frame, is_new = speaker.next_frame()
        self.mutator.incarnations[2:] = [speaker.incarnation, speaker.peer, speaker.peer - 1]
        sent = [frame] if is_new else self.mutator.spoil(frame)
        self.valid += sent == [frame]
        if is_new and decode_speaks:
            self._processes += 1
            self._open_engine()
            if self._processes % 10:  # some think that they may speak over their predecessor's
                self.lines.dial_again()
        for spoilt in sent:
            if decode_speaks:
                self.lines.to_prefill(spoilt)
            else:
                self.lines.to_decode(spoilt)

    def schedule(self) -> None:
        """What the schedulers do at the same time: honest requests go on, hostile ones come and go."""
        self.healthy.step()
        self._decode.others = self._prefill.others = self.healthy.known_to_both()
        self._prompt_for_hostile_decode()
        self._request_from_hostile_prefill()
        self.ranks.prefill.take_released()
        self.lines.hear()
        while self._behind():
            time.sleep(0.0005)

    def untouched(self) -> bool:
        """Whether no byte has come into blocks of the honest decode rank that no rank may write to."""
        return all(
            self.ranks.target.read(layer, block).startswith(f"nobody writes to {block} of {layer}.".encode())
            for layer in range(LAYERS)
            for block in (0, *OWN_BLOCKS)
        )

    def _open_engine(self) -> None:
        """A new process has an engine of its own; those of the ones before it go one by one."""
        factory = self.ranks.fabric.factory("hostile")
        self._engines.append(factory.receiver(list(self._memory.caches.spans)))
        if len(self._engines) > OLD_LINES:
            self._engines.popleft().close()
        old, new = self._engines[0].session, self._engines[-1].session
        self._decode.engines = [*[new] * 16, old, *self._honest_engines, "nowhere:1"]

    def _behind(self) -> bool:
        return max(len(rank._loop._actions) for rank in (self.ranks.prefill, self.ranks.decode)) > QUEUE

    def _prompt_for_hostile_decode(self) -> None:
        with self.ranks.prefill._lock:
            crowded = len(self.ranks.prefill._producer._ids) > MAX_REQUESTS
        if crowded:
            return
        name, kind = self._decode.name(), self.random.random()
        if kind < 0.6:
            self.hostile_prompts += 1
            blocks = self.random.sample(OWN_BLOCKS, 3)
            self.ranks.compute(name, tokens=3 * BLOCK_TOKENS, blocks=blocks, ready=3)
            self.ranks.prefill.begin_step(PrefillStep(holds=[f"p-{name}"]))
            if self.random.random() < 0.1:
                self.ranks.prefill.begin_step(PrefillStep(voids=[(f"p-{name}", "preempted")]))
        elif kind < 0.7:
            self.ranks.prefill.begin_step(PrefillStep(abandoned=[Abandoned(name, "aborted before it was scheduled")]))

    def _request_from_hostile_prefill(self) -> None:
        with self.ranks.decode._lock:
            open_ = [transfer.request_id for transfer in self.ranks.decode._consumer.transfers.values()]
        if len(open_) > MAX_REQUESTS:
            for request in self.random.sample(open_, 10):
                if not request.startswith(f"d-{HONEST}"):
                    self.ranks.decode.begin_step(DecodeStep(cancelled=[request]))
            return
        name = self._prefill.name()
        self.ranks.decode.begin_step(DecodeStep(watched=[Watched(name, f"d-{name}", [self.lines.address])]))
        if self.random.random() < 0.8:
            self.hostile_reservations += 1
            blocks = self.random.sample(OWN_BLOCKS, 3)
            wish = BlockReservation(3 * BLOCK_TOKENS, 0, [blocks], f"prompt {name}".encode())
            self.ranks.decode.begin_step(DecodeStep(reserved=[Reserved(f"d-{name}", 1, wish)]))
