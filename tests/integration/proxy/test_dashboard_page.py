"""The dashboard's page in a headless Chromium, in front of fake nodes: what it shows, to whom, and by which means."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec
import pytest

from baton.contracts.http import TRANSFERS_PATH
from baton.proxy.dashboard import asking, recorder
from tests.support.accessible import axe_source, nameless, violations
from tests.support.browser import Browser, Scheme, Tab
from tests.support.cluster import ADMIN_TOKEN, COMPLETION, Cluster, cluster, until_true
from tests.support.cluster import until as poll
from tests.support.dashboard import LAYERS, press, show, tell_transfers, until

pytestmark = pytest.mark.slow

SCREENS: Final[list[tuple[Scheme, int]]] = [("light", 1360), ("dark", 400), ("light", 820)]
DRAWN: Final = "document.querySelectorAll('#handover rect.compute').length"
MANY: Final = 300
EVIL: Final = "<b/class='evil'>x</b><img/src='x'/onerror='document.title=1'>"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is forgotten while a page is loaded, and nodes that are slow to answer are waited for."""
    monkeypatch.setattr(recorder, "LOOK_S", 180.0)
    monkeypatch.setattr(asking, "TIMEOUT_S", 20.0)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    running = Browser(tmp_path_factory.mktemp("browser"))
    yield running
    running.stop()


@asynccontextmanager
async def looking(browser: Browser, *, decode: int = 2, token: str = ADMIN_TOKEN) -> AsyncIterator[tuple[Cluster, Tab]]:
    """A page in front of nodes that tell of their transfers; it must have nothing to complain of in the end."""
    async with cluster(decode=decode, probe_interval_s=0.2) as running, browser.tab() as tab:
        for node in (*running.prefill, *running.decode):
            tell_transfers(node)
        await show(tab, running.url, token=token)
        yield running, tab
        assert (tab.said, tab.exceptions) == ([], [])
        assert all(url.startswith(running.url) for url in tab.requested if not url.startswith("about:"))


async def ask(running: Cluster, count: int = 1) -> None:
    """Have a stream read to its end."""
    for _ in range(count):
        assert (await running.complete(stream=True, max_tokens=8)).status_code == 200


async def nodes_are_known(running: Cluster) -> None:
    """Wait until each node has been asked twice: a failure that it tells from then on is dated, and shown."""

    def are_known() -> bool:
        nodes = (*running.prefill, *running.decode)
        return all(sum(path == TRANSFERS_PATH for _, path, *_ in node.was_passed) >= 2 for node in nodes)

    await until_true(are_known, timeout_s=20.0)


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
