"""One node that sends and receives KV: the product's sides of its scheduler and its worker, over one block pool.

Played are vLLM's scheduler and block pool, the device, the receiving engines and the clock. The device does in order what it has been given.
"""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from baton.contracts.configuration.schema import TransferConfig
from baton.kv_connector.config import ConnectorConfig
from baton.kv_connector.handoff.incoming import Phase
from baton.kv_connector.handoff.session import Session
from baton.kv_connector.protocol.messages import Message
from baton.kv_connector.scheduler_side.answer_tokens import ModelLimits
from baton.kv_connector.scheduler_side.sides import SchedulerSides
from baton.kv_connector.worker_side.prefill import NOT_FETCHED
from baton.kv_connector.worker_side.sides import WorkerSides
from tests.explorer.both_ways import BothWays, Leg
from tests.explorer.freeze import in_order
from tests.explorer.played_vllm import EMPTY, Request, Scheduler
from tests.explorer.rank import Facts
from tests.explorer.scene import BLOCK_TOKENS, LONG_AGO, SETTINGS, Event, Machines, Submitted, place_of
from tests.explorer.workers import SILENT, Receiving, Sending
from tests.unit.kv_connector.scheduler_fakes import SECRET, FakeBlock

VOCABULARY, CONTEXT = 1_000, 1_000  # tokens
LATER = 1.0  # s; all else happens at 0
MOST_STEPS = 8  # more than there is to do at once


def _stopped() -> float:
    return 0.0


