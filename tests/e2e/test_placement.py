"""A prefill node makes whole answers while the decode node is slow: they are one server's, and outlive that node."""

import asyncio

import pytest

from baton.proxy.nodes.faded_line import MIN_SAMPLES
from tests.e2e.conftest import Trio
from tests.e2e.stack import FLOAT32, Server, Stack
from tests.e2e.test_killed_nodes import VARIANTS, read_all
from tests.e2e.waiting import settle
from tests.support import slow_step

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(300)]

COUNT = 2 * len(VARIANTS)
BY_COST: dict[str, str | None] = {
    "BATON_PROXY_PLACEMENT": "by_cost",
    "BATON_PROXY_PROBE_INTERVAL_S": "0.1",
    "BATON_PROXY_TARGET_FIRST_TOKEN_S": "100",
    "BATON_PROXY_TARGET_INTER_TOKEN_S": "0.03",
}
SLOW: dict[str, str | None] = {slow_step.STEP_S: "0.06"}
DECIDED = 'baton_decisions_total{path="local",reason="on_prefill"}'


def teach(proxy: Server, node: Server, model: str) -> None:
    """Let the proxy see what tokens take on a node it can predict that."""
    seen = f'baton_inter_token_prediction_ratio_count{{role="{node.info()["role"]}",url="{node.url}"}}'
    for number in range(20 * MIN_SAMPLES):
        node.ask("/v1/completions", {"model": model, "prompt": f"{number}", "max_tokens": 10, "ignore_eos": True})
        if proxy.metrics().get(seen, 0) > 0:
            return
    raise AssertionError("nothing was learned")


def test_streams_of_a_prefill_node_are_one_servers_and_survive_its_kill(stack: Stack, trio: Trio) -> None:
    reference = asyncio.run(read_all(trio, trio.plain.url, COUNT))
    flags = (*FLOAT32, *slow_step.FLAGS)
    prefill = stack.node("prefill", *flags, name="prefill-that-decodes")
    slow = stack.node("decode", *flags, name="slow-decode", env=SLOW)
    proxy = stack.proxy([prefill], [slow], name="proxy-by-cost", env=BY_COST)
    for number in range(1, 2 * MIN_SAMPLES + 1):  # odd first times are dropped
        proxy.ask("/v1/completions", {"model": trio.model, "prompt": f"{number}" * 15 * number, "max_tokens": 2})
    teach(proxy, prefill, trio.model)
    teach(proxy, slow, trio.model)

    alone = asyncio.run(read_all(trio, proxy.url, COUNT))
    decided = proxy.metrics()[DECIDED]
    settle(prefill, within_s=10)
    killed = asyncio.run(read_all(trio, proxy.url, COUNT, prefill))

    metrics = proxy.metrics()
    print({name: value for name, value in metrics.items() if name.startswith(("baton_streams", "baton_decisions"))})
    assert decided >= 1
    assert alone == killed == reference
    assert metrics['baton_streams_resumed_total{kind="disconnect"}'] >= 1
    assert metrics.get("baton_streams_broken_total", 0) == 0
    settle(slow, within_s=10)
