"""The prefill worker: hands written layers to the sender and speaks for this rank to its decode ranks."""

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from baton.contracts.secret import ClusterSecret
from baton.kv_connector.config import ConnectorConfig
from baton.kv_connector.control.loop import ControlLoop, PeerKey
from baton.kv_connector.control.status_server import OutcomeSender
from baton.kv_connector.engine.base import EngineFactory
from baton.kv_connector.errors import ProtocolError
from baton.kv_connector.handoff.fan_out import FanOut
from baton.kv_connector.handoff.metadata import PrefillStep, StartedPrompt
from baton.kv_connector.handoff.outgoing import MismatchReport, ProducerTransfer, Progress
from baton.kv_connector.handoff.producer import Producer
from baton.kv_connector.layout.tp_mapping import named, transfer_id_of_flow
from baton.kv_connector.protocol.messages import Reserve, Revoke, decode, encode
from baton.kv_connector.protocol.verification import Sampling
from baton.kv_connector.telemetry.refusals import Refusals, Refused
from baton.kv_connector.worker_side.connection_owners import ConnectionOwners
from baton.kv_connector.worker_side.digest import BlockDigests
from baton.kv_connector.worker_side.digesting import DigestThread, blocks_of
from baton.kv_connector.worker_side.prompt_batches import PromptBatches
from baton.kv_connector.worker_side.rank_descriptor import RankDescriptor
from baton.kv_connector.worker_side.sampled_token import has_token, sampled_token
from baton.kv_connector.worker_side.sender import Sender
from baton.kv_connector.worker_side.sync import ModelStream, make_layer_sync
from baton.kv_connector.worker_side.take_outputs import take_outputs
from baton.kv_connector.worker_side.timelines import Timelines
from baton.kv_connector.worker_side.transfer_stats import Accounts, ended_at

if TYPE_CHECKING:
    from vllm.v1.outputs import ModelRunnerOutput

logger = logging.getLogger(__name__)

TICK_S = 0.1
NOT_FETCHED = "the prefill node stood still for want of blocks, and no decode node had room for what this prompt has"
MAX_DESCRIBED = 1_000  # transfers in a snapshot: it is made under the lock that the model thread needs


