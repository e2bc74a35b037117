"""Conversations whose answers' KV goes back to the prefill node: each turn computes there what is new, and says what one server says."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import httpx
import pytest

from tests.e2e.both_ways import BLOCK_TOKENS, Nodes, ask, ask_stream, body_of, prompt_of
from tests.e2e.stack import ANSWER_TIMEOUT_S, Server

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

NEW_TOKENS, ANSWER_TOKENS = 40, 50  # of each turn but the first, whose prompt is longer
AT_ONCE = 4
SIZES = [pytest.param(2, 3, id="few"), pytest.param(40, 12, id="many", marks=pytest.mark.exhaustive)]


@pytest.fixture
def proxy(nodes: Nodes, tmp_path: Path) -> Server:
    return nodes.proxy(tmp_path, BATON_PROXY_RETURN_ANSWERS="on")


def returned(proxy: Server) -> dict[str, float]:
    """Answers, by what became of their return."""
    text = httpx.get(proxy.url + "/metrics", timeout=ANSWER_TIMEOUT_S).text
    lines = (line.split() for line in text.splitlines() if line.startswith("baton_answers_returned_total{"))
    return {name.split('"')[1]: float(count) for name, count in lines}


@pytest.mark.parametrize(("conversations", "turns"), SIZES)
def test_each_turn_computes_what_is_new(nodes: Nodes, proxy: Server, conversations: int, turns: int) -> None:
    """Interleaved conversations, of streams, since a whole answer that takes less than half a second does not return. The prefill node computes at most a turn's new tokens, and a block of the answer before."""
    before = sum(returned(proxy).values())
    prompts = [prompt_of(30 + number) for number in range(conversations)]
    computed: list[list[int]] = [[] for _ in prompts]
    is_returned = True
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for turn in range(turns):
            names = [f"returned-{conversations:02}-{turn:02}-{number:02}" for number in range(conversations)]
            bodies = [body_of(prompt, ANSWER_TOKENS, model=nodes.stack.model) for prompt in prompts]
            got = list(pool.map(lambda body, name: ask_stream(proxy, body, name), bodies, names))
            wanted = list(pool.map(lambda body: ask(nodes.plain, body), bodies))
            assert got == [tokens for tokens, _ in wanted]
            is_returned &= wait_until_returned(proxy, before + (turn + 1) * conversations)
            for number, tokens in enumerate(got):
                computed[number].append(nodes.computed(nodes.prefill, names[number]))
                prompts[number] = [*prompts[number], *tokens, 900 + turn, *prompt_of(0)[2 : NEW_TOKENS + 1]]

    later = [count for each in computed for count in each[1:]]
    print(f"computed by the prefill node in later turns: median {median(later)}, most {max(later)} tokens")
    at_most = (
        NEW_TOKENS + BLOCK_TOKENS + 3
    )  # two that are left out at an answer's end, and one that shows that the KV has come
    assert max(later) <= at_most if is_returned else median(later) <= at_most


def wait_until_returned(proxy: Server, count: float) -> bool:
    """Wait until so many answers have returned or could not: on a loaded machine a return may take too long. Say whether all have."""
    deadline_s = time.monotonic() + ANSWER_TIMEOUT_S
    while sum((seen := returned(proxy)).values()) < count:
        assert time.monotonic() < deadline_s, seen
        time.sleep(0.05)
    print(seen)
    return set(seen) <= {"returned"}
