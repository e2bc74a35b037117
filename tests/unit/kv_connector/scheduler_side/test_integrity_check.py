"""When the check looks, what it makes of it, and that a moment's disorder is no finding. On vLLM's own block pool."""

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.core.block_pool import BlockPool

from baton.kv_connector.scheduler_side import integrity_check
from baton.kv_connector.scheduler_side.history import ENDED_REQUESTS, EVENTS_PER_BLOCK, BlockHistory
from baton.kv_connector.scheduler_side.integrity_check import IntegrityCheck
from tests.unit.kv_connector.scheduler_fakes import step_output

BLOCKS = 17  # 16 and the null block


class Engine:
    """vLLM's block pool, who owns what, and steps."""

    def __init__(self, *, owners_known: bool = True) -> None:
        self.pool = BlockPool(BLOCKS, enable_caching=True, hash_block_size=16)
        self.owned: dict[str, list[Any]] = {}
        self.reserved: dict[str, list[int]] = {}
        self.check = IntegrityCheck(lambda: self.reserved)
        manager = SimpleNamespace(
            coordinator=SimpleNamespace(single_type_managers=(SimpleNamespace(req_to_blocks=self.owned),))
        )
        self.check.bind(self.pool, manager if owners_known else None)

    def admit(self, name: str, blocks: int) -> None:
        """A request gets blocks in a step that does not end yet."""
        self.check.request_arrived(name)
        self.owned[name] = self.pool.get_new_blocks(blocks)
        self.check.step_begins(step_output(new=[(name, [block.block_id for block in self.owned[name]], 0, 16)]))

    def finish(self, name: str) -> list[Any]:
        """The request ends; its blocks are not given back yet."""
        self.check.request_ended(name)
        return self.owned.pop(name)

    def run(self, name: str) -> list[Any]:
        """A request of three blocks runs for a step, and ends."""
        self.admit(name, 3)
        self.check.step_ends()
        return self.finish(name)

    def step(self) -> None:
        self.check.step_begins(step_output())
        self.check.step_ends()


@pytest.fixture
def engine() -> Engine:
    """With all blocks free."""
    return Engine()


def leak(engine: Engine) -> None:
    """A request of three blocks ends and gives back one."""
    engine.pool.free_blocks(engine.run("r1")[:1])
    engine.step()


def test_nothing_is_wrong_with_an_ordinary_request(engine: Engine) -> None:
    """It is looked once, when the last request has ended, not at every step before."""
    engine.admit("r1", 3)
    engine.check.step_ends()
    assert engine.check.totals["idle_checks"] == 0
    engine.owned["r1"].insert(0, engine.pool.null_block)
    asked = {"ok": True, "settled": True, "owners_known": True, "findings": []}
    assert engine.check.ask() == asked | {"idle_checks": 0, "integrity_findings": 0}

    engine.owned["r1"].pop(0)
    engine.pool.free_blocks(engine.finish("r1"))
    engine.step()

    assert engine.check.totals == {"idle_checks": 1, "integrity_findings": 0}
    assert engine.check.ask()["ok"] is True


