"""Two honest ranks, two hostile ones, and the schedulers of all.

The hostile decode rank has memory and an engine of its own, into which P pushes what it asks for by the rules. The
hostile prefill rank listens on a real socket, since the honest decode rank dials it. Whatever a hostile rank says comes
in either through its real socket or straight to the victim's handler, as if it had: that is many times faster.
"""

import random
import time
from contextlib import suppress
from pathlib import Path

import zmq

from kv_connector.engine.memory import MemoryReceiver
from kv_connector.handoff.consumer import Wish
from kv_connector.metadata import DecodeStep, PrefillStep, Reserved, Watched
from kv_connector.side_channel import PeerKey
from kv_connector.side_channel_sockets import ControlClient, ControlServer
from tests.fuzz.frames import Mutator
from tests.fuzz.healthy import Healthy
from tests.fuzz.hostile import OWN_BLOCKS, HostileDecode, HostilePrefill, Speaker
from tests.support.ranks import BLOCK_TOKENS, LAYERS, SECRET, Memory, Ranks

SOCKET_SHARE = 0.1  # of the frames
MAX_REQUESTS = 100  # of the hostile ranks, on each side
QUEUE = 2_000  # answers that may wait before more is said
P, D = 11, 22  # incarnations of the honest ranks


class World:
    """Everything; `say` lets a hostile rank say something."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.mutator = Mutator(self.random)
        self.ranks = Ranks(folder, receive_engines=2, peer_timeout_s=3.0)
        self.healthy = Healthy(self.ranks, self.random)
        self.through_sockets = 0
        self.hostile_prompts = self.hostile_reservations = 0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._listener = ControlServer("127.0.0.1", 0, SECRET, self._context)
        self._dialler = ControlClient(self.ranks.prefill.address, SECRET, self._context)
        self._memory = Memory()
        self._engine: MemoryReceiver = self.ranks.fabric.factory("hostile").receiver(list(self._memory.caches.spans))
        self._decode = HostileDecode(self.random, P, self._memory, [self._engine.session])
        self._prefill = HostilePrefill(self.random, D, self._memory)
        self._identity = b""  # of the honest decode rank at the hostile listener
        self._connections = 0
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
        self._decode.engines = [*[self._engine.session] * 8, *self._honest_engines(), "nowhere:1"]

    def stop(self) -> None:
        """Stop everything."""
        self.ranks.decode.stop()
        self.ranks.prefill.stop()
        self._dialler.close()
        self._listener.close()
        self._context.destroy(linger=0)

    def say(self) -> int:
        """Let one of the hostile ranks say something, spoilt; returns how many frames that were."""
        decode_speaks = self.random.random() < 0.6
        speaker: Speaker = self._decode if decode_speaks else self._prefill
        frame, is_new = speaker.next_frame()
        self.mutator.incarnations[2:] = [speaker.incarnation, speaker.peer, speaker.peer - 1]
        sent = [frame] if is_new else self.mutator.spoil(frame)
        if is_new and decode_speaks:
            self._connections += 1
            if self._connections % 10 == 0:
                self._dial_again()
        for spoilt in sent:
            if decode_speaks:
                self._to_prefill(spoilt)
            else:
                self._to_decode(spoilt)
        return len(sent)

    def schedule(self) -> None:
        """What the schedulers do meanwhile: honest requests go on, hostile ones come and go."""
        self.healthy.step()
        self._decode.others = self._prefill.others = self.healthy.known_to_both()
        self._prompt_for_hostile_decode()
        self._request_from_hostile_prefill()
        self.ranks.prefill.take_released()
        self._hear()
        while self._behind():
            time.sleep(0.0005)

    def untouched(self) -> bool:
        """Whether no byte has come into blocks of the honest decode rank that nobody may write to."""
        return all(
            self.ranks.target.read(layer, block).startswith(f"nobody writes to {block} of {layer}.".encode())
            for layer in range(LAYERS)
            for block in (0, *OWN_BLOCKS)
        )

    def _honest_engines(self) -> list[str]:
        with self.ranks.decode._lock:
            return list(self.ranks.decode._consumer.domains.current.values())

    def _behind(self) -> bool:
        return max(len(rank._loop._actions) for rank in (self.ranks.prefill, self.ranks.decode)) > QUEUE

    def _to_prefill(self, frame: bytes) -> None:
        if self.random.random() < SOCKET_SHARE:
            with suppress(zmq.Again):
                self._dialler.socket.send(frame, flags=zmq.NOBLOCK)
                self.through_sockets += 1
                return
        connection = b"%d" % self._connections
        self.ranks.prefill.on_payload(("accept", connection), frame)

    def _to_decode(self, frame: bytes) -> None:
        if self.random.random() < SOCKET_SHARE and self._identity and self._listener.send(self._identity, frame):
            self.through_sockets += 1
            return
        peer: PeerKey = ("dial", self._listener.address)
        self.ranks.decode.on_payload(peer, frame)

    def _dial_again(self) -> None:
        """A new process of the hostile decode rank has a connection of its own."""
        self._dialler.close()
        self._dialler = ControlClient(self.ranks.prefill.address, SECRET, self._context)

    def _hear(self) -> None:
        """Read what the honest ranks answer, or their sockets would fill up."""
        for identity, _ in self._listener.receive(10_000):
            self._identity = identity
        for _ in self._dialler.receive(10_000):
            pass
        self._dialler.lost_connection()

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
            self.ranks.prefill.begin_step(PrefillStep(abandoned=[(name, "aborted before it was scheduled")]))

    def _request_from_hostile_prefill(self) -> None:
        with self.ranks.decode._lock:
            open_ = [transfer.request_id for transfer in self.ranks.decode._consumer.transfers.values()]
        if len(open_) > MAX_REQUESTS:
            for request in self.random.sample(open_, 10):
                if not request.startswith("d-good"):
                    self.ranks.decode.begin_step(DecodeStep(cancelled=[request]))
            return
        name = self._prefill.name()
        self.ranks.decode.begin_step(DecodeStep(watched=[Watched(name, f"d-{name}", self._listener.address)]))
        if self.random.random() < 0.8:
            self.hostile_reservations += 1
            blocks = self.random.sample(OWN_BLOCKS, 3)
            wish = Wish(3 * BLOCK_TOKENS, 0, [blocks], f"prompt {name}".encode())
            self.ranks.decode.begin_step(DecodeStep(reserved=[Reserved(f"d-{name}", 1, wish)]))
