"""The dashboard's page in a headless Chromium, in front of fake nodes: what it shows."""

import asyncio
from typing import Final

import msgspec
import pytest

from baton.contracts.http import TRANSFERS_PATH
from tests.integration.proxy.dashboard_page import DRAWN, ask, looking, nodes_are_known
from tests.support.accessible import axe_source, nameless, violations
from tests.support.browser import Browser, Scheme
from tests.support.cluster import COMPLETION, cluster
from tests.support.cluster import until as poll
from tests.support.dashboard import LAYERS, press, show, tell_transfers, until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("patient")]

SCREENS: Final[list[tuple[Scheme, int]]] = [("light", 1360), ("dark", 400), ("light", 820)]
MANY: Final = 300
EVIL: Final = "<b/class='evil'>x</b><img/src='x'/onerror='document.title=1'>"


async def test_the_page_is_sound_on_every_screen(browser: Browser) -> None:
    """Light and dark, wide and narrow: nothing scrolls sideways, nothing is asked of others, the console is silent.

    Everything has a name in the tree that screen readers get, with every dialog; and axe-core has no objection, where it is to be had.
    """
    axe = await asyncio.to_thread(axe_source)
    problems, papers = [], {}
    async with looking(browser) as (running, tab):
        await ask(running, 3)
        for scheme, width in SCREENS:
            await show(tab, running.url, scheme=scheme, width=width)
            await until(tab, f"{DRAWN} > 0")
            assert await tab.evaluate("document.documentElement.scrollWidth") <= width, f"{scheme}, {width} px"
            if scheme in papers:
                continue
            papers[scheme] = await tab.evaluate("getComputedStyle(document.body).backgroundColor")
            if len(papers) > 1 and not axe:
                continue  # a name does not depend on the colours
            for opens in ("", "sign-dialog", "help-dialog", "nodes-dialog", "node"):
                if opens == "node":
                    await tab.evaluate("document.querySelector('#decode-nodes button').click()")
                elif opens:
                    await tab.evaluate(f"document.getElementById({opens!r}).showModal()")
                found = [*await nameless(tab), *(await violations(tab, axe) if axe else [])]
                problems += [f"{scheme}, {opens or 'page'}: {each}" for each in found]
                await tab.evaluate("document.querySelectorAll('dialog').forEach((each) => each.close())")

    assert papers["light"] != papers["dark"]
    assert not problems, "\n".join(problems)


async def test_a_request_is_seen_while_it_computes_and_its_hand_over_is_drawn(browser: Browser) -> None:
    """Its row says where it is; a bar for each layer of each chunk, one for each push, and the same as words and as a table."""
    tag = "document.querySelector('#request-rows .tag')?.textContent"
    async with looking(browser) as (running, tab):
        running.prefill[0].may_answer.clear()
        task = asyncio.create_task(running.complete(stream=True, max_tokens=8))
        await until(tab, f"{tag} === 'prefill'")
        running.prefill[0].may_answer.set()
        await task
        await until(tab, f"{tag} === 'done'")
        await until(tab, f"{DRAWN} === {3 * LAYERS}")
        pushes = await tab.evaluate("document.querySelectorAll('#handover rect.push').length")
        words = await tab.evaluate("document.querySelector('#handover svg').getAttribute('aria-label')")
        rows = await tab.evaluate("[...document.querySelectorAll('#handover tbody tr')].map((row) => row.textContent)")
        row = await tab.evaluate("document.querySelector('#request-rows tr').innerText")

    assert pushes == 3 * LAYERS
    assert "28 layers, 84 pushes" in words
    assert any("first step with it" in each for each in rows)
    assert "P0 → D" in row


async def test_a_lost_node_and_a_lost_proxy_are_seen_and_told(browser: Browser) -> None:
    """A node's card, a line in the log that screen readers read, and the banner; and all of that when it is back.

    Without the proxy what was seen stays; the page tries again, less and less often.
    """
    async with looking(browser) as (running, tab):
        await running.decode[1].stop()
        card = f"document.querySelector('[data-url=\"{running.decode[1].url}\"]')"
        await until(tab, f"{card}.dataset.state === 'down'")
        await until(tab, "document.querySelector('#events').innerText.includes('down')")
        banner = await until(
            tab, "!document.getElementById('banner').hidden && document.getElementById('banner').innerText"
        )
        words = await tab.evaluate("document.getElementById('relay-words').textContent")
        await running.decode[1].start()
        await until(tab, f"{card}.dataset.state === 'ready'")
        await until(tab, "document.getElementById('banner').hidden")
        network = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        await tab.call("Network.emulateNetworkConditions", offline=True, **network)
        await until(tab, "document.getElementById('live').dataset.state === 'lost'")
        lost = await tab.evaluate("document.getElementById('banner').innerText")
        cards = await tab.evaluate("document.querySelectorAll('.node').length")
        await tab.call("Network.emulateNetworkConditions", offline=False, **network)
        await until(tab, "document.getElementById('live').dataset.state === 'live'")
        tab.said.clear()  # the browser's own lines

    assert "1 of 3 nodes" in banner
    assert "Decode nodes: 1 ready, 1 down." in words
    assert "cannot be reached; trying again" in lost
    assert cards == 3


