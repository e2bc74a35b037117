from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import AsyncMock, Mock

from prometheus_client.parser import text_string_to_metric_families

from baton.proxy.errors import FailureKind, UpstreamError
from baton.proxy.nodes.node import Node
from baton.proxy.telemetry.node_series import FRESH_S, NodeSeries, merge
from tests.support.clock import Clock

TEXT = """# HELP python_info Python
# TYPE python_info gauge
python_info{version="3.11"} 1.0
# HELP vllm:num_requests_running Requests {running}
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a } b"} 2.0
# HELP vllm:ttft_seconds First tokens
# TYPE vllm:ttft_seconds histogram
vllm:ttft_seconds_bucket{le="+Inf"} 3.0
vllm:ttft_seconds_sum 1.5
vllm:ttft_seconds_count 3.0
# TYPE baton_x gauge
baton_x 1.0
"""


def test_series_of_nodes_are_told_apart_and_stay_together() -> None:
    """Prometheus' own parser reads them; what is not vLLM's is left out."""
    merged = merge([("prefill", "http://p:1", TEXT), ("decode", "http://d:2", TEXT)]).decode()

    families = {family.name: family for family in text_string_to_metric_families(merged)}
    running = families["vllm:num_requests_running"]
    assert set(families) == {"vllm:num_requests_running", "vllm:ttft_seconds"}
    assert [sample.labels for sample in running.samples] == [
        {"role": "prefill", "url": "http://p:1", "engine": "0", "model_name": "a } b"},
        {"role": "decode", "url": "http://d:2", "engine": "0", "model_name": "a } b"},
    ]
    assert [sample.value for sample in families["vllm:ttft_seconds"].samples] == [3.0, 1.5, 3.0] * 2
    assert merged.count("# TYPE vllm:num_requests_running") == 1


async def test_nodes_are_asked_once_a_second_and_those_that_do_not_answer_left_out() -> None:
    """Scrapes cost the nodes something."""
    asked: list[str] = []

    @asynccontextmanager
    async def get(url: str, *_: object, **__: object) -> AsyncIterator[Any]:
        asked.append(url)
        if url == "http://gone":
            raise UpstreamError(FailureKind.CONNECT, "it cannot be reached")
        yield Mock(status=500 if url == "http://refuses" else 200, read_all=AsyncMock(return_value=TEXT.encode()))

    clock = Clock()
    nodes = [Node(url=f"http://{name}", role="decode") for name in ("works", "refuses", "gone")]
    series = NodeSeries(lambda: nodes, Mock(get=get), clock=clock)

    first, second = await series.text(), await series.text()
    clock.now_s += FRESH_S
    await series.text()

    assert first == second
    assert b"http://works" in first
    assert b"http://refuses" not in first
    assert len(asked) == 2 * len(nodes)
