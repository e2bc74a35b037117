"""What operators do on the dashboard's page, with keys, with the token and without it."""

import asyncio

import pytest

from tests.integration.proxy.dashboard_page import DRAWN, ask, looking, nodes_are_known
from tests.support.browser import Browser
from tests.support.cluster import ADMIN_TOKEN
from tests.support.dashboard import press, tell_transfers, until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("patient")]


async def test_a_node_is_drained_and_removed_with_the_keyboard_alone(browser: Browser) -> None:
    """Enter on its name, Tab to what shall be done, Enter twice; the node gets no more work, then is no member."""
    async with looking(browser) as (running, tab):
        url = running.decode[0].url
        await tab.evaluate(f"document.querySelector('[data-url=\"{url}\"] button').focus()")
        await press(tab, "Enter")
        await until(tab, "document.getElementById('node-dialog').open")
        await press(tab, "Tab")
        assert await tab.evaluate("document.activeElement.id") == "node-drain"
        await press(tab, "Enter")
        assert await tab.evaluate("document.activeElement.id") == "node-yes"
        await press(tab, "Enter")
        await until(tab, "document.getElementById('node-state').innerText.startsWith('draining')")
        seen = len(running.decode[0].seen)
        await ask(running, 3)
        drained = len(running.decode[0].seen) - seen
        await press(tab, "Tab")
        await press(tab, "Enter")
        await press(tab, "Enter")
        await until(tab, f"document.querySelector('[data-url=\"{url}\"]') === null")
        await press(tab, "Escape")
        await until(tab, "!document.getElementById('node-dialog').open")
        members = (await running.admin("GET", "/admin/nodes")).json()["nodes"]

    assert drained == 0
    assert url not in [node["url"] for node in members]


async def test_a_page_that_is_paused_asks_nothing_and_who_signs_out_leaves_nothing_behind(browser: Browser) -> None:
    """No request, no hand-over, no failure of either stays to be read, also on a page that is paused."""
    rows = "document.querySelectorAll('#request-rows tr').length"
    async with looking(browser) as (running, tab):
        await nodes_are_known(running)
        tell_transfers(running.decode[0], failures=[{"transfer_id": "ab" * 16, "state": "failed", "reason": "no way"}])
        await ask(running)
        await until(tab, f"{DRAWN} > 0")
        await until(tab, "document.getElementById('events').innerText.includes('no way')")
        await press(tab, "p", "KeyP")
        await until(tab, "document.getElementById('live').dataset.state === 'paused'")
        await asyncio.sleep(0.3)  # an answer that was on its way
        asked = len(tab.requested)
        await asyncio.sleep(2.5)
        after = len(tab.requested)
        await press(tab, "s", "KeyS")
        left = await tab.evaluate(f"[{rows}, {DRAWN}, document.getElementById('events').innerText.includes('no way')]")
        label = await tab.evaluate("document.getElementById('sign').innerText")
        await press(tab, "p", "KeyP")
        await until(tab, "document.getElementById('live').dataset.state === 'live'")

    assert after == asked
    assert left == [0, 0, False]
    assert "Sign in" in label


async def test_without_the_token_there_is_nothing_to_be_done(browser: Browser) -> None:
    """The page shows nodes and sums; drain asks for the token; a wrong one is refused, and the node goes on."""
    async with looking(browser, token="") as (running, tab):
        await ask(running)
        await until(tab, "document.getElementById('requests-empty').innerText.includes('operators')")
        assert await tab.evaluate("document.querySelectorAll('#request-rows tr').length") == 0
        await tab.evaluate("document.querySelector('#decode-nodes button').click()")
        await tab.evaluate("document.getElementById('node-drain').click()")
        await until(tab, "document.getElementById('sign-dialog').open")
        await tab.evaluate("document.getElementById('token').value = 'a wrong token of some length'")
        await press(tab, "Enter")
        await until(tab, "document.getElementById('sign-problem').innerText.includes('admin token is needed')")
        refused = len(tab.said)
        await tab.evaluate(f"document.getElementById('token').value = {ADMIN_TOKEN!r}")
        await tab.evaluate("document.getElementById('token').focus()")
        await press(tab, "Enter")
        await until(tab, "!document.getElementById('sign-dialog').open")
        await until(tab, "document.getElementById('sign').innerText.includes('out')")
        await ask(running)
        await until(tab, f"{DRAWN} > 0")
        states = [node["state"] for node in (await running.admin("GET", "/admin/nodes")).json()["nodes"]]
        assert (refused, all("401" in each for each in tab.said)) == (1, True)  # the browser's own line for it
        tab.said.clear()

    assert states == ["ready"] * 3


async def test_keys_choose_requests_and_can_be_turned_off(browser: Browser) -> None:
    """J and k go through the rows and take the focus along; who does not want single keys has none, nor motion."""
    chosen = "document.querySelector('#request-rows tr.chosen')?.dataset.id"
    async with looking(browser) as (running, tab):
        await tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "reduce"}])
        await ask(running, 1)
        await until(tab, "document.querySelectorAll('#request-rows tr').length === 1")
        await ask(running, 2)
        await until(tab, "document.querySelectorAll('#request-rows tr').length === 3")
        moving = await tab.evaluate("document.getAnimations().length")
        ids = await tab.evaluate("[...document.querySelectorAll('#request-rows tr')].map((row) => row.dataset.id)")
        await until(tab, f"{chosen} === {ids[0]!r}")
        await press(tab, "j", "KeyJ")
        await press(tab, "j", "KeyJ")
        await press(tab, "k", "KeyK")
        second, follows = await tab.evaluate(chosen), await tab.evaluate("document.getElementById('follow').checked")
        focused = await tab.evaluate("document.activeElement.getAttribute('aria-pressed')")
        await press(tab, "?", "Slash")
        await until(tab, "document.getElementById('help-dialog').open")
        await tab.evaluate("document.getElementById('keys-on').click()")
        await press(tab, "Escape")
        await until(tab, "!document.getElementById('help-dialog').open")
        await press(tab, "j", "KeyJ")
        unmoved = await tab.evaluate(chosen)
        await tab.evaluate("localStorage.clear()")

    assert (second, follows, focused) == (ids[1], False, "true")
    assert unmoved == ids[1]
    assert moving == 0