class Node(Scheduler):
    """State and events of one process; `skip` names requests that are not made (any more)."""

    def __init__(self, scene: BothWays, machines: Machines, incarnation: int, skip: tuple[str, ...] = ()) -> None:
        self.place, self.scene, self.skip = place_of(incarnation), scene, skip
        super().__init__(scene.blocks_of(self.place))
        self.device: list[tuple[Any, ...]] = []  # what it has still to do
        role = scene.role(self.place)
        nowhere = Path("nowhere")
        config = ConnectorConfig(
            runtime_dir=nowhere, secret_file=nowhere, weights="", transfer=TransferConfig(both_ways=True), role=role
        )
        limits = ModelLimits(VOCABULARY, CONTEXT)
        sampling: dict[str, Any] = {"sampling": "any", "vocab_size": VOCABULARY}
        prefill = machines.prefill_scheduler(SECRET, BLOCK_TOKENS, sampling="any", answers=limits)
        decode = machines.decode_scheduler(config, SECRET, BLOCK_TOKENS, **sampling)
        silenced = ("_adapters", "_refusals", "_outcomes", "_idle_sleep", "_timings", "_failures", "history")
        read = SimpleNamespace(transfer=SETTINGS, receives_answers=config.receives_answers)  # from here on
        vars(prefill).update(dict.fromkeys(silenced[:2], SILENT))
        vars(decode).update(dict.fromkeys(silenced, SILENT), _config=read, _epochs=iter((1,)))  # it reserves once
        vars(decode._client_tokens).update(_refusals=SILENT)
        self.sides: SchedulerSides = machines.scheduler_sides(role, prefill, decode)
        tables = SimpleNamespace(req_to_blocks=self.tables)
        pool: Any = self.pool
        self.sides.bind_pool(pool, SimpleNamespace(coordinator=SimpleNamespace(single_type_managers=[tables])))
        self.sending, self.receiving = Sending(scene, machines, incarnation), Receiving(scene, machines, incarnation)
        self.workers: WorkerSides = machines.worker_sides(role, self.sending, self.receiving, pushes_layers=False)

    # --- events --------------------------------------------------------------------------------------------------

    def events(self) -> list[Event]:
        """What may happen here next, deliveries, landing writes and ends of pushes apart."""
        found: list[Event] = [("arrive", leg.request_id) for leg in self._legs() if self._may_arrive(leg)]
        found += [("cancel", transfer) for transfer in self.scene.names]
        for name, request in self.requests.items():
            if request.stage not in ("held", "gone"):
                found.append(("abort", name))
            if request.stage in ("running", "computed"):
                found.append(("preempt", name))
            if request.stage == "running":
                found.append(("end", name))
        found += [("evict", block.block_id) for block in self.pool.get_all_free_blocks() if self._is_cached(block)]
        if self.scene.lags:
            found += [("device",)] if self.device else []
            found.append(("step",))
        if self._decode()._stalls._since is not None:
            found.append(("stall",))
        return found + self.sending.events() + self.receiving.events()

    def apply(self, event: Event) -> list[Submitted]:
        name, *arguments = event
        clock, time.monotonic = time.monotonic, _stopped
        try:
            submitted: list[Submitted] = self._handler(name, arguments)(*arguments) or []
            self._flush()
            if not self.scene.lags:
                self._catch_up()
        except AssertionError as error:
            self.trouble, submitted = f"assertion: {error}", []
        finally:
            time.monotonic = clock
        self._forget()
        return submitted

    def _catch_up(self) -> None:
        """Take steps until nothing is left to be done at once."""
        for _ in range(MOST_STEPS):
            self._on_step()
            while self.device:
                self._on_device()
            self._flush()
            told = [*vars(self._decode()._step).values(), *vars(self._prefill()._step).values()]
            said = [self.receiving._finished, self.receiving._report, self.sending.fan_out.released]
            stages = {request.stage for request in self.requests.values()}
            if not any(told) and not any(said) and not stages & {"computed", "ready"}:
                return

    def _flush(self) -> None:
        self.sending._flush()
        self.receiving.flush()

    def _handler(self, name: str, arguments: list[Any]) -> Callable[..., Any]:
        sends = name in ("push", "done", "orphan") or (name == "silence" and isinstance(arguments[0], int))
        side = self.sending if sends else self.receiving
        handler: Callable[..., Any] = getattr(self, f"_on_{name}", None) or getattr(side, f"_on_{name}")
        return handler

    # --- requests ------------------------------------------------------------------------------------------------

    def _on_arrive(self, name: str) -> None:
        leg = next(leg for leg in self._legs() if leg.request_id == name)
        request: Any = Request(leg, self.scene.ends(leg.transfer)[0])
        self.requests[name] = request
        self.sides.add_request(request)
        request.arrived()

    def _on_abort(self, name: str) -> None:
        """The client leaves."""
        self._finish(self.requests[name], aborted=True)

    def _on_end(self, name: str) -> None:
        """A stream has all its tokens."""
        self._finish(self.requests[name], aborted=False)

    def _on_cancel(self, transfer: str) -> None:
        """The proxy does not want the transfer any more."""
        self.workers.cancel([transfer])
        sent = self.sending.machine.transfers.get(transfer)
        received = self.receiving.machine.transfers.get(transfer)
        if (sent and not sent.ending) or (received and received.phase <= Phase.RESERVED):
            self.trouble = "I5: a transfer goes on that has been cancelled"

    def _on_preempt(self, name: str) -> None:
        """Before the output of the step before has been taken in: steps overlap."""
        self._step(name)

    def _on_step(self) -> None:
        self._take_results()
        self._step()

    def _on_stall(self) -> None:
        """Nothing has been computed for long, for want of blocks."""
        self._decode()._stalls._since = LONG_AGO
        reserved = [transfer for transfer in self.sending.machine.transfers.values() if transfer.reservation]
        self._on_step()
        if any(transfer.ending == NOT_FETCHED for transfer in reserved):
            self.trouble = "I5: a prompt was given up that a node has reserved blocks for"

    def _on_evict(self, block: int) -> None:
        """Another request is given a cached block in a step, and gives it back."""
        self._take_results()
        self.pool.evict(block)
        self._step()

    # --- steps ---------------------------------------------------------------------------------------------------

    def _step(self, preempted: str = "") -> None:
        output = self._schedule(preempted)
        step = self.sides.take_step(output)
        self.workers.void(step)
        self.workers.begin_step(step)
        self.workers.finish_forward()
        self.workers.end_step()
        self.pool.reuse()
        if self.receiving.zeroing.requests:
            self.device.append(("zero", tuple(self.receiving.zeroing.requests)))
            self.receiving.zeroing.requests.clear()
        ready = {prompt.request_id: prompt.ready_blocks for prompt in self.sending.issued.prompts}
        self.sending.issued.prompts = []
        for new in output.scheduled_new_reqs:
            self._compute(self.requests[new.req_id], new.num_computed_tokens, ready.get(new.req_id, 0))

    def _compute(self, request: Request, cached_tokens: int, ready: int) -> None:
        """Issue what a request computes, unless that is a single token of a stream whose KV it has received."""
        if cached_tokens % BLOCK_TOKENS == 0:
            blocks = tuple(self._block_ids(request.request_id))
            self.device.append(("write", request.request_id, blocks, cached_tokens // BLOCK_TOKENS, ready))

    # --- device and network --------------------------------------------------------------------------------------

    def _on_device(self) -> None:
        """The device does the next thing that it has been given."""
        what, *arguments = self.device.pop(0)
        if what == "zero":
            (request_ids,) = arguments
            for block in [block.block_id for name in request_ids for block in self.tables.get(name, ())]:
                if self.pool.writer[block]:
                    self.pool.content[block] = EMPTY
            self.receiving._zeroed(list(request_ids), 0.0)
            return
        name, blocks, cached, ready = arguments
        leg = next(leg for leg in self._legs() if leg.request_id == name)
        if tuple(self._block_ids(name)) == blocks:
            self._check(leg, blocks[:cached])
        for block, content in zip(blocks[cached:], leg.contents[cached:], strict=False):
            self.pool.content[block] = content
        if ready:
            self.sending.fan_out.ready(name, 0, ready, 0.0)

    def _on_ask(self, message: Message) -> None:
        """A message for the side that sends."""
        machine = self.sending.machine
        machine.receive(place_of(message.sender), message, LATER)
        if any(t.held_since == LATER and self.scene.is_answer(name) for name, t in machine.transfers.items()):
            self.trouble = "I5: a beat makes an answer's KV be held for longer"

    def _on_land(self, transfer: str, block: int, _part: int, content: str) -> None:
        if self.pool.writer[block] != transfer:
            self.trouble = "I3: a write landed in a block that was not, or no longer, received into"
        self.pool.content[block] = content

    # --- inside --------------------------------------------------------------------------------------------------

    def _legs(self) -> tuple[Leg, ...]:
        return tuple(leg for leg in self.scene.legs(self.place) if leg.transfer in self.scene.names)

    def _prefill(self) -> Any:
        return self.sides.prefill

    def _decode(self) -> Any:
        return self.sides.decode

    def _may_arrive(self, leg: Leg) -> bool:
        if leg.request_id in (*self.requests, *self.over, *self.skip):
            return False
        before = self.requests.get(leg.after)
        return not leg.after or leg.after in self.over or (before is not None and before.stage == "running")

    def _is_cached(self, block: FakeBlock) -> bool:
        return self.pool.cached[block.block_id] != ""

    def _forget(self) -> None:
        """Take out what is not looked at again, so that more states are the same."""
        self.sending.forget()
        self.receiving.forget()
        self.sending._groups._cancelled.clear()  # there are no groups
        in_order(self.tables)
        for counted in (self._prefill(), self._decode(), self.receiving):
            totals = counted._totals
            totals.update(dict.fromkeys(totals, 0))
        self.sides.integrity._begun = self.sides.integrity._ended = 0

    # --- for local.py --------------------------------------------------------------------------------------------

    @property
    def incarnation(self) -> int:
        return self.sending.incarnation

    def outboxes(self) -> Iterable[tuple[int, list[tuple[str, Message]]]]:
        return (1, self.sending.post.sent), (-1, self.receiving.post.sent)

    def sessions(self) -> Iterable[Session]:
        return [*self.sending.sessions(), *self.receiving.sessions()]

    def key(self) -> tuple[Any, ...]:
        return *self.sending.pushes_key(), self._decode()._stalls._since is None

    def facts(self) -> Facts:
        here = {*self.requests, *self.over}
        arrived = [leg for leg in self._legs() if leg.request_id in here]
        return Facts(
            incarnation=self.incarnation,
            events=tuple(self.events()),
            problem=self.trouble or self._pool_problem(),
            at_rest=self._at_rest(),
            flows=frozenset(self.receiving.machine.transfers),
            peers=frozenset([*self.sending.machine.sessions, *self.receiving.machine.sessions]),
            source=tuple((block.block_id, (self.pool.content[block.block_id],)) for block in self.pool.blocks),
            lacks=frozenset(leg.transfer for leg in self._legs() if leg.role == "prefill" and leg not in arrived),
            engines=tuple(self.receiving.engines),
            asked=(*sorted(here), *self.skip),
            asks=frozenset(leg.transfer for leg in arrived if leg.role == "decode"),
        )

    def _pool_problem(self) -> str:
        found = self.sides.integrity._look()
        return f"pool: a block {found[0].wrong}" if found else ""

    def _at_rest(self) -> bool:
        """Whether every request has ended, and nothing is kept."""
        kept = self.sending.machine.transfers or self.sending.pushes or self.receiving.machine.transfers
        tracked = self._prefill()._held or self._prefill()._requests or self._decode()._requests
        free = self.pool.get_num_free_blocks() == len(self.pool.blocks) - 1 and not self.sides.has_open_reservations()
        return free and not (kept or tracked or self.requests or self.device or self.receiving.machine.domains.retired)
