"""The decode node's scheduler side in vLLM's own MultiConnector, beside a connector that keeps KV elsewhere."""

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector

from baton.kv_connector.connector import BatonConnector
from baton.kv_connector.handoff.metadata import DecodeReport
from baton.kv_connector.scheduler_side.decode import DecodeScheduler
from baton.kv_connector.scheduler_side.sides import SchedulerSides
from tests.unit.kv_connector.scheduler_fakes import BLOCK_TOKENS, MakeDecode, request, step_output

TOKENS = 40
BLOCKS = -(-TOKENS // BLOCK_TOKENS)


class Host:
    """A connector that may have the first tokens of a prompt."""

    def __init__(self) -> None:
        self.has_tokens = 16
        self.asked = 0
        self.told: list[tuple[int, int]] = []  # blocks, tokens to load

    def get_num_new_matched_tokens(self, _request: Any, _computed: int) -> tuple[int, bool]:
        self.asked += 1
        return self.has_tokens, bool(self.has_tokens)

    def update_state_after_alloc(self, _request: Any, blocks: Any, tokens: int) -> None:
        self.told.append((len(blocks.blocks[0]), tokens))


class Engine:
    """The part of vLLM's scheduler that these tests need, around a MultiConnector."""

    def __init__(self, side: DecodeScheduler, *, baton_first: bool = True) -> None:
        self.side, self.host = side, Host()
        self.pool: Any = side._ledger.pool
        baton = object.__new__(BatonConnector)
        baton._scheduler = SchedulerSides("decode", None, side)
        self.multi = object.__new__(MultiConnector)
        children: list[Any] = [baton, self.host] if baton_first else [self.host, baton]
        self.multi._connectors = children
        self.multi._requests_to_connector = {}

    def admit(self, req: Any) -> int | None:
        """Match and allocate as vLLM does; returns the tokens to load."""
        tokens: int | None = self.multi.get_num_new_matched_tokens(req, 0)[0]
        if tokens is not None:
            blocks: Any = SimpleNamespace(blocks=(self.pool.allocate(BLOCKS),))
            self.multi.update_state_after_alloc(req, blocks, tokens)
        return tokens


@pytest.fixture
def side(make_decode: MakeDecode) -> DecodeScheduler:
    return make_decode()


@pytest.fixture
def req(side: DecodeScheduler) -> Any:
    """A request that has arrived."""
    made = request("decode", TOKENS)
    side.add_request(made)
    return made


def test_a_prompt_that_is_handed_over_is_received_whole(side: DecodeScheduler, req: Any) -> None:
    """The host's few tokens are left alone: the connector that loads, loads alone."""
    engine = Engine(side)

    assert engine.admit(req) == TOKENS

    (reserved,) = side.take_step(step_output()).reserved
    assert reserved.wish.from_token == 0
    assert engine.host.told == [(BLOCKS, 0)]


def test_an_ordinary_request_is_left_to_the_host(side: DecodeScheduler) -> None:
    """It has no transfer, and nothing is reserved."""
    engine, plain = Engine(side), request("decode", TOKENS)
    plain.kv_transfer_params = None
    side.add_request(plain)

    assert engine.admit(plain) == 16

    assert engine.host.told == [(BLOCKS, 16)]
    assert side.take_step(step_output()).reserved == []


def test_while_the_transfer_waits_the_host_is_not_asked(side: DecodeScheduler, req: Any) -> None:
    """Below the share of free blocks D waits for P to start; a load from the host would forestall it."""
    engine = Engine(side)
    engine.pool.allocate(30)

    assert engine.admit(req) is None
    assert engine.host.asked == 0


def test_after_a_failed_transfer_the_host_may_load(side: DecodeScheduler, req: Any) -> None:
    """Its blocks are others, and its end is not taken for that of the transfer."""
    engine = Engine(side)
    engine.admit(req)
    side.take_step(step_output())
    side.update(DecodeReport(failed={"r1": "the peer is gone"}), {"r1"})

    assert engine.admit(req) == 16
    side.update(DecodeReport(), {"r1"})

    assert engine.host.told[-1] == (BLOCKS, 16)
    assert side.take_step(step_output()).reserved == []
    totals = side.snapshot()["totals"]
    assert (totals["recomputed"], totals["loaded"]) == (1, 0)


def test_a_transfer_that_another_connector_forestalls_is_revoked(side: DecodeScheduler, req: Any) -> None:
    """Were the host asked first: given blocks but nothing to load, D lets P go at once, and P does not write."""
    engine = Engine(side, baton_first=False)

    assert engine.admit(req) == 16

    step = side.take_step(step_output())
    assert (step.reserved, step.cancelled) == ([], ["r1"])
    assert side.snapshot()["reserved_blocks"] == 0
