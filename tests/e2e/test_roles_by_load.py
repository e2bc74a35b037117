"""`baton roles` before real nodes: prompts bring a decode node to the prefill role, and streams bring it back; answers stay whole."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import httpx
import pytest

from baton.contracts.configuration.schema import RolesConfig
from baton.deploy.roles.command import Controller
from tests.e2e.fidelity import choose_prompts
from tests.e2e.stack import ANSWER_TIMEOUT_S, FLOAT32, Server, Stack
from tests.e2e.test_changed_roles import ADMIN, admin
from tests.support import slow_step
from tests.support.ports import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive, pytest.mark.timeout(600)]

# A prompt fills a step, which takes long; a few streams fill a pool.
FLAGS = (
    *(*FLOAT32, "--block-size", "32", "--both-ways", "true", *slow_step.FLAGS),
    *("--max-num-batched-tokens", "320", "--max-model-len", "2048", "--num-gpu-blocks-override", "120"),
)
STEP_S = 0.05
PROMPT_TOKENS = 300
CLIENTS = 8
SHIFT_S = 60.0  # the longest that a shift of the load may go unnoticed
RULES = RolesConfig(interval_s=0.5, looks=3, cooldown_s=5.0)


@pytest.fixture
def nodes(stack: Stack) -> Iterator[list[Server]]:
    def node(role: str, name: str) -> Server:
        control = () if role == "prefill" else ("--control-port", str(free_port()))
        return stack.node(role, *FLAGS, *control, name=name, env={slow_step.STEP_S: str(STEP_S)})

    with stack.stopping():
        made = [node("prefill", "prefill"), node("decode", "first"), node("decode", "second")]
        for server in made:
            server.wait_ready()
        yield made


def test_roles_follow_the_load(stack: Stack, nodes: list[Server], tmp_path: Path) -> None:
    (tmp_path / "token").write_text(ADMIN)
    proxy = stack.proxy(nodes[:1], nodes[1:], "--admin-token-file", str(tmp_path / "token"))
    prompt, numbers = max(choose_prompts(3), key=len)[: PROMPT_TOKENS - 1], count()
    done, wrong, answer_tokens = threading.Event(), [], [2]

    def go_on() -> None:
        while not done.is_set():
            tokens = answer_tokens[0]
            body = {"prompt": [next(numbers) % 1000, *prompt], "max_tokens": tokens, "ignore_eos": True}
            body |= {"cache_salt": str(time.monotonic_ns()), "model": stack.model}
            answer = httpx.post(f"{proxy.url}/v1/completions", json=body, timeout=ANSWER_TIMEOUT_S)
            if answer.status_code != 200 or answer.json()["usage"]["completion_tokens"] != tokens:
                wrong.append((answer.status_code, answer.text))

    def until(prefill: int) -> float:
        began_s = time.monotonic()
        while time.monotonic() < began_s + SHIFT_S:
            controller.check_load()
            seen = [node["role"] for node in admin(proxy, "GET", "/admin/nodes")["nodes"] if node["state"] == "ready"]
            if (len(seen), seen.count("prefill")) == (3, prefill):
                return time.monotonic() - began_s
            time.sleep(RULES.interval_s)
        raise AssertionError(admin(proxy, "GET", "/admin/nodes"))

    with httpx.Client(headers={"authorization": f"Bearer {ADMIN}"}) as client, ThreadPoolExecutor(CLIENTS) as pool:
        controller = Controller(client, (proxy.url,), RULES)
        for _ in range(CLIENTS):
            pool.submit(go_on)
        try:
            took_s = [until(2)]
            answer_tokens[0] = 200
            took_s.append(until(1))
        finally:
            done.set()
    print(f"a shift of the load was followed after {took_s[0]:.1f} and {took_s[1]:.1f} s")
    assert wrong == []
