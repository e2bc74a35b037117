"""Real servers of several pipeline stages: their answers, and what becomes of them when a stage dies or hangs."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.e2e.client import body_for, difference
from tests.e2e.conftest import Trio
from tests.e2e.fidelity import answers
from tests.e2e.stack import FLOAT32, Server, Stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

WORKER = ("--worker-cls", "baton.model_runner.cpu.Worker")
DEVELOPMENT = {"VLLM_SERVER_DEV_MODE": "1"}  # offers `collective_rpc`
AT_ONCE = 8
STEP_TIMEOUT_S = 5
ENDED_WITHIN_S = 60.0  # seconds are expected; vLLM's own bound of a step is 300 s


def staged(stack: Stack, stages: int, *flags: str, **env: str) -> Server:
    """Start a plain server of some pipeline stages, with our worker."""
    flags = (*FLOAT32, *WORKER, "--pipeline-parallel-size", str(stages), *flags)
    server = stack.plain(*flags, name=f"stages-{stages}", env=DEVELOPMENT | env)
    server.wait_ready()
    return server


def counts(server: Server) -> list[dict[str, int]]:
    """What each stage has sent and received asynchronously."""
    response = server.http.post(server.url + "/collective_rpc", json={"method": "pipeline_counts"}, timeout=60)
    found: list[dict[str, int]] = response.raise_for_status().json()["results"]
    return found


@pytest.mark.parametrize("stages", [pytest.param(2, marks=pytest.mark.exhaustive), 3])
def test_tokens_are_those_of_one_stage(stack: Stack, trio: Trio, stages: int) -> None:
    """Several prompts at once, chunked at 256 tokens, every message sent with handles and received lazily."""
    server = staged(stack, stages, "--max-num-batched-tokens", "256")

    found = answers(server.url, stack.model, trio.prompts, at_once=AT_ONCE)
    seen = counts(server)

    assert [difference(want, got) for want, got in zip(trio.reference, found, strict=True)] == [""] * len(found)
    steps = seen[0]["sent"]
    assert steps > len(found)
    assert [stage["sent"] for stage in seen] == [steps] * (stages - 1) + [0]
    assert [stage["received"] for stage in seen] == [0] + [steps] * (stages - 1)
    assert all(stage["send_handles"] >= 2 * steps for stage in seen[:-1])  # a head, and tensors


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


@pytest.mark.parametrize(
    ("rank", "signal_number"),
    [
        (1, signal.SIGKILL),
        (0, signal.SIGSTOP),
        pytest.param(0, signal.SIGKILL, marks=pytest.mark.exhaustive),
        pytest.param(1, signal.SIGSTOP, marks=pytest.mark.exhaustive),
    ],
)
def test_a_request_ends_when_a_stage_does(stack: Stack, trio: Trio, rank: int, signal_number: signal.Signals) -> None:
    """The client is told so, and the server ends, to be restarted: by the death, or when a step's time is over."""
    hurt = staged(stack, 2, VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=str(STEP_TIMEOUT_S))
    body = body_for(stack.model, trio.prompts[0], max_tokens=2000, stream=True)
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(how_it_ends, hurt, body, under_way := threading.Event())
        assert under_way.wait(ENDED_WITHIN_S)
        began = time.monotonic()

        os.kill(hurt.process(f"VLLM::Worker_PP{rank}"), signal_number)

        assert ending.result() in ("error event", "connection lost")
    assert time.monotonic() - began < ENDED_WITHIN_S
    assert hurt.child is not None
    hurt.child.wait(ENDED_WITHIN_S)
