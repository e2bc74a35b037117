"""Nodes change their role under load: every answer is one server's, and each change takes effect while the node's process goes on."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from statistics import median

import httpx
import pytest

from baton.contracts.http import PATH_HEADER
from tests.e2e.both_ways import Nodes, admin, ask, body_of, prompt_of
from tests.e2e.stack import ANSWER_TIMEOUT_S, Server

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]

CLIENTS = 4
PROMPTS, ANSWER_TOKENS = 6, 30
CHANGES = [
    pytest.param(2, id="few"),
    pytest.param(200, id="many", marks=pytest.mark.exhaustive),
]


@pytest.fixture
def proxy(nodes: Nodes, tmp_path: Path) -> Server:
    return nodes.proxy(tmp_path, BATON_PROXY_PREFILL_POLICY="round_robin")


def change(proxy: Server, node: Server, role: str) -> float:
    """Change a node's role; return how long it took until it was ready in that one, in seconds."""
    began_s, seen = time.monotonic(), {}
    admin(proxy, "POST", "/admin/nodes/role", json={"url": node.url, "role": role})
    while time.monotonic() < began_s + ANSWER_TIMEOUT_S:
        seen = {each["url"]: each for each in admin(proxy, "GET", "/admin/nodes")["nodes"]}[node.url]
        if (seen["role"], seen["state"]) == (role, "ready"):
            return time.monotonic() - began_s
        time.sleep(0.02)
    raise AssertionError(seen)


@pytest.mark.parametrize("changes", CHANGES)
def test_roles_change_under_load(nodes: Nodes, proxy: Server, changes: int) -> None:
    """A decode node becomes a prefill node, which other nodes get KV from, and a decode node again, and so on."""
    bodies = [body_of(prompt_of(70 + number), ANSWER_TOKENS, model=nodes.stack.model) for number in range(PROMPTS)]
    wanted = [ask(nodes.plain, body)[0] for body in bodies]
    done, wrong, numbers = threading.Event(), [], count()
    paths: dict[str, int] = {}

    def go_on() -> None:
        while not done.is_set():
            number = next(numbers) % PROMPTS
            body = bodies[number] | {"cache_salt": str(time.monotonic_ns())}  # else all would be in the prefix caches
            answer = httpx.post(proxy.url + "/v1/completions", json=body, timeout=ANSWER_TIMEOUT_S)
            if answer.status_code != 200 or answer.json()["choices"][0]["token_ids"] != wanted[number]:
                wrong.append((number, answer.status_code, answer.text))
            path = answer.headers.get(PATH_HEADER, "")
            paths[path] = paths.get(path, 0) + 1

    with ThreadPoolExecutor(CLIENTS) as pool:
        for _ in range(CLIENTS):
            pool.submit(go_on)
        try:
            took_s = [change(proxy, nodes.second, ("prefill", "decode")[number % 2]) for number in range(changes)]
        finally:
            time.sleep(1.0)  # of load after the last one
            done.set()
    as_prefill = nodes.second.transfers()["scheduler"]["reverse"]["totals"]
    print(f"{changes} changes: median {median(took_s):.2f} s, longest {max(took_s):.2f} s; answers {paths}")
    assert wrong == []
    assert as_prefill["completed"] > 0
