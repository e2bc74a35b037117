"""The dashboard's page in front of fake nodes, in a browser."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from baton.contracts.http import TRANSFERS_PATH
from tests.support.browser import Browser, Tab
from tests.support.cluster import ADMIN_TOKEN, Cluster, cluster, until_true
from tests.support.dashboard import show, tell_transfers

DRAWN: Final = "document.querySelectorAll('#handover rect.compute').length"


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
