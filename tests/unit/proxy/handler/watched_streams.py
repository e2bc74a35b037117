"""Nodes, streams and whole answers for a watch, and what sends their KV ahead."""

import asyncio
import json
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from baton.contracts.http import TOKENS_COMMENT
from baton.proxy.errors import FailureKind, StreamBrokenError
from baton.proxy.handler.stream_watch import StreamWatch
from baton.proxy.nodes.moves import Moves
from baton.proxy.nodes.node import State
from baton.proxy.planning.retry_policy import NOTHING_YET, History, RetryPolicy
from baton.proxy.request.endpoints import CHAT
from baton.proxy.request.parse import parse
from baton.proxy.resume.stream import Stream
from tests.unit.proxy.members import node


class FakeNode:
    starts_with_tokens = True
    incarnation = ""
    sends_streams = True
    pairing = node("decode").pairing

    def __init__(self, state: State) -> None:
        self.url = f"http://{id(self)}"
        self.state = self.probed = state
        self.moves = Moves()
        self.evacuated_at = 0.0
        self.draining = False

    def serves(self, model: str) -> bool:
        return model == "m"


def stream(line: bytes = b"0 1", *, resumes: bool = True) -> Stream:
    """A stream that has said something, its tokens named like this."""
    body = msgspec.json.encode({"model": "m", "messages": [], "stream": True})
    made = Stream(parse(CHAT, "r", [], body), resumes=resumes)
    made.begin_decode(cast("Any", SimpleNamespace(sent_s=1.0, second_token_gap_s=None)))
    choice = {"index": 0, "delta": {"content": "a"}, "finish_reason": None}
    made.take(TOKENS_COMMENT + line + b"\ndata: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
    return made


class Watched:
    def __init__(
        self,
        *nodes: FakeNode,
        stall_timeout_s: float = 5.0,
        prefill: Sequence[FakeNode] | None = None,
        retries: RetryPolicy | None = None,
    ) -> None:
        self.nodes = nodes
        self.watch = StreamWatch(
            cast("Any", nodes),
            cast("Any", prefill),
            stall_timeout_s=stall_timeout_s,
            drain_handover_s=0,
            retries=retries,
        )
        self.retries = retries
        self.broken: list[FailureKind] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.relays: list[Any] = []

    def add(
        self, made: Stream, history: History = NOTHING_YET, *, sent_s: float = 1.0, has_kv: bool = True, on: int = 0
    ) -> None:
        """Watch a stream on one of the nodes."""
        self.tasks.append(asyncio.create_task(self._run(made, history, sent_s, has_kv, self.nodes[on])))

    async def _run(self, made: Stream, history: History, sent_s: float, has_kv: bool, node: FakeNode) -> None:
        relay = cast(
            "Any", SimpleNamespace(stream=made, record=SimpleNamespace(sent_s=sent_s), onto=None, asked_at=0.0)
        )
        self.relays.append(relay)
        try:
            with self.watch.watching(cast("Any", node), history, relay, has_kv=has_kv):
                await asyncio.sleep(60)
        except StreamBrokenError as exc:
            self.broken.append(exc.how)
            if self.retries is not None and exc.how is FailureKind.STALLED:
                self.retries.spend()


Watch = Callable[..., Watched]


def whole(said: bytes = TOKENS_COMMENT + b"0 1\n") -> Stream:
    """An answer that is not streamed, of which a node has said something."""
    made = Stream(parse(CHAT, "r", [], msgspec.json.encode({"model": "m", "messages": []})), resumes=True)
    assert made.kept is not None
    made.kept.take(said)
    return made


class Ahead:
    """Sends KV when it is told to."""

    most = 1

    def __init__(self) -> None:
        self.ended: list[asyncio.Future[Any]] = []
        self.planned = 0

    def plan(self, *_: object) -> Any:
        self.planned += 1
        return SimpleNamespace()

    async def send(self, *_: object) -> Any:
        self.ended.append(asyncio.get_running_loop().create_future())
        return await self.ended[-1]