class PrefillWorker:
    """Everything of a prefill rank: state machine, sender, control channel."""

    def __init__(
        self,
        *,
        config: ConnectorConfig,
        secret: ClusterSecret,
        introduction: RankDescriptor,
        engines: EngineFactory,
        incarnation: int,
        stream: ModelStream,
        digests: BlockDigests,
        enter_device: Callable[[], None] = lambda: None,
    ) -> None:
        caches = introduction.caches
        self._introduction = introduction
        self._engines = engines
        self._lock = threading.Lock()
        self._refusals = Refusals(logger)
        self._speakers = ConnectionOwners()
        self._groups = PromptBatches()
        self._producer = Producer(
            incarnation=incarnation,
            layers=caches.num_layers,
            block_tokens=caches.block_tokens,
            settings=config.transfer,
            hello=introduction.hello,
            check_compatible=introduction.check_compatible,
            terms=introduction.terms,
            verify=Sampling.of(config.transfer.kv_verify),
            refused=self._refusals.count,
            times_layers=True,
        )
        self._fan_out = FanOut(self._producer)
        self._sender = Sender(
            producer=self._producer,
            fan_out=self._fan_out,
            introduction=introduction,
            lock=self._lock,
            engine=engines.sender(caches.spans),
            max_bytes=config.transfer.push_max_bytes,
            max_descriptors=config.transfer.push_max_descriptors,
            flush=self._flush,
            enter_device=enter_device,
            patience_s=config.transfer.transfer_timeout_s,
        )
        self._digests: DigestThread[ProducerTransfer] = DigestThread(digests, self._digested, enter_device)
        self._read_from: deque[tuple[str, list[int]]] = deque(maxlen=256)  # verified transfers and their source blocks
        self._sync = make_layer_sync(config.layer_sync, caches.num_layers, self._sender.hand, stream)
        self._loop = ControlLoop(self, TICK_S, refusals=self._refusals)
        port = config.port_of_rank(introduction.index, introduction.grid.ranks)
        bound = self._loop.listen(config.control_host, port, secret)
        self.address = f"tcp://{config.advertise_host}:{bound.rpartition(':')[2]}"
        self._outcomes = OutcomeSender(config.outcomes_path)
        self._told: deque[str] = deque(maxlen=64)  # whose reservation the node knows of: messages are repeated
        self._accounts = Accounts()
        self._timelines = Timelines()
        self._prompts: Sequence[Progress] = ()  # of the step under way
        self._attending: int | None = None  # the layer whose attention has begun, until its KV is known to be issued
        self._awaited: dict[str, int] = {}  # requests whose first token has not been sampled → logprobs wanted with it
        self._drafts = any(region.drafter for region in caches.regions)  # the drafter has layers of its own

    def start(self) -> None:
        self._sender.start()
        self._digests.start()
        self._loop.start()

    def stop(self) -> None:
        self._loop.stop()
        self._outcomes.close()
        self._sender.stop()
        self._digests.stop()
        self._engines.close()

    # --- model thread ---

    def void(self, step: PrefillStep) -> None:
        """Give up what the step takes away. Must come before anything of the step is issued to the device (I2)."""
        if not step.voids:
            return
        now = time.monotonic()
        with self._lock:
            for request_id, reason in step.voids:
                self._awaited.pop(request_id, None)
                self._fan_out.void(request_id, reason, now)
            self._flush()

    def begin_step(self, step: PrefillStep) -> None:
        """A step begins. One that has not ended never will: vLLM's V2 runner calls nothing when a pass raises."""
        if self._prompts:
            self._give_up_step()
        self.void(step)
        self._prompts, self._attending = step.progress, None
        if step.abandoned or step.started or step.progress or step.holds or step.unfetched:
            now = time.monotonic()
            with self._lock:
                for transfer_id, reason, grids in step.abandoned:
                    for flow_id, _ in self._introduction.flows_from(transfer_id, grids):
                        self._producer.abandon(flow_id, reason, now)
                for started in step.started:
                    self._start(started, now)
                for request_id, blocks, _ in step.progress:
                    self._fan_out.add_source_blocks(request_id, *blocks)
                for request_id in step.holds:
                    self._awaited.pop(request_id, None)
                    self._fan_out.hold(request_id, now)
                for request_id in step.unfetched:
                    self._fan_out.give_up(request_id, NOT_FETCHED, now)
                for request_id, reason in step.voids:  # one that began in this step, too
                    self._awaited.pop(request_id, None)
                    self._fan_out.void(request_id, reason, now)
                self._flush()
        new_blocks = sum(max(map(len, prompt.new_blocks), default=0) for prompt in step.progress)
        self._sync.begin_step(step.progress, self._sender.layers_at_once(new_blocks))

    def attention_begins(self, layer_name: str) -> None:
        """Everything of this step before the layer's attention has been issued."""
        layer = self._attending = self._introduction.caches.layer_of.get(layer_name)
        if layer is not None:
            self._sync.attention_begins(layer)

    def kv_issued(self, layer_name: str) -> None:
        """The layer's KV of this step has been issued. Without a name: that of the layer whose attention began last."""
        layer = self._introduction.caches.layer_of.get(layer_name) if layer_name else self._attending
        self._attending = None
        if layer is not None:
            self._sync.kv_issued(layer)

    def finish_forward(self) -> None:
        """The forward pass has been issued, sampling has not. A drafter's layers are written only after that."""
        if not self._drafts:
            self.end_step()

    def end_step(self) -> None:
        """The forward pass has been issued or, on vLLM's V1 runner, has raised. Idempotent."""
        if not self._prompts:
            return
        if sys.exception() is None:
            self._sync.end_step()
            self._prompts = ()
        else:
            self._give_up_step()

    def tokens_sampled(self, output: "ModelRunnerOutput") -> None:
        """A step's tokens are on the host (model thread or, under asynchronous scheduling, the thread that waits for them)."""
        if not self._awaited:
            return
        now = time.monotonic()
        with self._lock:
            for request_id, logprobs in list(self._awaited.items()):
                if has_token(output, request_id):
                    del self._awaited[request_id]
                    self._fan_out.token_sampled(request_id, sampled_token(output, request_id, logprobs), now)
            self._flush()

    def take_released(self) -> set[str]:
        """Requests whose blocks may be freed, each once."""
        with self._lock:
            self._fan_out.collect()
            return set(take_outputs(self._fan_out.released))

    # --- control thread (ControlHandler) ---

    def on_payload(self, peer: PeerKey, payload: bytes) -> None:
        try:
            message = decode(payload)
        except ProtocolError as exc:
            self._refusals.count(exc.kind, exc)
            return
        # A first token waits for either; the latter: the decode node needs nothing, or recomputes.
        flow = message.body.transfer_id if isinstance(message.body, Reserve | Revoke) else ""
        transfers = self._producer.transfers
        with self._lock:
            if not self._speakers.may_speak(peer, message.sender):
                self._refusals.count(Refused.SECOND_SENDER)
                return
            is_ours = flow in transfers
            self._producer.receive(peer, message, time.monotonic())
            is_ours = is_ours or flow in transfers
            self._flush()
        self._sender.wake()
        transfer_id = transfer_id_of_flow(flow)
        if is_ours and transfer_id not in self._told:
            self._told.append(transfer_id)
            self._outcomes.send_reserved(transfer_id)

    def on_tick(self) -> None:
        with self._lock:
            self._producer.tick(time.monotonic())
            self._flush()
        self._sender.give_up(time.monotonic())

    def on_disconnect(self, peer: PeerKey) -> None:
        """A hint only; silence decides."""

    # --- any thread ---

    def cancel(self, transfer_ids: list[str]) -> int:
        """End transfers that no request needs any more. Returns how many were open; their blocks go with the next step."""
        now = time.monotonic()
        with self._lock:
            found = [transfer_id for named in transfer_ids for transfer_id in self._groups.cancel(named)]
            were_open = sum([self._fan_out.cancel(transfer_id, now) for transfer_id in found])
            self._flush()
        return were_open

    def timeline(self, transfer_id: str) -> dict[str, Any]:
        """When the layers of a transfer were written and pushed, flow by flow."""
        with self._lock:
            return {"flows": self._timelines.find(transfer_id, self._producer.transfers.values())}

    def snapshot(self) -> dict[str, Any]:
        now = time.monotonic()
        with self._lock:
            transfers = islice(self._producer.transfers.values(), MAX_DESCRIBED)
            sessions = [
                {"peer": f"{peer:016x}", "state": session.state.name.lower(), "reason": session.reason}
                for peer, session in self._producer.sessions.items()
            ]
            return {
                "control_address": self.address,
                "transfers": [self._describe(transfer, now) for transfer in transfers],
                "open_transfers": len(self._producer.transfers),
                "sessions": sessions,
                "refused": self._refusals.snapshot(),
            } | self._accounts.snapshot(self._sender.totals)

    def _give_up_step(self) -> None:
        """Forget the step under way: its layers were not written."""
        self.void(PrefillStep(voids=[(prompt.request_id, "the forward pass failed") for prompt in self._prompts]))
        self._sync.begin_step(())
        self._prompts = ()

    def _start(self, started: StartedPrompt, now: float) -> None:
        transfer_id, request_id, prompt, group, grids, logprobs = started
        flows = self._introduction.flows_from(transfer_id, grids)
        if logprobs is not None and self._introduction.samples:
            prompt = prompt._replace(samples=True)
            self._awaited[request_id] = logprobs
        self._fan_out.start(transfer_id, request_id, flows, prompt, now)
        if self._fan_out.is_open(transfer_id) and self._groups.start(group, transfer_id):
            self._fan_out.cancel(transfer_id, now)

    def _describe(self, transfer: ProducerTransfer, now: float) -> dict[str, Any]:
        coverage = transfer.coverage
        size = self._introduction.caches.layer_block_bytes / transfer.terms.block_units
        return named(transfer.transfer_id) | {
            "state": transfer.ending or ("pushing" if coverage else "waiting for the other side"),
            "age_s": round(now - transfer.since, 3),
            "epoch": transfer.epoch,
            "bytes_expected": round(coverage.expected * size) if coverage else 0,
            "bytes_pushed": round(coverage.acknowledged * size) if coverage else 0,
            "peer": f"{transfer.decode:016x}",
        }

    def _flush(self) -> None:
        """Send what the machine has to say, in its order, and count what has ended. Called with the lock held."""
        for peer, message in take_outputs(self._producer.outbox):
            self._loop.send(cast("PeerKey", peer), encode(message))
        for transfer in take_outputs(self._producer.to_digest):
            parts = self._introduction.read_from(transfer)
            self._read_from.append((transfer.transfer_id, blocks_of(parts)))
            self._digests.ask(transfer, parts)
        for complaint in take_outputs(self._producer.complaints):
            self._hear(complaint)
        for transfer, outcome in take_outputs(self._producer.ended):
            transfer_id = transfer_id_of_flow(transfer.transfer_id)
            if self._fan_out.ended(transfer_id, transfer.transfer_id):
                self._groups.end(transfer_id)
            self._accounts.add(transfer, outcome, self._describe(transfer, ended_at(transfer)))
            self._timelines.add(transfer)

    def _digested(self, transfer: ProducerTransfer, digests: bytes) -> None:
        """The digests of a transfer's source blocks are there (their own thread)."""
        with self._lock:
            self._producer.digested(transfer, digests, time.monotonic())
            self._flush()

    def _hear(self, complaint: MismatchReport) -> None:
        transfer_id, peer, mismatch = complaint
        blocks = dict(self._read_from).get(transfer_id, [])
        self._accounts.add_mismatch(transfer_id, mismatch)
        logger.error(
            "transfer %s did not arrive at %016x as it was sent from blocks %s: %s", transfer_id, peer, blocks, mismatch
        )