async def test_names_and_reasons_stay_letters(browser: Browser) -> None:
    """Whatever a client calls its request, or a node its model and its failures: no element comes of it."""
    elements = "document.querySelectorAll('main :is(img, script, b.evil), dialog :is(img, script, b.evil)').length"
    async with looking(browser) as (running, tab):
        await nodes_are_known(running)
        for node in (*running.prefill, *running.decode):
            node.info = msgspec.structs.replace(node.info, served_models=[*node.info.served_models, EVIL])
            tell_transfers(node, failures=[{"transfer_id": EVIL, "state": EVIL, "reason": EVIL}])
        await running.http.post("/v1/completions", json=COMPLETION, headers={"x-request-id": EVIL})
        await until(tab, f"document.getElementById('serves').innerText.includes({EVIL.rpartition('/')[2]!r})")
        await until(tab, f"document.getElementById('request-rows').innerText.includes({EVIL[:8]!r})")
        await until(tab, f"document.getElementById('events').innerText.includes({EVIL!r})")
        await tab.evaluate("document.querySelector('#decode-nodes button').click()")
        await until(tab, "document.getElementById('node-dialog').open")
        found = await tab.evaluate(elements)

    assert found == 0


async def test_quarantine_ends_when_its_node_says_so(browser: Browser) -> None:
    """And not when the node does not answer, or the page may not see it any more."""
    events = "document.getElementById('events').innerText"
    shown = "document.getElementById('decode-nodes').innerText.includes('in quarantine')"
    async with looking(browser) as (running, tab):
        tell_transfers(running.decode[0], quarantined=5)
        await until(tab, f"{shown} && {events}.includes('holds 5 blocks')")
        del running.decode[0].passed["GET", TRANSFERS_PATH]
        await until(tab, f"!{shown}")
        silent = await tab.evaluate(events)
        tell_transfers(running.decode[0])
        await until(tab, f"{events}.includes('has all blocks back')")

    assert "has all blocks back" not in silent


async def test_hundreds_of_nodes_do_not_drown_the_page(browser: Browser) -> None:
    """The few that matter have cards, all have a square, and the table finds any of them; the rest of the page is there."""
    urls = tuple(f"http://127.0.0.1:{port}" for port in range(1, MANY + 1))  # no node listens there
    async with (
        cluster(decode=2, ready=False, probe_interval_s=5.0, also={"prefill": urls}) as running,
        browser.tab() as tab,
    ):
        known = {"ready", "down"}
        await poll(running.nodes, lambda nodes: {node["state"] for node in nodes} <= known, timeout_s=60.0)
        await show(tab, running.url)
        await until(tab, f"document.querySelectorAll('#prefill-rest .squares i').length === {MANY + 1}")
        cards = await tab.evaluate("document.querySelectorAll('#prefill-nodes li').length")
        await ask(running)
        await press(tab, "n", "KeyN")
        await until(tab, "document.getElementById('nodes-dialog').open")
        counted = await tab.evaluate("document.getElementById('nodes-count').innerText")
        await tab.call("Input.insertText", text=":117 down")
        await until(tab, "document.querySelectorAll('#nodes-rows tr').length === 1")
        found = await tab.evaluate("document.querySelector('#nodes-rows tr').innerText")
        wide = await tab.evaluate("document.documentElement.scrollWidth")
        assert (tab.said, tab.exceptions) == ([], [])

    assert cards <= 8
    assert wide <= 1360
    assert counted == f"{MANY + 3} nodes; the first 200 are listed"
    assert "127.0.0.1:117" in found


async def test_figures_say_what_counters_said(browser: Browser) -> None:
    """Quantiles inside of buckets, growth within half a minute, a counter that was reset; as the page's own module does.

    Of events that were told the oldest are forgotten, and none of the others is told again.
    """
    figures = """import('/dashboard/figures.js').then(({ quantile, cumulative, Window, timeText, bytes }) => {
        const window_ = new Window();
        for (let at = 0; at <= 100; at += 1) window_.add({ at, n: 2 * at, reset: at < 100 ? at : 3 });
        return [
            quantile([1, 2], [0, 4, 0], 0.5), quantile([1, 2], [0, 0, 3], 0.5), quantile([1], [0, 0], 0.5),
            cumulative({ '0.5': 3, '0.1': 1, '+Inf': 4, sum: 2 }), window_.perSecond((each) => each.n),
            window_.perSecond((each) => each.reset), window_.samples.length, timeText(0.0012), timeText(0.9999), bytes(88e6),
        ];
    })"""
    events = """import('/dashboard/events.js').then(({ Events }) => {
        const events = new Events();
        for (let at = 0; at < 2002; at += 1) events.isNew(String(at));
        return [events.isNew('2000'), events.isNew('2001'), events.seen.size <= 2000];
    })"""
    async with looking(browser) as (_, tab):
        found, told = await tab.evaluate(figures), await tab.evaluate(events)

    assert found == [
        *(1.5, 2, None, {"bounds": [0.1, 0.5], "counts": [1, 2, 1], "sum": 2}),
        *(2, 0, 32, "1.2 ms", "1.00 s", "88 MB"),
    ]
    assert told == [False, False, True]
