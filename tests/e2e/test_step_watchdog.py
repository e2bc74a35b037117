"""A step that hangs in a real node: the node ends within the bound and a little, and its log shows where it hung.

The other order of a step: tests/unit/model_runner/test_watched.py. A worker that has died: tests/unit/kv_connector/vllm_compat/test_worker_deaths.py.
"""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from baton.model_runner.watchdog import EXIT_OVERDUE
from tests.e2e.client import body_for
from tests.e2e.stack import FLOAT32, Server, Stack
from tests.support.waiting import eventually

pytestmark = pytest.mark.e2e

BOUND_S = 4.0
PATIENCE_S = 60.0  # 2 s on a quiet machine, as is printed


def ask(node: Server, model: str) -> list[int]:
    """Ask for a stream; return the tokens that came until it ended or broke."""
    tokens: list[int] = []
    body, url = body_for(model, [5, 9, 14, 22], stream=True), node.url + "/v1/completions"
    with suppress(httpx.HTTPError), httpx.stream("POST", url, json=body, timeout=PATIENCE_S) as response:
        for line in response.iter_lines():
            if line.startswith("data: {") and "choices" in (event := json.loads(line[6:])):  # no error
                tokens += event["choices"][0]["token_ids"] or []
    return tokens


def test_a_step_that_hangs_ends_the_node(stack: Stack, tmp_path: Path) -> None:
    order = tmp_path / "order"
    node = stack.node(
        *("decode", *FLOAT32, "--step-timeout-s", str(BOUND_S)),
        name="hanging",
        target="tests.e2e.targets:hanging_decode_node",
        kwargs={"order": str(order)},
    )
    node.wait_ready()
    whole = ask(node, stack.model)

    with ThreadPoolExecutor(1) as pool:
        order.touch()
        answer = pool.submit(ask, node, stack.model)
        eventually(lambda: not order.exists(), PATIENCE_S, found=node.tail)
        begun = time.monotonic()
        assert node.child is not None
        status = node.child.wait(BOUND_S + PATIENCE_S)
        took_s = time.monotonic() - begun
        assert 1 <= len(answer.result(PATIENCE_S)) < len(whole)

    print(f"ended {took_s - BOUND_S:.2f} s after the bound of {BOUND_S:g} s, with status {status}")
    log = node.log.read_text(errors="replace")
    assert took_s > BOUND_S
    assert "execute_model has not returned for" in log
    assert f"ends with status {EXIT_OVERDUE}" in log
    assert "in planted_sleep" in log
