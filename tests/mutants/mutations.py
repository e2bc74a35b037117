"""The faults: a text of a file, what stands in its place, and the tests that must fail with it."""

from dataclasses import dataclass
from typing import Final

KV: Final = "kv_connector"
UNIT: Final = "tests/unit"


@dataclass(frozen=True, slots=True)
class Mutation:
    """One fault."""

    file: str
    old: str  # stands there exactly once
    new: str
    tests: tuple[str, ...]  # for pytest

    def applied_to(self, text: str) -> str:
        """Return the file's text with the fault in it.

        Raises:
            ValueError: the text does not have it exactly once.
        """
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file} has {text.count(self.old)} times: {self.old!r}")
        return text.replace(self.old, self.new)


def _of(file: str, tests: str, *pairs: tuple[str, str]) -> list[Mutation]:
    return [Mutation(file, old, new, tuple(tests.split())) for old, new in pairs]


MUTATIONS: Final = [
    *_of(
        "kv_connector/handoff/consumer.py",
        f"{UNIT}/kv_connector/handoff",
        ("elif body.shards != transfer.shards:", "elif body.shards < transfer.shards:"),
        ("elif body.shards != transfer.shards:", "elif body.shards > transfer.shards:"),
        ("if (body.tokens, body.prompt_hash) != (wish.tokens, wish.prompt_hash):", "if body.tokens != wish.tokens:"),
        ("            if known.request_id != request_id:\n", "            if False:\n"),
        (
            "if transfer.phase is not Phase.PREPARED or not transfer.zeroed or session is None:",
            "if transfer.phase is not Phase.PREPARED or session is None:",
        ),
        ("if now - transfer.revoked_at > self._settings.peer_timeout_s:", "if now - transfer.revoked_at > 1e9:"),
        ("            due = crowded or not healthy or", "            due = not healthy or"),
        ("or body.epoch not in (0, transfer.epoch):", "or False:"),
        ("            if transfer.engine == engine:\n", "            if True:\n"),
        ("ok = commit is not None and not reason", "ok = commit is not None"),
    ),
    *_of(
        "kv_connector/handoff/producer.py",
        f"{UNIT}/kv_connector/handoff",
        (
            "        if transfer_id in self.tombstones:\n            return\n        transfer = self._find_or_create(transfer_id, now)\n        if transfer.prompt is not None:\n            return",
            "        transfer = self._find_or_create(transfer_id, now)\n        if transfer.prompt is not None:\n            return",
        ),
        (
            'self._fail(transfer, "a push failed", dirty=True, now=now)',
            'self._fail(transfer, "a push failed", dirty=False, now=now)',
        ),
        ("transfer.ready[layer] = max(transfer.ready[layer], blocks)", "transfer.ready[layer] = blocks"),
        ("elif session is None or message.receiver != self.incarnation:", "elif session is None:"),
    ),
    *_of(
        "kv_connector/handoff/peer_quotas.py",
        f"{UNIT}/kv_connector/handoff",
        ("if self.owners.get(wish.engine, decode) != decode:", "if False:"),
        ("return None if owner == decode else Refused.NOT_THEIRS", "return None"),
        ("any(max(group, default=-1) >= pool for", "any(max(group, default=-1) > pool for"),
    ),
    *_of(
        "kv_connector/layout/copy_plan.py",
        f"{UNIT}/kv_connector/layout",
        ("        _check_range(src_bounds, pair.src)\n", ""),
        ("        _check_range(dst_bounds, pair.dst)\n", ""),
        ("        _check_range(src_bounds, src)\n", ""),
        ("        _check_range(dst_bounds, dst)\n", ""),
        ("        _check_sizes(src, dst)\n", ""),
        ("if ids.low < 0 or ids.high >= region.num_blocks:", "if ids.low < 0 or ids.high > region.num_blocks:"),
        ("if ids.low < 0 or ids.high >= region.num_blocks:", "if ids.high >= region.num_blocks:"),
    ),
    *_of(
        "kv_connector/layout/pairing.py",
        f"{UNIT}/kv_connector/layout",
        (
            "if target.rank.pp_size == 1 and (missing := ours - theirs.keys()):",
            "if False and (missing := ours - theirs.keys()):",
        ),
        (
            "if source.rank.pp_size == 1 and (missing := theirs.keys() - ours):",
            "if False and (missing := theirs.keys() - ours):",
        ),
    ),
    *_of(
        "kv_connector/scheduler_side/cached_token_usage.py",
        f"{UNIT}/kv_connector/scheduler_side {UNIT}/kv_connector/test_scheduler_decode.py",
        ("min(cached, request.num_prompt_tokens)", "cached"),
        ("max(stats.num_local_cached_tokens, cached_on_prefill_tokens)", "cached_on_prefill_tokens"),
    ),
    *_of(
        "kv_connector/scheduler_side/decode.py",
        f"{UNIT}/kv_connector/test_scheduler_decode.py {UNIT}/kv_connector/test_scheduler_groups.py {UNIT}/kv_connector/test_scheduler_states.py {UNIT}/kv_connector/scheduler_side",
        ("(missing == 1 and not tracked.wants_first)", "missing == 1"),
        ("(missing == 1 and not tracked.wants_first)", "False"),
        (
            "if not params.peer or request.skip_reading_prefix_cache or not is_named(request):",
            "if not params.peer or not is_named(request):",
        ),
        (
            "if params.grids.decode != self._grid or len(peers) != params.grids.prefill.ranks:",
            "if len(peers) != params.grids.prefill.ranks:",
        ),
        ("            if self._requests[owner].prompt_hash == prompt:", "            if True:"),
        ("        if tracked.receive_failed:", "        if False:"),
        ("return len(self._ledger) > 0", "return False"),
        ("            if adapter_name(request, self._adapters) != tracked.adapter:", "            if False:"),
        (
            '        if tracked.state is not State.SETTLED:\n            self._totals["cancelled"] += 1\n            self._step.cancelled.append(request.request_id)',
            '        if tracked.state is not State.SETTLED:\n            self._totals["cancelled"] += 1',
        ),
    ),
    *_of(
        "kv_connector/scheduler_side/prefill.py",
        f"{UNIT}/kv_connector/test_scheduler_prefill.py {UNIT}/kv_connector/test_scheduler_groups.py {UNIT}/kv_connector/test_scheduler_states.py {UNIT}/kv_connector/scheduler_side",
        ("ready = computed_tokens // self._block_tokens ", "ready = -(-computed_tokens // self._block_tokens) "),
        ("tracked.state is _State.COMPLETE and not aborted", "tracked.state is _State.COMPLETE"),
        ("            if known != prompt: ", "            if False: "),
        ("        for request_id in output.preempted_req_ids or ():\n", "        for request_id in ():\n"),
        ("        if params.grids.prefill != self._grid:\n", "        if False:\n"),
    ),
    *_of(
        "kv_connector/worker_side/decode.py",
        f"{UNIT}/kv_connector/worker_side tests/integration/kv_connector/test_async_schedules.py",
        (
            "        if event is None:\n            self._zeroed(request_ids, time.monotonic())\n        else:\n            self._zeroing.watch(event, request_ids)",
            "        self._zeroed(request_ids, time.monotonic())",
        ),
    ),
    *_of(
        "contracts/kv_transfer.py",
        f"{UNIT}/contracts",
        ("    if not _is_signed(params, sig, secret):\n", "    if False:\n"),
        ("if type(version) is not int or version != PROTOCOL_VERSION:", "if type(version) is not int:"),
        ("    if not is_transfer_id(transfer_id):\n", "    if False:\n"),
    ),
    *_of(
        "node/http/bearer.py",
        f"{UNIT}/node/http/test_bearer.py {UNIT}/node/http/test_connections.py",
        ('if scheme.lower() == b"bearer" and self', "if self"),
        ("self._secret.accepts_node_token(token):", "token:"),
        ("            note_proof(scope)\n", ""),
    ),
    *_of(
        "proxy/response/stream_relay.py",
        f"{UNIT}/proxy/response",
        ("_TAIL_BYTES: Final = len(END_OF_STREAM) + 4", "_TAIL_BYTES: Final = len(END_OF_STREAM) + 3"),
        ("    if not tail.rstrip().endswith(END_OF_STREAM):\n", "    if False:\n"),
        ("if record.path == DISAGGREGATED and opened.recomputed:", "if False:"),
    ),
    *_of(
        "proxy/handler/failover.py",
        f"{UNIT}/proxy/handler",
        ("if denied is None and (plan is None or plan.path == RECOMPUTED):", "if denied is None and plan is None:"),
        (
            "if denied is None and (plan is None or plan.path == RECOMPUTED):",
            "if denied is None and (plan is not None and plan.path == RECOMPUTED):",
        ),
        ("self._history = self._history.after(node, failure.kind)", "self._history = self._history"),
    ),
    *_of(
        "proxy/planning/retry_budget.py",
        f"{UNIT}/proxy/planning",
        ("        self._tokens += 1\n", ""),
        ("        self._tokens += self._share\n", ""),
        ("min(self._burst, self._tokens + (now_s", "(self._tokens + (now_s"),
    ),
    *_of(
        "proxy/planning/retry_policy.py",
        f"{UNIT}/proxy/planning",
        ("if history.attempts >= self._max_attempts:", "if history.attempts > self._max_attempts:"),
        ("if left_s < MIN_LEFT_S:", "if False:"),
        ('if kind is FailureKind.TIMEOUT and node.role == "decode":', "if kind is FailureKind.TIMEOUT:"),
    ),
    *_of(
        "proxy/resume/splicer.py",
        f"{UNIT}/proxy/resume tests/integration/proxy/test_resume.py tests/integration/proxy/test_seam_text.py",
        (
            '        ending = {"finish_reason": choice["finish_reason"]}\n',
            '        ending: dict[str, Any] = {"finish_reason": None}\n',
        ),
        ("        if piece.ids[:known] != self._ids[:known]:\n", "        if False:\n"),
        ("        if said[:known] != self._text[:known]:\n", "        if False:\n"),
        ("[offset + self._following.text_offset for offset in", "[offset for offset in"),
        ('min(details["cached_tokens"], prompt)', 'details["cached_tokens"]'),
    ),
    *_of(
        "proxy/resume/rules.py",
        f"{UNIT}/proxy/resume",
        ('    if not greedy and not is_set(fields, "seed"):\n', "    if False:\n"),
        ("    if has_several_prompts(fields):\n", "    if False:\n"),
    ),
    *_of(
        "proxy/resume/record.py",
        f"{UNIT}/proxy/resume tests/integration/proxy/test_resume.py",
        ("        if self._tail_bytes > MAX_BYTES:\n", "        if False:\n"),
        ("            self.done = self.broken is None\n", "            self.done = True\n"),
    ),
    *_of(
        "proxy/nodes/circuit_breaker.py",
        f"{UNIT}/proxy/nodes",
        (
            "if trial == self._trial and self.state is BreakerState.HALF_OPEN:",
            "if self.state is BreakerState.HALF_OPEN:",
        ),
        ("if self._in_a_row >= self._settings.failures:", "if self._in_a_row > self._settings.failures:"),
        ("min(2**self._waits, MAX_OPEN_FACTOR)", "1"),
    ),
    *_of(
        "proxy/routing/local_prefill_policy.py",
        f"{UNIT}/proxy/routing {UNIT}/proxy/planning",
        ("self._local_below // 2 if self._is_busy(node) else self._local_below", "self._local_below"),
        ("node.own_prompt_bytes + new_bytes <= self._max_own", "node.own_prompt_bytes + new_bytes < self._max_own"),
        ("return not node.own_prompt_bytes or ", "return "),
    ),
    *_of(
        "proxy/admission/concurrency_limiter.py",
        f"{UNIT}/proxy/admission",
        ("                self.leave()  # it had been let in just then", "                pass"),
        ("        if len(self._queue) >= self.max_waiting:\n", "        if len(self._queue) > self.max_waiting:\n"),
        ("        if self._queue.waiting_of(ticket.tenant) >= self._max_per_tenant:\n", "        if False:\n"),
    ),
    *_of(
        "proxy/http_server/connection_budget.py",
        f"{UNIT}/proxy/http_server",
        (
            "        if self.connections + _BOTH_LEGS > self._most():\n",
            "        if self.connections + _BOTH_LEGS > self._most() + 1:\n",
        ),
        ("            if turn.done() and not turn.cancelled():\n                self.give_back(1)\n", ""),
    ),
    *_of(
        "proxy/auth/account.py",
        f"{UNIT}/proxy/auth",
        ("if most is not None and self._counts.inside >= most:", "if most is not None and self._counts.inside > most:"),
        ("if expires_at_s is not None and self._wall_clock() >= expires_at_s:", "if False:"),
    ),
    *_of(
        "proxy/http/connection.py",
        f"{UNIT}/proxy/http tests/integration/proxy/test_http1.py",
        ("        if self._head_bytes > MAX_HEAD_BYTES:\n", "        if False:\n"),
    ),
    *_of(
        "model_runner/tokens/host.py",
        f"{UNIT}/model_runner/tokens",
        ("tensor.clone() for name", "tensor for name"),
    ),
    *_of(
        "model_runner/tokens/handles.py",
        f"{UNIT}/model_runner/tokens",
        ("        if self._error is not None:\n            raise self._error\n", ""),
    ),
    *_of(
        "proxy/resume/first_token.py",
        f"{UNIT}/proxy/resume/test_first_token.py tests/integration/proxy/test_first_token.py",
        ("            rest[name] = new[name][len(value) :]\n", "            rest[name] = new[name]\n"),
        ('        choice["token_ids"] = choice["token_ids"][known.tokens :]\n', "        pass\n"),
        ('theirs if theirs != self._created else b""', 'b""'),
        ('        if self.ended:\n            return b""\n', ""),
        ("            self.ended = self.is_whole = True\n", "            self.ended = True\n"),
        ("many[len(value[key]) :]", "many"),
    ),
    *_of(
        "proxy/resume/first_message_token.py",
        f"{UNIT}/proxy/resume/test_first_message_token.py",
        ("[len(said) :]", "[len(said) + 1 :]"),
        (" and _SIGNATURE not in event", ""),
    ),
    *_of(
        "proxy/resume/stream.py",
        f"{UNIT}/proxy/resume/test_stream.py tests/integration/proxy/test_first_token.py",
        ("            self.went_on = True  # the client has nothing of a prefill node's\n", ""),
        ("            self.asked = replace(self.asked, start=self.part.ids)\n", "            pass\n"),
        ("        self.went_on = True\n", ""),
    ),
    *_of(
        "proxy/handler/legs.py",
        "tests/integration/proxy/test_first_token.py",
        ("            case PrefillFailed() | PrefillDone(is_whole=True):\n", "            case PrefillFailed():\n"),
    ),
    *_of(
        "kv_connector/scheduler_side/first_output.py",
        f"{UNIT}/kv_connector/scheduler_side/test_first_output.py tests/integration/kv_connector/test_first_output.py",
        ("                    output.finish_reason = None\n", ""),
        (" and request.num_tokens < self.max_model_len", ""),
        ("        request.max_tokens = 1\n", ""),
    ),
    *_of(
        "kv_connector/worker_side/prefill.py",
        "tests/integration/kv_connector/test_workers.py",
        ("if isinstance(message.body, Reserve | Revoke) else", "if isinstance(message.body, Revoke) else"),
    ),
    *_of(
        "node/http/first_token.py",
        f"{UNIT}/node/http/test_first_token.py",
        ("                await outcomes.wait_until_reserved(transfer_id, wait_s)\n", ""),
    ),
]
