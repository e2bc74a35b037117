"""One node that sends and receives KV: the product's sides of its scheduler and its worker, over one block pool.

Played are vLLM's scheduler and block pool, the device, the receiving engines and the clock. vLLM counts who holds a block, gives one that
is *cached* to each prompt that begins with the same tokens, and one that nothing holds to any request. It caches what it computes
as soon as that is scheduled (E5), and what it receives once that is reported received. The device does in order what it has been given.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from baton.contracts.configuration.schema import TransferConfig
from baton.contracts.kv_transfer import TransferParams, sign
from baton.kv_connector.config import ConnectorConfig
from baton.kv_connector.handoff.gather import Flow
from baton.kv_connector.handoff.incoming import Phase
from baton.kv_connector.handoff.metadata import DecodeReport
from baton.kv_connector.handoff.outgoing import Progress
from baton.kv_connector.handoff.session import Session
from baton.kv_connector.protocol.messages import Message, decode
from baton.kv_connector.scheduler_side.answer_tokens import ModelLimits
from baton.kv_connector.scheduler_side.sides import SchedulerSides
from baton.kv_connector.worker_side.decode import DecodeWorker
from baton.kv_connector.worker_side.prefill import NOT_FETCHED, PrefillWorker
from baton.kv_connector.worker_side.prompt_batches import PromptBatches
from baton.kv_connector.worker_side.sides import WorkerSides
from tests.explorer.both_ways import BothWays, Leg
from tests.explorer.decode import ConsumerRank
from tests.explorer.freeze import in_order
from tests.explorer.prefill import ProducerRank
from tests.explorer.rank import Facts
from tests.explorer.scene import BLOCK_TOKENS, LONG_AGO, SETTINGS, Event, Machines, Submitted, place_of
from tests.unit.kv_connector.scheduler_fakes import SECRET, FakeBlock, FakePool, step_output

VOCABULARY, CONTEXT = 1_000, 1_000  # tokens
LATER = 1.0  # s; all else happens at 0
MOST_STEPS = 8  # more than there is to do at once
GARBAGE, UNWRITTEN, EMPTY = "garbage", "unwritten", "empty"  # contents of a block, beside those of a leg


class Silent:
    """Takes every call and does nothing."""

    def __reduce__(self) -> str:
        return "SILENT"

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return _nothing


def _nothing(*_: object, **__: object) -> None:
    pass


SILENT = Silent()


def _stopped() -> float:
    return 0.0


class Pool(FakePool):
    """vLLM's block pool, and what is in the blocks."""

    def __init__(self, blocks: int) -> None:
        super().__init__(blocks + 1)
        self.content = [GARBAGE] * (blocks + 1)
        self.cached = [""] * (blocks + 1)  # the content that vLLM finds there
        self.writer = [""] * (blocks + 1)  # the transfer whose source may write there

    @property
    def free_block_queue(self) -> "Pool":
        return self

    def get_all_free_blocks(self) -> list[FakeBlock]:
        return [block for block in self.blocks[1:] if block.ref_cnt == 0]

    def find(self, content: str) -> FakeBlock | None:
        return self.blocks[self.cached.index(content)] if content in self.cached else None

    def take(self, count: int) -> list[FakeBlock]:
        """Give out free blocks, those that are cached last."""
        free = sorted(self.get_all_free_blocks(), key=lambda block: (self.cached[block.block_id] != "", block.block_id))
        for block in free[:count]:
            self.evict(block.block_id)
        self.touch(free[:count])
        return free[:count]

    def evict(self, block: int) -> None:
        self.cached[block], self.content[block] = "", GARBAGE

    def free_blocks(self, blocks: Any) -> None:
        super().free_blocks(blocks)
        for block in self.get_all_free_blocks():
            self.writer[block.block_id] = ""

    def reuse(self) -> None:
        """Other requests have had all that is free and not cached, in the step that has just been issued."""
        for block in self.get_all_free_blocks():
            if not self.cached[block.block_id]:
                self.content[block.block_id] = GARBAGE


class Request:
    """vLLM's, as far as the connector reads it."""

    skip_reading_prefix_cache, prompt_embeds, mm_features = False, None, ()
    lora_request, cache_salt, structured_output_request = None, None, None
    sampling_params = SimpleNamespace(prompt_logprobs=None, num_logprobs=None, extra_args=None)
    max_tokens = 20
    block_hashes = ()  # of its whole blocks; a source looks for the third from the end

    def __init__(self, leg: Leg, peer: str) -> None:
        self.leg = leg
        self.request_id = leg.request_id
        # waiting, remote (waits for its KV), ready (has it), running, computed (a prompt), held (it has ended), gone (likewise, as it waited for KV)
        self.stage = "waiting"
        self.prompt_token_ids, self._all_token_ids = list(leg.prompt), list(leg.prompt)
        self.num_prompt_tokens = len(leg.prompt)
        receives = leg.role == "decode"
        params = TransferParams(
            transfer_id=leg.transfer,
            role=leg.role,
            peer=peer if receives else "",
            start=(leg.start,) if leg.start else (),
            start_sent=receives and leg.start != (),
        )
        self.kv_transfer_params: dict[str, Any] | None = sign(params, SECRET)

    @property
    def num_tokens(self) -> int:
        return len(self._all_token_ids)

    def update_block_hashes(self) -> None:
        pass

    def arrived(self) -> None:
        """The connector has been asked. What it has the request start with is output at once."""
        self.kv_transfer_params = None
        if start := vars(self).pop("baton_start_at_once", None):
            self._all_token_ids += [token.id for token in start.tokens]


