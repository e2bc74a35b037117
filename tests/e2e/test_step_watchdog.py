"""A step that hangs in a real node: the node ends within the bound and a little, and its log shows where it hung."""

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from baton.kv_connector.vllm_compat.worker_deaths import END_S, EXIT_WORKER_DIED
from baton.model_runner.watchdog import EXIT_OVERDUE
from tests.e2e.client import body_for
from tests.e2e.stack import FLOAT32, Server, Stack
from tests.e2e.targets import HANG_EVERY, HANG_FILE, HANG_IN
from tests.support.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

BOUND_S = 4.0
FOR_EVER_S = 3600
PATIENCE_S = 60.0  # 2 s on a quiet machine, as is printed
MODEL = "vllm.model_executor.models.qwen2:Qwen2ForCausalLM.forward"
OUTPUT = "vllm.v1.worker.gpu_model_runner:AsyncGPUModelRunnerOutput.get_output"


class Node:
    """A decode node that sleeps amid a step when it is told to."""

    def __init__(self, stack: Stack, order: Path, where: str, **env: str) -> None:
        self._model, self._order = stack.model, order
        self.server: Server = stack.node(
            "decode",
            *(*FLOAT32, "--step-timeout-s", str(BOUND_S)),
            name=f"hanging-{len(stack.servers)}",
            target="tests.e2e.targets:hanging_decode_node",
            env={HANG_FILE: str(order), HANG_IN: where, **env},
        )
        self.server.wait_ready()

    def ask(self) -> list[int]:
        """Ask for a stream; return the tokens that came until it ended or broke."""
        tokens: list[int] = []
        body = body_for(self._model, [5, 9, 14, 22], stream=True)
        url = self.server.url + "/v1/completions"
        with suppress(httpx.HTTPError), httpx.stream("POST", url, json=body, timeout=PATIENCE_S) as response:
            for line in response.iter_lines():
                if line.startswith("data: {") and "choices" in (event := json.loads(line[6:])):  # no error
                    tokens += event["choices"][0]["token_ids"] or []
        return tokens

    def plant(self) -> None:
        """Have a step sleep for ever, when the next stream is under way."""
        whole = self._order.with_suffix(".new")
        whole.write_text(str(FOR_EVER_S))
        whole.rename(self._order)

    def wait_planted(self) -> None:
        taken = self._order.with_suffix(".taken")
        eventually(taken.exists, PATIENCE_S, found=self.server.tail)
        taken.unlink()


@pytest.mark.parametrize(
    ("where", "call", "env"),
    [
        pytest.param(MODEL, "execute_model", {}, id="v1"),
        # Which call hangs in this order: tests/unit/model_runner/test_watched.py.
        pytest.param(
            OUTPUT, "get_output", {"BATON_CPU_ASYNC_SCHEDULING": "1"}, id="v2-order", marks=pytest.mark.exhaustive
        ),
    ],
)
def test_a_step_that_hangs_ends_the_node(
    stack: Stack, tmp_path: Path, where: str, call: str, env: dict[str, str]
) -> None:
    """In either order of a step."""
    node = Node(stack, tmp_path / "order", where, **env)
    child = node.server.child
    assert child is not None
    whole = node.ask()

    with ThreadPoolExecutor(1) as pool:
        node.plant()
        answer = pool.submit(node.ask)
        node.wait_planted()
        begun = time.monotonic()
        status = child.wait(BOUND_S + PATIENCE_S)
        took_s = time.monotonic() - begun
        assert 1 <= len(answer.result(PATIENCE_S)) < len(whole)

    print(f"{call}: ended {took_s - BOUND_S:.2f} s after the bound of {BOUND_S:g} s, with status {status}")
    log = node.server.log.read_text(errors="replace")
    assert took_s > BOUND_S
    assert f"{call} has not returned for" in log
    assert f"ends with status {EXIT_OVERDUE}" in log
    assert "in planted_sleep" in log


@pytest.mark.exhaustive
def test_an_engine_core_that_hangs_when_a_worker_has_died_ends(stack: Stack, tmp_path: Path) -> None:
    """As one does, now and then, that waits for a rank on another host: vLLM's executor is never told of the death."""
    (order := tmp_path / "order").write_text(str(FOR_EVER_S))
    hang = {
        HANG_FILE: str(order),
        HANG_EVERY: "1",
        HANG_IN: "vllm.v1.executor.multiproc_executor:MultiprocExecutor.shutdown",
    }
    server = stack.node(
        "decode", *FLOAT32, "-tp", "2", name="deaf", target="tests.e2e.targets:hanging_decode_node", env=hang
    )
    server.wait_ready()

    os.kill(server.process("VLLM::Worker_TP1"), signal.SIGKILL)

    assert server.child is not None
    assert server.child.wait(END_S + PATIENCE_S) != 0
    log = server.log.read_text(errors="replace")
    assert f"ends with status {EXIT_WORKER_DIED}" in log
    assert "in planted_sleep" in log
