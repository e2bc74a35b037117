"""KV that one decode node sends to another, or to the prefill node, amid an answer. What the proxy makes of it: test_moved_streams.py, test_returned_answers.py."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from baton.contracts.http import CANCEL_PATH
from baton.contracts.kv_transfer import new_transfer_id
from baton.proxy.request.endpoints import COMPLETIONS
from tests.e2e.both_ways import BLOCK_TOKENS, PROMPT_TOKENS, Nodes, ask, body_of, prompt_of, send
from tests.e2e.stack import ANSWER_TIMEOUT_S, Server

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

HAS_TOKENS, ANSWER_TOKENS = 64, 104  # tokens that have been streamed when a stream moves; of the whole answer


class Streaming:
    """A stream that is read in a thread; it can be left."""

    def __init__(self, server: Server, body: dict[str, Any]) -> None:
        self.tokens: list[int] = []
        self._has = threading.Condition()
        self._leave = threading.Event()
        body = {"model": server.argv[1], "stream": True, **body}
        self._thread = threading.Thread(target=self._read, args=(server.url + COMPLETIONS, body))
        self._thread.start()

    def _read(self, url: str, body: dict[str, Any]) -> None:
        with httpx.stream("POST", url, json=body, timeout=ANSWER_TIMEOUT_S) as got:
            for line in got.iter_lines():
                if line.startswith("data: {"):
                    with self._has:
                        self.tokens += json.loads(line[6:])["choices"][0]["token_ids"]
                        self._has.notify_all()
                if self._leave.is_set():
                    return

    def until(self, tokens: int) -> list[int]:
        with self._has:
            assert self._has.wait_for(lambda: len(self.tokens) >= tokens, ANSWER_TIMEOUT_S)
            return self.tokens[:tokens]

    def is_running(self) -> bool:
        return self._thread.is_alive()

    def end(self, *, leave: bool = False) -> list[int]:
        if leave:
            self._leave.set()
        self._thread.join(ANSWER_TIMEOUT_S)
        return self.tokens


def test_what_has_come_already_is_not_sent_again(nodes: Nodes) -> None:
    """A first transfer while the stream runs, one of the rest when it has been stopped: the destination computes what comes after."""
    prompt = prompt_of(1)
    wanted, _ = ask(nodes.plain, body_of(prompt, ANSWER_TOKENS))
    stream = Streaming(nodes.first, body_of(prompt, ANSWER_TOKENS))
    send(nodes.stack, nodes.first, nodes.second, prompt, stream.until(HAS_TOKENS // 2), max_tokens=HAS_TOKENS // 2 + 1)
    before = nodes.second.transfers()["scheduler"]["totals"]["tokens_received"]
    assert stream.is_running()
    stream.until(HAS_TOKENS)
    has = list(stream.end(leave=True))

    tokens, path, transfer_id = send(nodes.stack, nodes.first, nodes.second, prompt, has, max_tokens=ANSWER_TOKENS)

    assert has == wanted[: len(has)]
    assert (tokens, path) == (wanted, "disaggregated")
    cached = (PROMPT_TOKENS + HAS_TOKENS // 2) // BLOCK_TOKENS * BLOCK_TOKENS
    after = nodes.second.transfers()["scheduler"]["totals"]["tokens_received"]
    assert after - before == PROMPT_TOKENS + len(has) - 1 - cached
    assert nodes.computed(nodes.first, f"sent-{transfer_id}") <= BLOCK_TOKENS
    assert nodes.computed(nodes.second, f"received-{transfer_id}") == ANSWER_TOKENS - len(has)


def test_either_leg_may_be_left(nodes: Nodes) -> None:
    """Of an answer that returns. Blocks come back on both nodes, and the stream of the answer goes on."""
    prompt = prompt_of(2)
    wanted, _ = ask(nodes.plain, body_of(prompt, ANSWER_TOKENS))
    stream = Streaming(nodes.first, body_of(prompt, ANSWER_TOKENS))
    start = stream.until(HAS_TOKENS)
    (address,) = nodes.first.info()["control_addresses"]

    for left in ("received", "sent"):
        fields: dict[str, Any] = {"transfer_id": new_transfer_id(), "start": (tuple(start),)}
        received = body_of(prompt, ANSWER_TOKENS, **nodes.stack.leg("decode", address, start_sent=True, **fields))
        sent = body_of(prompt, 1, **nodes.stack.leg("prefill", **fields))
        if left == "received":  # it waits for a prompt that has not come
            with pytest.raises(httpx.ReadTimeout):
                post(nodes.prefill, received, 0.5)
            continue
        with ThreadPoolExecutor(1) as pool:
            going = pool.submit(ask, nodes.prefill, received)
            with pytest.raises(httpx.ReadTimeout):
                post(nodes.first, sent, 0.002)
            order = {"transfer_ids": [fields["transfer_id"]]}  # as the proxy tells both nodes
            for node in (nodes.first, nodes.prefill):
                headers = {"authorization": f"Bearer {node.token}"}
                httpx.post(node.url + CANCEL_PATH, json=order, headers=headers, timeout=10).raise_for_status()
            assert going.result()[0] == wanted

    assert stream.end() == wanted


def post(server: Server, body: dict[str, Any], within_s: float) -> None:
    """Post a request and leave if its answer does not come in time."""
    timeout = httpx.Timeout(ANSWER_TIMEOUT_S, read=within_s)
    httpx.post(server.url + COMPLETIONS, json={"model": server.argv[1], **body}, timeout=timeout)