class Introduction:
    """Each node has one rank, with one layer."""

    samples = False

    def flows_from(self, transfer_id: str, _grids: object) -> list[tuple[str, int]]:
        return [(transfer_id, 1)]

    def flows_to(self, transfer_id: str, _grids: object, peers: list[str]) -> list[Flow]:
        return [Flow(transfer_id, peers[0])]

    def shares_from(self, _grids: object) -> int:
        return 1


class Post:
    """In the place of the control channel."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Message]] = []

    def send(self, peer: str | tuple[str, str], payload: bytes) -> None:
        self.sent.append((peer if isinstance(peer, str) else peer[1], decode(payload)))

    def forget(self, _peer: object) -> None:
        pass


class Issued:
    """What the step under way computes for prompts that are sent, in the place of the policy that says when layers are ready."""

    def __init__(self) -> None:
        self.prompts: list[Progress] = []

    def begin_step(self, prompts: Iterable[Progress], _layers_at_once: object) -> None:
        self.prompts = list(prompts)

    def end_step(self) -> None:
        pass


class Sending(ProducerRank, PrefillWorker):
    """The product's worker of a node that sends, without threads and sockets."""

    def __init__(self, scene: BothWays, machines: Machines, incarnation: int) -> None:
        ProducerRank.__init__(self, scene, machines, incarnation)
        self.address = self.place
        self.post, self.issued = Post(), Issued()
        fakes = dict.fromkeys(("_sender", "_accounts", "_timelines"), SILENT)
        own = {"_loop": self.post, "_sync": self.issued, "_groups": PromptBatches(), "_introduction": Introduction()}
        state: dict[str, Any] = {"_prompts": (), "_attending": None, "_awaited": {}, "_drafts": False}
        vars(self).update(fakes | own | state, _lock=nullcontext(), _producer=self.machine, _fan_out=self.fan_out)

    def _describe(self, *_: object) -> dict[str, Any]:
        return {}


class Receiving(ConsumerRank, DecodeWorker):
    """The product's worker of a node that receives, likewise. It is its own engines' thread, and waits for the device."""

    def __init__(self, scene: BothWays, machines: Machines, incarnation: int) -> None:
        ConsumerRank.__init__(self, scene, machines, incarnation)
        self.post, self.zeroing = Post(), Zeroing()
        fakes = dict.fromkeys(("_waker", "_digests", "_refusals"), SILENT)
        own = {"_loop": self.post, "_zeroing": self.zeroing, "_engines": Engines(self.fences), "_landing": None}
        state: dict[str, Any] = {"_reserve_sent_s": {}, "_committed_s": {}, "_finished": set(), "_failed": set()}
        counts = dict.fromkeys(("loaded", "failed", "cancelled", "fences", "verified", "mismatched", "unverifiable"), 0)
        vars(self).update(fakes | own | state, _totals=counts, _report=DecodeReport(), _introduction=Introduction())
        vars(self).update(_lock=nullcontext(), _consumer=self.machine, _gather=self.gather, _record=_an_event)
        self.flush()

    def flush(self) -> None:
        self._make_engines()
        self._flush()


def _an_event() -> bool:
    return True


class Zeroing:
    """Requests whose blocks the device zeroes in the step under way."""

    def __init__(self) -> None:
        self.requests: list[str] = []

    def watch(self, _event: object, request_ids: list[str]) -> None:
        self.requests += request_ids


class Engines:
    def __init__(self, fences: list[str]) -> None:
        self.fences = fences

    def fence(self, engine: str) -> None:
        self.fences.append(engine)

    def want(self, _domain: int) -> None:
        pass


