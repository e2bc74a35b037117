"""An operator who has streams evacuated and roles changed at random instants; for nodes with `transfer.both_ways`.

Each role keeps a node that is ready. What the proxy counts of moved streams and returned answers is read all the time, since it ends with the proxy.
"""

import asyncio
import random
import time
from collections import Counter
from contextlib import suppress
from typing import Any, Final

import aiohttp

from tests.chaos.cluster import ADMIN, Cluster

EVERY_S: Final = (0.1, 1.0)  # from one order to the next
ROLE_SHARE: Final = 0.4  # of the orders; the others evacuate
TIMEOUT_S: Final = 2.0  # of an order: the proxy may be stopped
RESTORED_WITHIN_S: Final = 30.0
_COUNTED: Final = {"baton_streams_moved_total": "streams", "baton_answers_returned_total": "answers"}
_OTHER: Final = {"prefill": "decode", "decode": "prefill"}


class Orders:
    """Orders to a cluster's proxy; none if its nodes cannot do what is ordered."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self._cluster = cluster
        self._rng = random.Random(f"{seed}/orders")
        self._own = {
            server.url: role
            for role, nodes in (("prefill", cluster.prefill), ("decode", cluster.decode))
            for server in nodes
        }
        self._task: asyncio.Task[None] | None = None
        self._seen: Counter[str] = Counter()  # by this proxy's present process

    def start(self) -> None:
        if self._cluster.shape.transfer.both_ways:
            self._task = asyncio.create_task(self._order_on())

    async def stop(self) -> None:
        """Order nothing more; roles stay as they are."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def restore(self) -> list[str]:
        """Give every node the role in which it was started; return what did not come about."""
        if not self._cluster.shape.transfer.both_ways:
            return []
        deadline, nodes = time.monotonic() + RESTORED_WITHIN_S, None
        async with self._session() as http:
            while time.monotonic() < deadline:
                await self._count(http)
                nodes = await self._nodes(http)
                wrong = [node for node in nodes or () if node["role"] != self._own[node["url"]]]
                if nodes and not wrong:
                    return []
                for node in wrong:  # the only one of a role is refused, until another has joined it
                    await self._tell(http, "role", node, role=self._own[node["url"]])
                await asyncio.sleep(0.1)
        return [f"roles were not restored: {nodes}"]

    async def _order_on(self) -> None:
        async with self._session() as http:
            while True:
                await asyncio.sleep(self._rng.uniform(*EVERY_S))
                await self._count(http)
                nodes = await self._nodes(http) or []
                ready = Counter(node["role"] for node in nodes if node["state"] == "ready")
                if self._rng.random() < ROLE_SHARE:
                    others = [node for node in nodes if node["state"] == "ready" and ready[node["role"]] > 1]
                    if others:
                        node = self._rng.choice(others)
                        await self._tell(http, "role", node, role=_OTHER[node["role"]])
                elif decode := [node for node in nodes if node["role"] == "decode"]:
                    await self._tell(http, "evacuate", self._rng.choice(decode))

    def _session(self) -> aiohttp.ClientSession:
        headers = {"authorization": f"Bearer {ADMIN}"}
        return aiohttp.ClientSession(
            self._cluster.proxy.url, headers=headers, timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)
        )

    async def _nodes(self, http: aiohttp.ClientSession) -> list[dict[str, Any]] | None:
        with suppress(aiohttp.ClientError, TimeoutError):
            async with http.get("/admin/nodes") as answer:
                return list((await answer.json())["nodes"])
        return None

    async def _tell(self, http: aiohttp.ClientSession, what: str, node: dict[str, Any], **more: str) -> None:
        with suppress(aiohttp.ClientError, TimeoutError):
            async with http.post(f"/admin/nodes/{what}", json={"url": node["url"], **more}) as answer:
                self.counts[f"{what} ordered" if answer.status == 200 else f"{what} refused ({answer.status})"] += 1

    async def _count(self, http: aiohttp.ClientSession) -> None:
        with suppress(aiohttp.ClientError, TimeoutError):
            async with http.get("/metrics") as answer:
                found = _moves_and_returns(await answer.text())
            is_new = any(found[name] < count for name, count in self._seen.items())
            self.counts += found if is_new else found - self._seen
            self._seen = found


def _moves_and_returns(text: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for line in text.splitlines():
        sample, _, value = line.rpartition(" ")
        name, _, labels = sample.partition("{")
        if name in _COUNTED:
            result = labels.split('"')[1]
            found[f"{_COUNTED[name]} {result}"] += int(float(value))
    return found