@pytest.mark.parametrize("owners_known", [True, False])
def test_a_block_without_an_owner_is_found_before_idling(owners_known: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Counted and logged with its history, also where an older vLLM does not say who owns what."""
    engine = Engine(owners_known=owners_known)

    leak(engine)

    assert engine.check.totals == {"idle_checks": 1, "integrity_findings": 2}
    [record] = caplog.records
    for word in ("'2-3'", "nobody owns", "given to r1, which ended"):
        assert word in record.getMessage()


def test_one_block_that_is_not_given_back_is_found(engine: Engine) -> None:
    engine.pool.free_blocks(engine.run("r1")[:2])
    engine.step()

    assert engine.check.totals == {"idle_checks": 1, "integrity_findings": 1}


def test_a_finding_is_told_once(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    """The next request does not bring the same line again, but a new leak brings its own."""
    leak(engine)
    engine.pool.free_blocks(engine.run("r2"))
    engine.step()
    assert len(caplog.records) == 1

    leak(engine)

    assert len(caplog.records) == 2
    assert engine.check.totals == {"idle_checks": 3, "integrity_findings": 4}


@pytest.mark.parametrize("what", ["a reservation", "a step", "a held prompt"])
def test_what_is_still_under_way_is_no_leak(what: str) -> None:
    """A peer may still write; a step's frees are deferred to its end; a finished prompt keeps its blocks."""
    engine = Engine(owners_known=what != "a held prompt")
    engine.admit("r1", 3)
    if what == "a step":
        engine.admit("r2", 1)
        engine.finish("r2")
    elif what == "a reservation":
        engine.reserved["r1"] = [1, 2, 3]
    else:
        engine.check.request_ended("r1", keeps_blocks=True)
    if what != "a held prompt":
        engine.finish("r1")

    engine.check.step_ends()

    assert engine.check.totals["idle_checks"] == 0


def test_who_asks_is_told_what_is_wrong(engine: Engine) -> None:
    """Blocks of which the same is to be said are one entry."""
    leak(engine)

    answer = engine.check.ask()

    assert (answer["ok"], answer["settled"], answer["owners_known"]) == (False, True, True)
    [finding] = answer["findings"]
    assert (finding["blocks"], finding["references"], finding["owners"]) == (["2-3"], 1, [])
    assert len(finding["history"]) == 1


def test_a_change_half_way_is_no_finding(engine: Engine) -> None:
    """A client asks between a request's end and the return of its blocks, after the first look."""
    engine.admit("r1", 3)
    returned = threading.Timer(0.05, engine.pool.free_blocks, [engine.finish("r1")])
    returned.start()

    answer = engine.check.ask()

    returned.join()
    assert answer["ok"] is True


def test_a_leak_is_certain_after_some_steps(engine: Engine) -> None:
    """The engine never idles, and is not waited for."""
    engine.run("r1")
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            engine.check.step_begins(step_output())
            time.sleep(0.01)
            engine.check.step_ends()

    thread = threading.Thread(target=work)
    thread.start()
    answer = engine.check.ask()
    stop.set()
    thread.join()

    assert (answer["ok"], answer["settled"]) == (False, True)


def test_a_step_that_does_not_end_leaves_the_answer_open(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is under way may still give the blocks back: the client is told that it is not certain."""
    monkeypatch.setattr(integrity_check, "PATIENCE_S", 0.3)
    engine.admit("r1", 3)
    engine.finish("r1")

    answer = engine.check.ask()

    assert (answer["ok"], answer["settled"]) == (False, False)


def test_a_block_that_a_request_gets_later_has_a_history_too(engine: Engine) -> None:
    """Of a request that goes on most steps bring none."""
    engine.check.step_begins(step_output(cached=[("r1", [5, 6], 16, 16), ("r2", None, 16, 1)]))

    told = [engine.check.history.of(block, time.monotonic()) for block in (4, 5, 6)]

    assert [[line.partition(" ago ")[2] for line in lines] for lines in told] == [[], ["given to r1"], ["given to r1"]]


def test_a_history_is_short(engine: Engine) -> None:
    """Always on, so it must not grow: a few events per block, and a few thousand ended requests."""
    history = BlockHistory()
    for number in range(EVENTS_PER_BLOCK + 5):
        history.note("given to", f"r{number}", [2])
    for number in range(ENDED_REQUESTS + 5):
        history.ended(f"r{number}")

    told = history.of(2, time.monotonic())

    assert len(told) == EVENTS_PER_BLOCK
    assert f"given to r{EVENTS_PER_BLOCK + 4}, which ended " in told[-1]
    assert len(history._ended) == ENDED_REQUESTS
    assert history.of(1, 0.0) == []