class Node:
    """State and events of one process; `skip` names requests that are not made (any more)."""

    def __init__(self, scene: BothWays, machines: Machines, incarnation: int, skip: tuple[str, ...] = ()) -> None:
        self.place, self.scene, self.skip = place_of(incarnation), scene, skip
        self.pool = Pool(scene.blocks_of(self.place))
        self.tables: dict[str, list[FakeBlock]] = {}  # request → its blocks, in order
        self.requests: dict[str, Request] = {}  # those that have not ended, as they have arrived
        self.over: set[str] = set()
        self.device: list[tuple[Any, ...]] = []  # what it has still to do
        self.trouble = ""
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

    def _take_results(self) -> None:
        """Take in what has come of the step before."""
        for request in [each for each in self.requests.values() if each.stage == "computed"]:
            self._finish(request, aborted=False)
        results, report = self.workers.take_results(), self.workers.take_report()
        self.sides.update(results.finished_sending, report or DecodeReport(), results.finished_recving)
        ended = results.finished_recving | results.finished_sending
        assert ended <= self.requests.keys(), "vLLM hears of a request that it does not have"
        for name in results.finished_recving:
            request = self.requests[name]
            if request.stage == "gone":
                self._free(request)
            elif name in results.failed_recving:
                self.pool.free_blocks(self.tables.pop(name))
                request.stage = "waiting"
            else:
                self._receive(request)
        for name in results.finished_sending:
            self._free(self.requests[name])

    def _receive(self, request: Request) -> None:
        """The KV is reported received: vLLM uses it, and caches it."""
        blocks = [block.block_id for block in self.tables[request.request_id]]
        self._check(request.leg, blocks)
        self._cache(request.leg, blocks)
        for block in blocks:
            self.pool.writer[block] = ""
        request.stage = "ready"

    def _finish(self, request: Request, *, aborted: bool) -> None:
        vllm_request: Any = request
        if self.sides.finish_request(vllm_request, aborted=aborted):
            request.stage = "held"
        elif request.stage == "remote":
            request.stage = "gone"
        else:
            self._free(request)

    def _free(self, request: Request) -> None:
        self.pool.free_blocks(self.tables.pop(request.request_id, ()))
        del self.requests[request.request_id]
        self.over.add(request.request_id)

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

    def _schedule(self, preempted: str) -> Any:
        """Schedule as vLLM does; nothing that waits beside a preemption."""
        if preempted:
            request = self.requests[preempted]
            self.pool.free_blocks(self.tables.pop(preempted))
            request.stage = "waiting"
        going_on = [
            (name, None, each.num_tokens - 1, 1) for name, each in self.requests.items() if each.stage == "running"
        ]
        new: list[tuple[str, Any, int, int]] = []
        for name, request in self.requests.items() if not preempted else ():
            if request.stage == "ready":
                request.stage = "running"
                new.append((name, self._block_ids(name), request.num_tokens - 1, 1))
            elif request.stage == "waiting":
                computed, has_room = self._place(request)
                if not has_room:
                    break
                if computed is not None:
                    new.append((name, self._block_ids(name), computed, request.num_tokens - computed))
        return step_output(new, going_on, {preempted} - {""})

    def _place(self, request: Any) -> tuple[int | None, bool]:
        """Give a request that waits its blocks, if it may have them. Returns how many tokens are cached, if it is scheduled; and whether there was room."""
        cached = [
            block
            for content in request.leg.contents[: (request.num_tokens - 1) // BLOCK_TOKENS]
            if (block := self.pool.find(content))
        ]
        tokens = len(cached) * BLOCK_TOKENS
        external, _ = self.sides.match(request, tokens)
        if external is None:
            return None, True
        missing = -(-(tokens + external if external else request.num_tokens) // BLOCK_TOKENS) - len(cached)
        self.pool.touch(cached)
        if missing > self.pool.get_num_free_blocks():
            self.pool.free_blocks(cached)
            return None, False
        own = self.pool.take(missing)
        blocks = self.tables[request.request_id] = cached + own
        self.sides.allocated(request, [blocks], external)
        for block in own:
            self.pool.writer[block.block_id] = request.leg.transfer if external else ""
            self.pool.content[block.block_id] = GARBAGE if external else UNWRITTEN
        if external:
            request.stage = "remote"
            return None, True
        request.stage = "computed" if request.leg.role == "prefill" else "running"
        self._cache(request.leg, self._block_ids(request.request_id))
        return tokens, True

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

    def _block_ids(self, name: str) -> list[int]:
        return [block.block_id for block in self.tables.get(name, ())]

    def _cache(self, leg: Leg, blocks: list[int]) -> None:
        """Cache the blocks that a request fills; vLLM may have the same tokens in several."""
        full = (len(leg.prompt) + max(0, len(leg.start) - 1)) // BLOCK_TOKENS
        for block, content in list(zip(blocks, leg.contents, strict=False))[:full]:
            self.pool.cached[block] = content

    def _check(self, leg: Leg, blocks: Iterable[int]) -> None:
        """A request computes on these blocks."""
        found = {(self.pool.content[block], content) for block, content in zip(blocks, leg.contents, strict=False)}
        wrong = {there for there, wanted in found if there != wanted}
        if UNWRITTEN in wrong:
            self.trouble = "I1: a request computes on a block that was pushed before it had been written"
        elif EMPTY in wrong:
            self.trouble = "I4: a request computes on a block that has not arrived"
        elif wrong:
            self.trouble = "I2: a request computes on what is not its prompt's KV"

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
