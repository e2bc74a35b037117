"""The dashboard in front of real nodes, in a headless Chromium.

With DASHBOARD_PICTURES=docs/images these tests leave the pictures of the docs.
"""

import asyncio
import io
import os
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from tests.e2e.client import body_for
from tests.e2e.conftest import Trio
from tests.e2e.stack import FLOAT32, Server, Stack
from tests.support.browser import Browser, Tab
from tests.support.cluster import ADMIN_TOKEN
from tests.support.dashboard import press, show, until

pytestmark = pytest.mark.e2e

PROMPT_TOKENS = 1500  # six chunks on this prefill node
LAYERS_DRAWN = (
    "new Set([...document.querySelectorAll('#handover rect.compute')].map((bar) => bar.getAttribute('y'))).size"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    running = Browser(tmp_path_factory.mktemp("browser"))
    yield running
    running.stop()


def proxy_over(stack: Stack, trio: Trio, folder: Path, *more: Server) -> Server:
    """Start a proxy with an admin token over the nodes that all tests share, and more decode nodes."""
    token = folder / "admin"
    token.write_text(ADMIN_TOKEN)
    flags = ("--admin-token-file", str(token))
    return stack.proxy([trio.prefill], [trio.decode, *more], *flags, name="proxy-dashboard")


def prompt(trio: Trio, seed: int) -> list[int]:
    """A prompt that no cache knows, of tokens that the model knows."""
    tokens = sorted({token for each in trio.prompts for token in each})
    return random.Random(seed).choices(tokens, k=PROMPT_TOKENS)


async def stream(trio: Trio, url: str, seed: int, tokens: int = 60) -> str:
    """Read a stream of a fresh prompt to its end; return its request id."""
    body: dict[str, Any] = {
        **body_for(trio.model, prompt(trio, seed), max_tokens=tokens),
        "stream": True,
        "logprobs": None,
    }
    async with (
        httpx.AsyncClient(timeout=120) as http,
        http.stream("POST", f"{url}/v1/completions", json=body) as answer,
    ):
        assert answer.status_code == 200
        async for _ in answer.aiter_lines():
            pass
        return answer.headers["x-request-id"]


@asynccontextmanager
async def traffic(trio: Trio, url: str) -> AsyncIterator[None]:
    """Requests all the while; what a node that is killed does to them is another test's concern."""

    async def one_after_the_other(first: int) -> None:
        for seed in range(first, first + 10_000):
            with suppress(httpx.HTTPError, AssertionError):
                await stream(trio, url, seed)

    tasks = [asyncio.create_task(one_after_the_other(100_000 * (lane + 1))) for lane in range(2)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def picture(tab: Tab, name: str) -> None:
    """Keep a picture of the page, if `DASHBOARD_PICTURES` names a folder for them."""
    if folder := os.environ.get("DASHBOARD_PICTURES"):
        await asyncio.sleep(1.2)  # what moves has come to rest
        await asyncio.to_thread(keep, await tab.screenshot(), Path(folder) / f"dashboard-{name}.png")


def keep(taken: bytes, path: Path) -> None:
    """Write a picture with as few colours as it needs: a third of the bytes."""
    with Image.open(io.BytesIO(taken)) as image:
        image.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)


async def test_a_live_request_is_drawn_from_layer_to_layer(
    stack: Stack, trio: Trio, browser: Browser, tmp_path: Path
) -> None:
    """A real prompt in six chunks: every layer that P computed and pushed, and D's instants on the same axis."""
    server = proxy_over(stack, trio, tmp_path)
    async with browser.tab() as tab:
        await show(tab, server.url)
        await until(tab, "document.querySelectorAll('.node').length === 2")
        request_id = await stream(trio, server.url, seed=1)
        await until(tab, f"document.querySelector('#request-rows tr.chosen')?.dataset.id === {request_id!r}")
        await until(tab, "document.querySelector('#handover rect.step') !== null")
        layers = int(await tab.evaluate("document.querySelector('#handover svg').dataset.layers"))
        drawn = await tab.evaluate(LAYERS_DRAWN)
        pushes = await tab.evaluate("document.querySelectorAll('#handover rect.push').length")
        facts = await tab.evaluate("document.querySelector('#handover .facts').innerText")
        note = await tab.evaluate("document.querySelector('#handover .note').innerText")
        assert (tab.said, tab.exceptions, tab.failed) == ([], [], [])

    assert drawn == layers > 1
    assert pushes > 0
    assert "1500 tokens" in facts
    assert "aligned" in note


@pytest.mark.skipif(
    "DASHBOARD_PICTURES" not in os.environ,
    reason="it is for pictures; of fakes: test_dashboard_page.py, test_dashboard_operators.py",
)
async def test_a_killed_node_and_a_drained_one_are_seen(
    stack: Stack, trio: Trio, browser: Browser, tmp_path: Path
) -> None:
    """Under traffic: a node that is killed is down within moments, one that is drained through the page gets no more work."""
    second = stack.node("decode", *FLOAT32, name="decode-of-dashboard")
    server = proxy_over(stack, trio, tmp_path, second)
    card = f"document.querySelector('[data-url=\"{second.url}\"]')"
    async with browser.tab() as tab, traffic(trio, server.url):
        await show(tab, server.url, height=900)
        await until(tab, "document.querySelectorAll('#request-rows tr').length >= 6", timeout_s=90)
        await until(tab, "document.querySelector('#handover rect.step') !== null", timeout_s=60)
        await picture(tab, "light")
        await show(tab, server.url, height=900, scheme="dark")
        await until(tab, "document.querySelectorAll('#request-rows tr').length >= 6", timeout_s=90)
        await until(tab, "document.querySelector('#handover rect.step') !== null", timeout_s=60)
        await picture(tab, "dark")

        await drain(tab, card)
        requests = f"[...{card}.querySelectorAll('b')][0].innerText === '0'"
        await until(tab, requests, timeout_s=60)
        async with httpx.AsyncClient() as http:
            order = {"url": second.url, "draining": False}
            refused = await http.post(f"{server.url}/admin/nodes/drain", json=order)
        await show(tab, server.url)
        second.kill()
        await until(tab, f"{card}?.dataset.state === 'down'", timeout_s=60)
        await until(tab, "document.querySelector('#events').innerText.includes('down')")
        await picture(tab, "lost-node")
        assert (tab.said, tab.exceptions) == ([], [])

    assert refused.status_code == 401
    assert refused.json()["error"]["type"] == "authentication_error"


async def drain(tab: Tab, card: str) -> None:
    await tab.evaluate(f"{card}.querySelector('button').click()")
    await until(tab, "document.getElementById('node-dialog').open")
    await tab.evaluate("document.getElementById('node-drain').click()")
    await press(tab, "Enter")
    await until(tab, f"{card}.dataset.state === 'draining'", timeout_s=30)
    await press(tab, "Escape")
