"""The members: whatever the sources name, probed all the time, judged by how requests end on them.

Membership changes at run time. A node that leaves gets no more work; the requests that it carries go on, and until the
last of them has ended it is probed and keeps its slot. Longer than other files: it is one class, whose state all
changes of membership share.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from typing import Any, Final, Protocol

from baton.contracts.configuration.schema import ProxyConfig
from baton.contracts.kv_transfer import Role
from baton.contracts.secret import ClusterSecret
from baton.proxy.errors import FailureKind
from baton.proxy.http.address import is_base_url
from baton.proxy.http.upstream import Upstream
from baton.proxy.nodes.circuit_breaker import Breaker, BreakerState
from baton.proxy.nodes.discovery import ListSource, Roster, Source, SourceError
from baton.proxy.nodes.dns import SCHEME, DnsSource
from baton.proxy.nodes.health_probe import HealthProbe, Prober
from baton.proxy.nodes.moves import Moves
from baton.proxy.nodes.node import Node, Revision, State
from baton.proxy.nodes.overrides import AdminOverrides
from baton.proxy.nodes.views import LeavingView

logger = logging.getLogger(__name__)

ROLES: Final[tuple[Role, ...]] = ("prefill", "decode")
LONGEST_EVACUATION_S: Final = 86_400.0  # an order is remembered for so long
MOST_FORMER: Final = 256  # nodes that have left and are remembered
# What says that the node itself is gone, as against one request that it did not like.
_GONE: Final = frozenset((FailureKind.CONNECT, FailureKind.DISCONNECT))
_NOTHING_NEW: Final = frozenset((FailureKind.OWN, FailureKind.STALLED, FailureKind.DRAINED, FailureKind.UNFETCHED))
_NO_FAULT: Final = frozenset((FailureKind.REFUSED, FailureKind.BUSY))  # the client's error, or too much to do for now


class Listener(Protocol):
    """Follows who is a member no more. Called at once, so it must not wait or raise."""

    def left(self, node: Node) -> None:
        """A node is no member any more; requests that it carries go on."""
        ...

    def restarted(self, node: Node) -> None:
        """There is another process behind its address, which knows nothing of what the former one had."""
        ...


class NodeRegistry:
    """All nodes. `prefill` and `decode` are lists that change in place, so a holder of one sees every change."""

    def __init__(self, config: ProxyConfig, secret: ClusterSecret, upstream: Upstream) -> None:
        self.prefill: list[Node] = []
        self.decode: list[Node] = []
        self._admin: dict[Role, ListSource] = {role: ListSource("admin") for role in ROLES}
        self._config = config
        self._needs_prefill = config.when_no_prefill == "refuse"
        self._prober = Prober(config, secret, upstream)
        self._sources: dict[Role, list[Source]] = {
            role: [*configured_sources(urls, config.dns_interval_s), self._admin[role]]
            for role, urls in zip(ROLES, (config.prefill, config.decode), strict=True)
        }
        self._rosters: dict[Role, Roster] = {role: Roster() for role in ROLES}
        self.revision = Revision()
        self._watches: dict[Node, HealthProbe] = {}
        self._stopping: dict[HealthProbe, asyncio.Task[None]] = {}  # of nodes that have left
        self._leavers: list[Node] = []  # no members, but they may still carry requests
        self._listeners: list[Listener] = []
        self._used_slots: set[int] = set()
        self._former: dict[tuple[Role, str], Node] = {}  # that have left, by role and URL; they may return
        self._roles_changed_at: float | None = (
            None  # an operator or a controller has changed a node's role (time.monotonic)
        )
        self._drained: dict[Role, set[str]] = {role: set() for role in ROLES}
        self._evacuated: dict[str, float] = {}  # decode node, member or not → when (time.monotonic)
        self._by_order = False
        # Told of removals and drains that have come to their end: their node has left, or no source names it any more.
        self.on_forgotten: Callable[[AdminOverrides], None] = lambda _: None

    def all(self) -> list[Node]:
        return [*self.prefill, *self.decode]

    def of(self, role: Role) -> list[Node]:
        return self.prefill if role == "prefill" else self.decode

    def find(self, url: str) -> list[Node]:
        """Return the members with this base URL; two if both roles are configured with it."""
        return [node for node in self.all() if node.url == url]

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    async def start(self) -> None:
        """Ask the sources and begin probing; returns without waiting for an answer."""
        for role, sources in self._sources.items():
            for source in sources:
                await source.start(partial(self._take, role, source.name))

    async def probed(self, timeout_s: float) -> None:
        """Wait until every member has been probed once, or the time is up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while any(node.probed is State.UNKNOWN for node in self.all()):  # noqa: ASYNC110  # at a start only
                    await asyncio.sleep(0.01)

    async def stop(self) -> None:
        for sources in self._sources.values():
            for source in sources:
                await source.stop()
        stopping, self._stopping = self._stopping, {}
        for task in stopping.values():
            task.cancel()
        await asyncio.gather(*stopping.values(), return_exceptions=True)
        for watch in (*self._watches.values(), *stopping):
            await watch.stop()

    # --- outcomes of requests ---

    def report(self, node: Node, kind: FailureKind) -> None:
        """Learn that a leg failed on a node, and probe it now.

        One that seems gone is used no more until a probe succeeds, one that did not answer only where no other does.
        """
        if kind in _NOTHING_NEW:
            return
        if kind in _NO_FAULT:
            self.succeeded(node)  # it has judged the request
            return
        if kind in _GONE and node.probed is State.READY:
            node.lose(State.DOWN, f"a request failed on it: {kind}")
            logger.warning("node lost", extra={"url": node.url, "role": node.role, "kind": str(kind)})
        elif kind is FailureKind.TIMEOUT and node.probed is State.READY:
            node.lose(State.SILENT, "a request on it had no answer in time")
            logger.warning("node silent", extra={"url": node.url, "role": node.role})
        if node.probed is not State.DRAINING:
            node.breaker.failed(str(kind), may_open=self._is_dispensable(node))
        if node in self._watches:
            self._watches[node].wake()

    def succeeded(self, node: Node) -> None:
        node.breaker.succeeded()

    def probe_now(self) -> None:
        """Probe every node at once, since it may have changed."""
        for watch in self._watches.values():
            watch.wake()

    async def refresh(self) -> None:
        """Probe every node and wait for the answers; the probing that goes on by itself is not held up."""
        await asyncio.gather(*(self._prober.probe(node) for node in self.all()))

    # --- operators ---

    def add(self, role: Role, url: str) -> Node:
        """Make a node a member; one that is already is taken back into use if it was drained."""
        with self._order():
            self._rosters[role].restore(url)
            self._reconcile(role)
            if not any(node.url == url for node in self.of(role)):
                self._admin[role].replace((*self._admin[role].urls, url))
        node = next(node for node in self.of(role) if node.url == url)
        self.drain(node, draining=False)
        return node

    def remove(self, node: Node) -> None:
        """Make a node leave, and keep it out for as long as a source goes on naming it."""
        with self._order():
            admin = self._admin[node.role]
            admin.replace(url for url in admin.urls if url != node.url)
            self._rosters[node.role].remove(node.url)
            self._reconcile(node.role)

    def drain(self, node: Node, *, draining: bool = True) -> None:
        """Give a node no more work, or some again. Its streams leave after `drain_handover_s`; it is told nothing."""
        (self._drained[node.role].add if draining else self._drained[node.role].discard)(node.url)
        if node.draining is not draining:
            node.draining, node.moves = draining, Moves()
            self.revision.number += 1
            logger.info(
                "node drains" if draining else "node drains no more", extra={"url": node.url, "role": node.role}
            )

    def evacuate(self, node: Node) -> None:
        """Have the streams that a decode node has now go on on others. It gets work as before."""
        now = node.evacuated_at = time.monotonic()
        node.moves = Moves()
        kept = {url: at for url, at in self._evacuated.items() if at > now - LONGEST_EVACUATION_S}
        self._evacuated = {**kept, node.url: now}
        logger.info("node is evacuated", extra={"url": node.url})

    def change_role(self, node: Node, role: Role, *, ago_s: float = 0.0) -> None:
        """Have a node that sends and receives serve in the other role. Its streams go on elsewhere, what else it carries to its end.

        `ago_s`: when another proxy was given the order that this one repeats.
        """
        if node.role == "decode":
            self.evacuate(node)
        self.remove(node)
        self.add(role, node.url)
        at = time.monotonic() - ago_s
        self._roles_changed_at = at if self._roles_changed_at is None else max(self._roles_changed_at, at)
        logger.info("node changes its role", extra={"url": node.url, "role": role})

    @property
    def roles_unchanged_s(self) -> float | None:
        """How long ago a node was ordered to change its role; None: never."""
        return None if self._roles_changed_at is None else time.monotonic() - self._roles_changed_at

    def orders(self, version: int = 0) -> AdminOverrides:
        """Return what operators have ordered and still holds."""
        return AdminOverrides(
            version=version,
            added={role: self._admin[role].urls for role in ROLES},
            removed={role: tuple(self._rosters[role].removed) for role in ROLES},
            drained={role: tuple(sorted(self._drained[role])) for role in ROLES},
            evacuated=self._evacuated,
            roles_changed_at=self._roles_changed_at,
        )

    def adopt(self, orders: AdminOverrides) -> None:
        """Do what operators have told another worker."""
        self._evacuated = dict(orders.evacuated)
        self._roles_changed_at = orders.roles_changed_at
        for node in self.decode:  # those, too, that leave now
            if (at := self._evacuated.get(node.url, 0.0)) != node.evacuated_at:
                node.evacuated_at, node.moves = at, Moves()
        with self._order():
            for role in ROLES:
                self._admin[role].replace(orders.added.get(role, ()))
                self._rosters[role].keep_out(orders.removed.get(role, ()))
                self._reconcile(role)
                self._drained[role] = set(orders.drained.get(role, ()))
                for node in self.of(role):
                    self.drain(node, draining=node.url in self._drained[role])

    def state(self) -> dict[str, Any]:
        """Return the sources, and what operators have changed, for `/admin/state`."""
        return {
            "sources": [
                {"role": role, **source.describe()} for role, sources in self._sources.items() for source in sources
            ],
            "roles_unchanged_s": self.roles_unchanged_s,
            "removed": [{"role": role, "url": url} for role in ROLES for url in self._rosters[role].removed],
        }

    def leaving(self) -> list[LeavingView]:
        """Return the former members that still carry requests."""
        return [
            LeavingView(role=node.role, url=node.url, slot=node.slot, requests=node.requests)
            for node in self._busy_leavers()
        ]

    # --- membership ---

    def _take(self, role: Role, source: str, urls: tuple[str, ...]) -> None:
        before = self.orders()
        self._rosters[role].name(source, urls)
        self._reconcile(role)
        if not self._by_order and not before.same_as(after := self.orders()):
            self.on_forgotten(before.lost_in(after))

    @contextmanager
    def _order(self) -> Iterator[None]:
        """What changes in the block was ordered, and is not forgotten."""
        self._by_order, before = True, self._by_order
        try:
            yield
        finally:
            self._by_order = before

    def _reconcile(self, role: Role) -> None:
        """Let nodes join and leave until the members are those on the roster."""
        wanted = self._rosters[role].wanted()
        for node in [node for node in self.of(role) if node.url not in wanted]:
            self._leave(node)
        present = {node.url for node in self.of(role)}
        for url in wanted:
            if url not in present:
                self._join(role, url)

    def _join(self, role: Role, url: str) -> None:
        node = Node(url=url, role=role, slot=self._free_slot(), probed=State.UNKNOWN, revision=self.revision)
        node.draining = url in self._drained[role]
        node.target_inter_token_s = self._config.target_inter_token_s
        if (former := self._former.pop((role, url), None)) is not None:
            node.recall(former)
        node.takes_either_role = url in self._admin[role].urls
        node.evacuated_at = self._evacuated.get(url, 0.0) if role == "decode" else 0.0
        node.breaker = Breaker(self._config, on_change=partial(_note_breaker, node))
        self.of(role).append(node)
        self.revision.number += 1
        watch = self._watches[node] = HealthProbe(node, self._prober, self._restarted)
        watch.start()
        logger.info("node joined", extra={"url": url, "role": role, "slot": node.slot})
        if node.slot in self._used_slots:  # its last requests may have been noted after that node had left
            for listener in self._listeners:
                listener.restarted(node)
        self._used_slots.add(node.slot)

    def _leave(self, node: Node) -> None:
        self.of(node.role).remove(node)
        self.revision.number += 1
        self._drained[node.role].discard(node.url)
        self._former = dict([*self._former.items(), ((node.role, node.url), node)][-MOST_FORMER:])
        self._leavers = [*self._busy_leavers(), node]
        watch = self._watches.pop(node)
        task = self._stopping[watch] = asyncio.create_task(watch.stop_when_idle())
        task.add_done_callback(lambda _: self._stopping.pop(watch, None))
        logger.info("node left", extra={"url": node.url, "role": node.role, "requests": node.requests})
        for listener in self._listeners:
            listener.left(node)

    def _restarted(self, node: Node) -> None:
        if node not in self._watches:
            return  # it has left
        node.breaker.reset()
        for listener in self._listeners:
            listener.restarted(node)

    def _free_slot(self) -> int:
        taken = {node.slot for node in (*self.all(), *self._busy_leavers())}
        return next(slot for slot in count() if slot not in taken)

    def _busy_leavers(self) -> list[Node]:
        return [node for node in self._leavers if node.requests]

    def _is_dispensable(self, node: Node) -> bool:
        """Whether requests can be served as configured without it.

        Attempts on a bad node are better than refusals, so the last node that everybody needs stays in use.
        """
        if node.role == "prefill" and not self._needs_prefill:
            return True
        models = set(node.info.served_models if node.info else ())
        others = (other for other in self.of(node.role) if other is not node and other.state is State.READY)
        return any(other.info and not models.isdisjoint(other.info.served_models) for other in others)


def configured_sources(urls: Sequence[str], dns_interval_s: float) -> Iterator[Source]:
    """Return the sources that a role's configured list stands for. Raises `SourceError`: an entry makes no sense."""
    names = [url for url in urls if url.startswith(f"{SCHEME}:")]
    for url in urls:
        if url not in names and not is_base_url(url, may_have_path=True):
            raise SourceError(f"{url!r} is not the URL of a node, such as http://10.0.0.1:8100")
    yield ListSource("configuration", (url for url in urls if url not in names))
    for name in dict.fromkeys(names):
        yield DnsSource(name, interval_s=dns_interval_s)


def _note_breaker(node: Node, state: BreakerState, reason: str) -> None:
    node.revision.number += 1
    fields = {"url": node.url, "role": node.role, "breaker": str(state), "reason": reason}
    logger.log(logging.WARNING if state is BreakerState.OPEN else logging.INFO, "breaker changed state", extra=fields)
