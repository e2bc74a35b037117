"""Two decode nodes and a prefill node that send and receive, one plain server, and what is asked of them."""

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from baton.contracts.http import PATH_HEADER
from baton.contracts.kv_transfer import new_transfer_id
from baton.proxy.request.endpoints import COMPLETIONS
from tests.e2e.fidelity import choose_prompts
from tests.e2e.stack import ANSWER_TIMEOUT_S, CLOSE, FLOAT32, TOOLS, Server, Stack
from tests.e2e.targets import COUNT_FILE
from tests.support import slow_step
from tests.support.ports import free_port

ADMIN = "an admin token for tests"
BLOCK_TOKENS = 32
PROMPT_TOKENS = 300
STEP_S = 0.025  # of a decode node: an answer takes seconds
PLAIN_FLAGS = (*FLOAT32, *CLOSE, *TOOLS, "--block-size", str(BLOCK_TOKENS))
FLAGS = (*PLAIN_FLAGS, "--both-ways", "true", *slow_step.FLAGS)


class Nodes(NamedTuple):
    stack: Stack
    prefill: Server
    first: Server
    second: Server
    plain: Server

    def proxy(self, folder: Path, **env: str) -> Server:
        """Start a proxy in front of them, which takes orders."""
        token = folder / "admin.token"
        token.write_text(f"{ADMIN}\n")
        decode = [self.first, self.second]
        return self.stack.proxy([self.prefill], decode, "--admin-token-file", str(token), env=env)

    def computed(self, server: Server, name: str) -> int:
        """Tokens that a node has computed for the request with this id, of the connector's scheduler's own count."""
        lines = (line.split() for line in Path(server.env[COUNT_FILE] or "").read_text().splitlines())
        return sum(int(tokens) for request_id, tokens in lines if name in request_id)


@contextmanager
def running_nodes(stack: Stack, folder: Path, *, asynchronous: bool) -> Iterator[Nodes]:
    """Each decode node has a core of its own: both work while streams move."""
    cores = sorted(os.sched_getaffinity(0))

    def node(role: str, name: str, core: int, step_s: float) -> Server:
        (folder / name).touch()
        env = {COUNT_FILE: str(folder / name), slow_step.STEP_S: str(step_s)}
        env["BATON_CPU_ASYNC_SCHEDULING"] = str(int(asynchronous))
        control = () if role == "prefill" else ("--control-port", str(free_port()))
        target, kwargs = "tests.e2e.targets:counting_node", {"role": role}
        return stack.node(role, *FLAGS, *control, name=name, target=target, kwargs=kwargs, env=env, cpus=[core])

    with stack.stopping():
        prefill = node("prefill", "sends-prompts", cores[0], 0)
        first, second = (node("decode", f"both-ways-{core}", core, STEP_S) for core in (cores[0], cores[-1]))
        plain = stack.plain(*PLAIN_FLAGS)
        for server in (prefill, first, second, plain):
            server.wait_ready()
        yield Nodes(stack, prefill, first, second, plain)


def admin(proxy: Server, method: str, path: str, **more: Any) -> Any:
    """Tell a proxy something of its nodes, or ask for what it says of them."""
    headers = {"authorization": f"Bearer {ADMIN}"}
    answer = httpx.request(method, proxy.url + path, headers=headers, timeout=ANSWER_TIMEOUT_S, **more)
    return answer.raise_for_status().json()


def prompt_of(number: int) -> list[int]:
    """A prompt that no other test has, not even its first block."""
    return [900 + number, *max(choose_prompts(3), key=len)[: PROMPT_TOKENS - 1]]


def body_of(prompt: list[int], max_tokens: int, **more: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    return asked | {"return_token_ids": True} | more


def ask(server: Server, body: dict[str, Any], name: str = "") -> tuple[list[int], str]:
    """Return the tokens of a whole answer, and the path that it took."""
    response = server.ask(COMPLETIONS, {"model": server.argv[1], **body}, headers={"x-request-id": name})
    return response.json()["choices"][0]["token_ids"], response.headers.get(PATH_HEADER, "")


def ask_stream(server: Server, body: dict[str, Any], name: str) -> list[int]:
    """Return the tokens of a streamed answer."""
    text = server.ask(COMPLETIONS, {**body, "stream": True}, headers={"x-request-id": name}).text
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    return [token for event in events for token in event["choices"][0]["token_ids"]]


def send(
    stack: Stack, source: Server, destination: Server, prompt: list[int], start: list[int], *, max_tokens: int
) -> tuple[list[int], str, str]:
    """Send the KV of a prompt and what followed it from one node to another, which goes on; tokens, path and transfer id."""
    transfer_id = new_transfer_id()
    (address,) = source.info()["control_addresses"]
    fields: dict[str, Any] = {"transfer_id": transfer_id, "start": (tuple(start),)}
    sent = body_of(prompt, 1, **stack.leg("prefill", **fields))
    received = body_of(prompt, max_tokens, **stack.leg("decode", address, start_sent=True, **fields))
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(ask, source, sent, f"sent-{transfer_id}")
        tokens, path = ask(destination, received, f"received-{transfer_id}")
        sending.result()
    return tokens, path, transfer_id
