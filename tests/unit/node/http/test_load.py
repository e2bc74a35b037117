import asyncio
import json

import msgspec
import pytest
from prometheus_client import CollectorRegistry, Gauge, Histogram

from baton.node.http.load import KV_USAGE, LATENCY, RUNNING, WAITING, Load
from tests.support.asgi import Exchange, body_of, http
from tests.unit.node.gate import COMPLETIONS, gate, leg


def test_what_is_in_flight_is_counted_and_given_back() -> None:
    load = Load(CollectorRegistry())

    def fail_while_counted() -> None:
        with load.request(7), load.request(5):
            assert (load.now().requests, load.now().prompt_bytes) == (2, 12)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_while_counted()

    assert (load.now().requests, load.now().prompt_bytes) == (0, 0)
    assert (load.now().running, load.now().waiting, load.now().kv_usage) == (None, None, None)  # 0 would be a lie


def test_the_engines_own_numbers_are_those_that_vllm_shows() -> None:
    registry = CollectorRegistry()
    for name, values in ((RUNNING, (3, 4)), (WAITING, (0, 2)), (KV_USAGE, (0.25, 0.5))):
        gauge = Gauge(name, "as vLLM has it", ("model_name", "engine"), registry=registry)
        for engine, value in enumerate(values):
            gauge.labels("m", str(engine)).set(value)
    histogram = Histogram(LATENCY, "as vLLM has it", ("model_name", "engine"), registry=registry)
    for engine in range(2):
        for time_s in (0.02, 0.03, 0.05):
            histogram.labels("m", str(engine)).observe(time_s)

    load = Load(registry).now()

    assert (load.running, load.waiting, load.kv_usage) == (7, 2, 0.5)
    assert (load.inter_token_count, load.inter_token_sum_s) == (6, 0.2)


@pytest.mark.parametrize(("name", "field"), [(RUNNING, "running"), (WAITING, "waiting"), (KV_USAGE, "kv_usage")])
def test_a_number_that_vllm_does_not_show_is_none(name: str, field: str) -> None:
    registry = CollectorRegistry()
    Gauge(name, "as vLLM has it", registry=registry).set(1)

    load = msgspec.structs.asdict(Load(registry).now())

    shown = ("running", "waiting", "kv_usage", "inter_token_count", "inter_token_sum_s")
    assert {each: load[each] for each in shown} == dict.fromkeys(shown) | {field: 1}


async def test_the_gate_counts_a_request_until_its_answer_has_ended() -> None:
    """With the bytes of its body; not while it is still being sent, nor one that is refused."""
    answered = asyncio.Event()

    async def slow(*_: object) -> None:
        await answered.wait()

    node = gate(slow)
    running = asyncio.create_task(Exchange(http("POST", COMPLETIONS), body_of(leg())).run(node))
    refused = Exchange(http("POST", COMPLETIONS), body_of(json.dumps({"kv_transfer_params": "x"}).encode()))
    sending = asyncio.create_task(Exchange(http("POST", COMPLETIONS)).run(node))
    await refused.run(node)
    await asyncio.sleep(0)
    during = node._load.now()
    answered.set()
    await running
    after = node._load.now()
    sending.cancel()

    assert refused.status == 403
    assert (during.requests, during.prompt_bytes) == (1, len(leg()))
    assert (after.requests, after.prompt_bytes) == (0, 0)
