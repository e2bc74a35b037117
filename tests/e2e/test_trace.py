"""Some requests of the recorded trace on the real stack, as `docs/benchmarks/trace.md` has 2,000; nothing about speed."""

from collections import Counter
from collections.abc import Sequence

import pytest

from baton.contracts.http import DISAGGREGATED, LOCAL
from baton.loadtest.result import Legs, Result
from baton.loadtest.run import build
from baton.loadtest.run.build import parse
from baton.loadtest.run.command import run
from baton.loadtest.traffic.recorded import CONVERSATION
from tests.e2e.conftest import Trio
from tests.e2e.stack import Server, Stack
from tests.e2e.waiting import GIVEN_BACK_WITHIN_S, settle

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

REQUESTS = 25
SCALES = ("--time-scale", "0.3", "--length-scale", "0.25", "--max-input", "640", "--max-output", "8")
AT_ONCE = "8"  # the others wait at the client, however slow the machine is
HITS, ASKED = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"


def cached(server: Server) -> tuple[float, float]:
    """Tokens that a node found in its prefix cache so far, and how many it looked for."""
    metrics = server.metrics()
    return metrics[HITS], metrics[ASKED]


async def replayed(trio: Trio, stack: Stack) -> Result:
    """Replay the trace, and let the nodes tell of every leg."""
    nodes = ["--metrics-url", trio.prefill.url, trio.decode.url, "--secret-file", str(stack.secret_file)]
    argv = ["--url", trio.proxy.url, "--trace", str(CONVERSATION), "--requests", str(REQUESTS), *SCALES, *nodes]
    given = parse([*argv, "--concurrency", AT_ONCE])
    return await run(given, build.source(given))


def complete(legs: Sequence[Legs]) -> list[Legs]:
    """Those that both nodes told of."""
    return [each for each in legs if {"prefill", "pushes", "waiting for KV", "commit to first step"} <= set(each.spans)]


async def test_the_beginning_of_the_trace(stack: Stack, trio: Trio) -> None:
    """None fails, shared prefixes are found, every block comes back, and both nodes tell of their legs."""
    nodes = (trio.prefill, trio.decode)
    before = [cached(node) for node in nodes]

    result = await replayed(trio, stack)

    (stage,) = result.stages
    assert (stage.figures["completed"], stage.figures["failed"]) == (REQUESTS, 0)
    one_token = sum(record.asked_output_tokens == 1 for record in stage.records)  # a prefill node gives it alone
    assert stage.figures["paths"] == Counter({DISAGGREGATED: REQUESTS - one_token, LOCAL: one_token})
    for node, (hits, asked) in zip(nodes, before, strict=True):
        now_hits, now_asked = cached(node)
        rate = (now_hits - hits) / (now_asked - asked)
        print(f"{node.name} node: prefix hit rate {rate:.1%} of {now_asked - asked:.0f} tokens")
        assert rate > 0  # the trace's prompts share their first block
        settle(node, GIVEN_BACK_WITHIN_S)
        assert node.integrity()["findings"] == []
    assert len(complete(stage.legs)) >= REQUESTS // 4
