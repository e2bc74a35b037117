"""The faults: a text of a file, what stands in its place, and the tests that must fail with it."""

from dataclasses import dataclass
from typing import Final

KV: Final = "kv_connector"
UNIT: Final = "tests/unit"


@dataclass(frozen=True, slots=True)
class Mutation:
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
        "kv_connector/engine/mooncake.py",
        f"{UNIT}/kv_connector/engine/test_port_memory.py",
        ("engine, _ = self._start_elsewhere()", "engine, _ = self._start()"),
    ),
    *_of(
        "kv_connector/handoff/producer.py",
        f"{UNIT}/kv_connector/handoff",
        (" and transfer.reservation is None:", ":"),
        (" and not (transfer.prompt and transfer.prompt.is_answer)", ""),
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
            "        if params.grids.decode != self._grid:\n",
            "        if False:\n",
        ),
        (" or self._media.objection_to(request.mm_features)", ""),
        ("            if self._requests[owner].prompt_hash == prompt:", "            if True:"),
        (", after=self._owners.get(params.transfer_id))", ")"),
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
        (" and not tracked.is_given_up", ""),
        ("            if known != prompt: ", "            if False: "),
        ('if transfer_id != params.transfer_id else ""', 'if params.several else ""'),
        ("        for request_id in output.preempted_req_ids or ():\n", "        for request_id in ():\n"),
        ("if tracked is None or tracked.state is not _State.QUEUED:", "if tracked is None:"),
        ("tracked.state in (_State.VOID, _State.COMPLETE)", "tracked.state is _State.COMPLETE"),
        ("tracked.state in (_State.RUNNING, _State.COMPLETE)", "tracked.state is _State.RUNNING"),
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
        ('        parts.append("choices")\n', "        pass\n"),
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
        ("    if client.record.status and not answer.is_stream:\n", "    if False:\n"),
        ("is_last and tail.rstrip().endswith(END_OF_STREAM)", "tail.rstrip().endswith(END_OF_STREAM)"),
    ),
    *_of(
        "proxy/handler/failover.py",
        f"{UNIT}/proxy/handler",
        (
            "if pays and denied is None and (plan is None or plan.path == RECOMPUTED):",
            "if pays and denied is None and plan is None:",
        ),
        (
            "if pays and denied is None and (plan is None or plan.path == RECOMPUTED):",
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
        ("return history.attempts < self._max_attempts", "return history.attempts <= self._max_attempts"),
        ("if left_s < MIN_LEFT_S:", "if False:"),
        ('if kind is FailureKind.TIMEOUT and node.role == "decode":', "if kind is FailureKind.TIMEOUT:"),
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
        "proxy/planning/placement.py",
        f"{UNIT}/proxy/planning/test_placement.py",
        ("if not (is_late or is_slow) and", "if not is_late and"),
        ("        decode.crowded_until_s = now_s + _CROWDED_S\n", "        pass\n"),
        ("            prefill.crowded_until_s = decode.crowded_until_s\n", "            pass\n"),
        ("        if is_late:\n            prefill", "        if True:\n            prefill"),
        ("placement is not Placement.PAIR and (is_late or is_slow)", "is_late or is_slow"),
        ("max(prefill.crowded_until_s, decode.crowded_until_s)", "prefill.crowded_until_s"),
        ("max(prefill.crowded_until_s, decode.crowded_until_s)", "decode.crowded_until_s"),
        ("there_s + spread_s > target_s", "there_s > target_s"),
        ("or idle_times * idle_s, _LEAST_FIRST_TOKENS * idle_s + spread_s", "or idle_times * idle_s, 0"),
        ("_LEAST_FIRST_TOKENS * idle_s + spread_s", "_LEAST_FIRST_TOKENS * idle_s"),
        (
            "max(times.target_s(targets.inter_token_s, now_s), times.target_s(0.0, now_s))",
            "times.target_s(targets.inter_token_s, now_s)",
        ),
        ("_IDLE_FIRST_TOKENS if times is decode.prefill_time else _LEAST_FIRST_TOKENS", "_IDLE_FIRST_TOKENS"),
        ("own_idle_s, times = idle_s, prefill.prefill_time", "own_idle_s = idle_s"),
        ("idle_s = min(idle_s, own_idle_s)", "idle_s = max(idle_s, own_idle_s)"),
        ("_has_room(chosen_prefill, _EMPTY, targets, prefill.prefill_time)", "True"),
        ("_has_room(chosen_decode, _FULL, targets, times)", "_has_room(chosen_decode, 2.0, targets, times)"),
        ("ON_DECODE if is_late and here_s < there_s else", "ON_DECODE if is_late else"),
        ("ON_DECODE if is_late and here_s < there_s else", "ON_DECODE if here_s < there_s else"),
        ("is_slow and not is_late and _has", "not is_late and _has"),
        ("is_slow and not is_late and _has", "is_slow and _has"),
        ("not is_late and _has_faster_streams(prefill, decode)", "not is_late"),
        ("return prefill.streams <= decode.streams", "return True"),
        ("return _token_s(prefill, times, now_s) <= _token_s(decode, times, now_s)", "return True"),
        ("if here_s > max(there_s, target_s):", "if False:"),
        ("node.streams + 1, now_s", "node.streams, now_s"),
        ("or 0.0) / (1 - prompt_share)", "or 0.0)"),
        ("min(_MOST_SHARE, node.prompt_share.at(now_s))", "node.prompt_share.at(now_s)"),
        ("_COMPUTED * new_bytes * (1 + node.streams)", "_COMPUTED * new_bytes"),
        ("_COMPUTED * new_bytes * (1", "new_bytes * (1"),
        (" + _waiting_bytes(node) + node.requests", " + node.requests"),
        (" + node.requests * SEQUENCE_BYTES", ""),
        ("targets.max_prompt_share >= 1:", "targets.max_prompt_share > 1:"),
        (
            "max(times.predict_s(new_bytes, now_s) or 0.0, times.limit_s(new_bytes))",
            "times.predict_s(new_bytes, now_s) or 0.0",
        ),
    ),
    *_of(
        "proxy/planning/planner.py",
        f"{UNIT}/proxy/planning/test_planner.py",
        ("if placement is not Placement.ON_DECODE:", "if True:"),
        ("if placement is not Placement.ON_PREFILL:", "if True:"),
    ),
    *_of(
        "proxy/nodes/prefill_time.py",
        f"{UNIT}/proxy/nodes/test_prefill_time.py",
        ("if not 0 <= prompt_bytes <= MAX_BYTES", "if not 0 <= prompt_bytes"),
    ),
    *_of(
        "proxy/nodes/faded_line.py",
        f"{UNIT}/proxy/nodes/test_prefill_time.py",
        ("self._weight * _KEPT + 1", "self._weight + 1"),
        ("min(max(0.0, slope)", "min(max(-1.0, slope)"),
        ("self._samples >= MIN_SAMPLES and ", ""),
        ("<= MAX_AGE_S", "<= 2 * MAX_AGE_S"),
    ),
    *_of(
        "proxy/nodes/inter_token_time.py",
        f"{UNIT}/proxy/nodes/test_inter_token_time.py",
        ("before <= load.inter_token_count < before", "load.inter_token_count < before"),
        (" * (1 - prompt_share)", ""),
    ),
    *_of(
        "proxy/nodes/inter_token_time.py",
        f"{UNIT}/proxy/nodes/test_role_load.py",
        ("* alone_s / self._line.mean", "* alone_s"),
        ("if busy_share < _MOST_BUSY:", "if False:"),
        ("if busy_share < _MOST_BUSY:", "if True:"),
    ),
    *_of(
        "proxy/nodes/role_load.py",
        f"{UNIT}/proxy/nodes/test_role_load.py",
        ("node.prompt_bytes - node.computed_prompt_bytes if", "node.prompt_bytes if"),
        (", more=waiting_s if waiting else 0.0", ""),
        (" * (load.running or 0) / sequences", ""),
    ),
    *_of(
        "deploy/roles/decision.py",
        f"{UNIT}/deploy/roles/test_decision.py",
        ("self._streaks.get(key, 0) + 1 for", "self._streaks.get(key, 9) + 1 for"),
        ("        self._streaks.clear()\n", ""),
        ("min(own_s, unchanged_s) >=", "own_s >="),
        ("now.worst < self._rules.least_load", "now.worst < 0"),
        ("if len(nodes[_OTHER[role]]) > 1 and", "if"),
        ("best.gain >= self._rules.margin * now.worst", "best.gain > 0"),
        ("any(node.requests for node in nodes)", "False"),
        ("node.started_as != role, ", ""),
    ),
    *_of(
        "deploy/roles/fleet.py",
        f"{UNIT}/deploy/roles/test_fleet.py",
        ('node.state != "ready" or ', ""),
        ("len(seen) < len(views) or ", ""),
        ("known(sum, (node.prefill_load", "known(max, (node.prefill_load"),
        ("min(states.values(), key=_unchanged_s)", "max(states.values(), key=_unchanged_s)"),
    ),
    *_of(
        "proxy/admission/concurrency_limiter.py",
        f"{UNIT}/proxy/admission tests/integration/proxy/test_admission.py",
        ("                self._leave()  # it had been let in just then", "                pass"),
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
        "model_runner/tokens/transfer.py",
        f"{UNIT}/model_runner/tokens/test_transfer.py",
        ("_Flight(slot, packing, handle, sources, submitted_s)", "_Flight(slot, packing, handle, (), submitted_s)"),
    ),
    *_of(
        "model_runner/tokens/slots.py",
        f"{UNIT}/model_runner/tokens/test_transfer.py",
        (".view(like.dtype).view(like.shape)", ".view(torch.int32).view(like.shape)"),
    ),
    *_of(
        "model_runner/pipeline/send_window.py",
        f"{UNIT}/model_runner/pipeline/test_send_window.py",
        ("self._post(slot.copy(tensors), **how)", "self._post(tensors, **how)"),
    ),
    *_of(
        "model_runner/tokens/handles.py",
        f"{UNIT}/model_runner/tokens",
        ("        if self._error is not None:\n            raise self._error\n", ""),
    ),
    *_of(
        "proxy/resume/known.py",
        f"{UNIT}/proxy/resume",
        ("                if left.checksum != whole.checksum:\n", "                if False:\n"),
        ("            piece = piece[len(known) :]\n", ""),
        ("        known = min(left, count)\n", "        known = 0\n"),
        ("            self._names_left.discard(key)\n", ""),
    ),
    *_of(
        "proxy/resume/record.py",
        f"{UNIT}/proxy/resume",
        ("                del self._ids[choice]\n", ""),
        ('            if len(ids) > len(self._ids_before.get(choice, b"")):\n', "            if False:\n"),
        ("        if self._tokens > MAX_START_TOKENS:\n", "        if False:\n"),
        (" or choice >= MAX_START_CHOICES", ""),
        ("        if _QUOTE in piece or not piece:\n", "        if not piece:\n"),
        ("            if self._known.misses_text:\n", "            if False:\n"),
        ("        self._head = _NO_EVENT\n        self.done", "        self.done"),
        ("            if value != ours:\n", "            if False:\n"),
        ("        if self.broken is None and self._known.repeats:\n", "        if False:\n"),
    ),
    *_of(
        "proxy/resume/chat_events.py",
        f"{UNIT}/proxy/resume",
        ('        known.take_entries((index, "empty"), 1)', "        pass"),
        ("many[known_count:]", "many"),
        ('    choice["token_ids"] = ids[known_count:]\n', ""),
        ('            del function["name"]\n', ""),
        ('        holder["prompt_token_ids"] = None\n', "        pass\n"),
        ('    del said["role"]\n', ""),
    ),
    *_of(
        "proxy/resume/message_events.py",
        f"{UNIT}/proxy/resume",
        (" or _SIGNATURE in event", ""),
        (
            "                delta[name] = known.take_text((index, name), delta[name])\n",
            "                known.take_text((index, name), delta[name])\n",
        ),
    ),
    *_of(
        "proxy/resume/response_events.py",
        f"{UNIT}/proxy/resume",
        (
            "                self._theirs[item[name]] = self._items.setdefault((place[0], name), item[name])\n",
            "                pass\n",
        ),
        ("        self._next += 1\n", ""),
        ('event.partition(b"\\n")[0].endswith(b".done")', "False"),
    ),
    *_of(
        "proxy/resume/short_record.py",
        f"{UNIT}/proxy/resume",
        ("            if event != self._known[at]:\n", "            if False:\n"),
        ("            self._record.go_on_with(self._splitter)\n", ""),
        ("self._done or self.dialect.is_last(bare)", "self.dialect.is_last(bare)"),
    ),
    *_of(
        "proxy/resume/kept_tokens.py",
        f"{UNIT}/proxy/resume",
        ('        self._part, self.is_answered = b"", False\n', "        self.is_answered = False\n"),
        ("                self.is_answered = True\n", ""),
        ("not 200 <= head.status < 600 or ", ""),
    ),
    *_of(
        "proxy/handler/stream_watch.py",
        f"{UNIT}/proxy/handler",
        ("max(self._since_s, self.relay.record.sent_s)", "self.relay.record.sent_s"),
        (" and not self.history.has_lost(other)", ""),
        ("islice(leaving, most)", "leaving"),
        ("min(most, self._retries.left)", "most"),
        ("kept is not None and kept.is_answered", "False"),
        ("kept is not None and not kept.can_start", "False"),
        ("one.is_over or task.cancelled()", "task.cancelled()"),
        ("        if node.probed is not State.READY:", "        if False:"),
        ("        if self._sending >= ahead.most:", "        if False:"),
    ),
    *_of(
        "node/http/tokens_ahead.py",
        f"{UNIT}/node/http/test_tokens_ahead.py",
        (
            "            if not self._has_begun:\n                await self._send(message)\n            elif",
            "            if",
        ),
    ),
    *_of(
        "proxy/planning/fleet.py",
        f"{UNIT}/proxy/planning",
        (" or self._clock() >= kept.until_s", ""),
        ("self._kept_revision != self._revision.number", "False"),
        ("or history.lost:", "and False:"),
        ("if due_s > now_s)", ")"),
    ),
    *_of(
        "proxy/nodes/node.py",
        f"{UNIT}/proxy/nodes {UNIT}/proxy/planning",
        ("self.info.served_models != info.served_models or pairing != self.pairing", "pairing != self.pairing"),
        (" or pairing != self.pairing", ""),
        ("        if state is not self.probed:\n            self.revision.number += 1\n", ""),
    ),
    *_of(
        "proxy/resume/prefill_part.py",
        f"{UNIT}/proxy/resume",
        ('        if self.ended:\n            return b""\n', ""),
        ("            self._record.reopen()\n", ""),
        ("and self._open_choices <= 0", ""),
        ("if self._open_choices > 0 and dialect.is_last(bare):", "if False:"),
    ),
    *_of(
        "proxy/resume/stream.py",
        f"{UNIT}/proxy/resume",
        ("            self.part.ended = True\n", "            pass\n"),
        (
            "            self._gap, self.on_gap, self.went_on = None, None, True\n",
            "            self._gap = self.on_gap = None\n",
        ),
        (" and not self.can_start:\n            raise", ":\n            raise"),
    ),
    *_of(
        "proxy/http_server/cancel_scope.py",
        f"{UNIT}/proxy/handler/test_legs.py",
        ("was_cancelled, self._is_over = self._is_over, True", "was_cancelled = self._is_over"),
        (" and self._task.uncancel() <= self._cancelling and", " and self._task.uncancel() <= 1 and"),
    ),
    *_of(
        "proxy/handler/attempt.py",
        f"{UNIT}/proxy/handler/test_attempt.py",
        ("if isinstance(outcome, Opened) and relay is not None and relay.is_whole:", "if False:"),
    ),
    *_of(
        "proxy/http_server/client_protocol.py",
        f"{UNIT}/proxy/http_server/test_client_protocol.py",
        ("        if not self.has_end:\n            self._write", "        if True:\n            self._write"),
    ),
    *_of(
        "proxy/response/client_response.py",
        f"{UNIT}/proxy/response",
        ("        elif self._writer.has_end:\n", "        elif False:\n"),
    ),
    *_of(
        "proxy/handler/legs.py",
        "tests/integration/proxy/test_first_token.py",
        ("            case PrefillFailed() | PrefillDone(is_whole=True):\n", "            case PrefillFailed():\n"),
    ),
    *_of(
        "kv_connector/scheduler_side/first_output.py",
        "tests/integration/kv_connector/test_first_output.py",
        ("                    output.finish_reason = None\n", ""),
        (" and request.num_tokens < self.max_model_len", ""),
        ("        request.max_tokens = 1\n", ""),
    ),
    *_of(
        "kv_connector/scheduler_side/answer_tokens.py",
        f"{UNIT}/kv_connector/scheduler_side/test_sides.py",
        ("start_of(request, params)[:-1]", "start_of(request, params)"),
        (' if params.role == "prefill" or params.start_sent else ()', ""),
        ("    request.update_block_hashes()\n", ""),
        (">= limits.max_model_len", "> limits.max_model_len"),
    ),
    *_of(
        "kv_connector/scheduler_side/sides.py",
        f"{UNIT}/kv_connector/scheduler_side/test_sides.py",
        ("for side in self._sides for name", "for side in self._sides[1:] for name"),
        ("request_ended(request.request_id, keeps_blocks=keeps_blocks)", "request_ended(request.request_id)"),
        ("self.prefill.make_room(self.decode.lacking)", "pass"),
    ),
    *_of(
        "kv_connector/worker_side/prefill.py",
        "tests/integration/kv_connector/test_workers.py",
        ("if isinstance(message.body, Reserve | Revoke) else", "if isinstance(message.body, Revoke) else"),
    ),
    *_of(
        "node/http/first_token.py",
        f"{UNIT}/node/http/test_first_token.py",
        ("            if log.goes_on:\n", "            if not log.goes_on:\n"),
    ),
    *_of(
        "node/http/token_ids.py",
        f"{UNIT}/node/http/test_token_ids.py",
        ("not in (None, FinishReason.ABORT)", "is not None"),
        ("int(prompt) * answers", "int(prompt)"),
        ("own = copy(sampling)", "own = sampling"),
    ),
    *_of(
        "kv_connector/layout/groups.py",
        f"{UNIT}/kv_connector/layout/test_windows.py {UNIT}/kv_connector/test_scheduler_groups.py",
        ("[empty] * (width - 1) + [block] if", "[block] + [empty] * (width - 1) if"),
        ("tokens % (block_tokens * group.places) == 0", "tokens % block_tokens == 0"),
        ("[*blocks[:1]]", "[*blocks[-1:]]"),
        ("2 if any(group.drafts", "1 if any(group.drafts"),
    ),
    *_of(
        "kv_connector/layout/windows.py",
        f"{UNIT}/kv_connector/layout/test_windows.py",
        ("max(0, tokens - 1) // chunk_tokens * chunk_tokens", "tokens // chunk_tokens * chunk_tokens"),
    ),
    *_of(
        "kv_connector/handoff/producer.py",
        f"{UNIT}/kv_connector/handoff/test_groups.py",
        ("if (before + place + 1) % places == 0 or", "if blocks[place] or"),
    ),
    *_of(
        "kv_connector/worker_side/sync.py",
        "tests/integration/kv_connector/test_state_schedules.py",
        (
            "self._hand(Handover(self._prompts, tuple(self._issued), self._ready()))",
            "self._hand(Handover(self._prompts, tuple(self._issued), None))",
        ),
        (
            "            self._open.remove(layer)\n            self._issued.append(layer)\n",
            "            self._issued += sorted(self._open)\n            self._open.clear()\n",
        ),
    ),
    *_of(
        "kv_connector/handoff/fan_out.py",
        "tests/integration/kv_connector/test_state_schedules.py",
        ("                if self._holding[request_id] == 0:\n", "                if True:\n"),
        (
            "        self._holding[request_id] = len(parts)\n",
            "        self._holding[request_id] = len(parts)\n        self.released.append(request_id)\n",
        ),
    ),
    *_of(
        "kv_connector/vllm_compat/speculative.py",
        f"{UNIT}/kv_connector/vllm_compat/test_speculative.py",
        ("found != set(registered[-len(found) :])", "False"),
        ("len(numbered) > most", "False"),
        ("if lookahead > 1:", "if lookahead > 2:"),
    ),
    *_of(
        "kv_connector/scheduler_side/client_tokens.py",
        f"{UNIT}/kv_connector/scheduler_side/test_first_token.py",
        (" if 0 <= choice < len(params.start) else ()", " if choice < len(params.start) else ()"),
        ("(params.transfer_id, choice) in self._started", "False"),
    ),
    *_of(
        "kv_connector/scheduler_side/whole_media.py",
        "tests/integration/kv_connector/test_whole_media.py",
        ("                new.mm_features = self.requests[new.req_id].mm_features\n", "                pass\n"),
    ),
    *_of(
        "kv_connector/scheduler_side/prompt.py",
        f"{UNIT}/kv_connector/scheduler_side/test_prompt.py",
        ("|mm {feature.identifier} {place.offset}", "|mm {place.offset}"),
        (".encode() + read)", ".encode())"),
    ),
    *_of(
        "kv_connector/vllm_compat/media.py",
        f"{UNIT}/kv_connector/vllm_compat/test_media.py",
        ("objection if keeps_media else SCHEDULER", "objection"),
        ('if getattr(found, "video_pruning_rate", None):', "if False:"),
    ),
    *_of(
        "proxy/request/eligibility.py",
        f"{UNIT}/proxy/request/test_eligibility.py",
        ("        if _has(_ITEM_EMBEDDINGS, fields):\n            return EMBEDDINGS\n", ""),
        ("(?!data:)", ""),
    ),
]
