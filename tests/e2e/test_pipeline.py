"""A real server of three pipeline stages: its answers, and what becomes of it when a stage dies; or hangs: tests/integration/model_runner."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.e2e.client import body_for, difference
from tests.e2e.conftest import Trio
from tests.e2e.fidelity import answers
from tests.e2e.stack import FLOAT32, Server, Stack

pytestmark = pytest.mark.e2e

WORKER = ("--worker-cls", "baton.model_runner.cpu.Worker")
DEVELOPMENT = {"VLLM_SERVER_DEV_MODE": "1"}  # offers `collective_rpc`
AT_ONCE = 8
STAGES = 3
ENDED_WITHIN_S = 60.0  # seconds are expected; vLLM's own bound of a step is 300 s


def counts(server: Server) -> list[dict[str, int]]:
    """What each stage has sent and received asynchronously."""
    response = server.http.post(server.url + "/collective_rpc", json={"method": "pipeline_counts"}, timeout=60)
    found: list[dict[str, int]] = response.raise_for_status().json()["results"]
    return found


def test_tokens_are_those_of_one_stage_and_a_request_ends_when_a_stage_does(stack: Stack, trio: Trio) -> None:
    """Several prompts at once, chunked at 256 tokens, every message sent with handles and received lazily.

    Then a stage is killed: the client is told so, and the server ends, to be restarted.
    """
    flags = (*FLOAT32, *WORKER, "--pipeline-parallel-size", str(STAGES), "--max-num-batched-tokens", "256")
    server = stack.plain(*flags, name="stages", env=DEVELOPMENT)
    server.wait_ready()

    found = answers(server.url, stack.model, trio.prompts[::3], at_once=AT_ONCE)
    seen = counts(server)

    assert [difference(want, got) for want, got in zip(trio.reference[::3], found, strict=True)] == [""] * len(found)
    steps = seen[0]["sent"]
    assert steps > len(found)
    assert [stage["sent"] for stage in seen] == [steps] * (STAGES - 1) + [0]
    assert [stage["received"] for stage in seen] == [0] + [steps] * (STAGES - 1)
    assert all(stage["send_handles"] >= 2 * steps for stage in seen[:-1])  # a head, and tensors
    dies_with_a_stage(server, body_for(stack.model, trio.prompts[0], max_tokens=2000, stream=True))


def dies_with_a_stage(server: Server, body: dict[str, Any]) -> None:
    """Kill the stage in the middle while a request is under way."""
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(how_it_ends, server, body, under_way := threading.Event())
        assert under_way.wait(ENDED_WITHIN_S)

        os.kill(server.process("VLLM::Worker_PP1"), signal.SIGKILL)

        assert ending.result(ENDED_WITHIN_S) in ("error event", "connection lost")
    assert server.child is not None
    server.child.wait(ENDED_WITHIN_S)


def how_it_ends(server: Server, body: dict[str, Any], under_way: threading.Event) -> str:
    chunks = 0
    try:
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=ENDED_WITHIN_S) as response:
            for line in response.iter_lines():
                if '"error"' in line:
                    return "error event"
                chunks += bool(line)
                if chunks > 2:
                    under_way.set()
    except httpx.TimeoutException:
        return "nothing came"
    except httpx.HTTPError:
        return "connection lost"
    else:
        return "complete"
    finally:
        under_way.set()
