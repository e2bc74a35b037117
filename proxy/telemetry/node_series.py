"""vLLM's own series (`vllm:…`) of all nodes, for the proxy's `/metrics`: each as its node has it, with the node's role and URL."""

import asyncio
import time
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Final

from baton.contracts.http import METRICS_PATH
from baton.proxy.errors import UpstreamError
from baton.proxy.http.upstream import Upstream
from baton.proxy.nodes.node import Node

TIMEOUT_S: Final = 2.0  # of each node; one that does not answer is left out
FRESH_S: Final = 1.0  # a scrape within so long of another one gets the same text
_PREFIX: Final = "vllm:"
Page = tuple[str, str, str]  # role and URL of a node, and what it answered to `/metrics`


class NodeSeries:
    """Asks the nodes when the proxy is asked."""

    def __init__(
        self, nodes: Callable[[], Iterable[Node]], upstream: Upstream, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._nodes = nodes
        self._upstream = upstream
        self._clock = clock
        self._asking = asyncio.Lock()
        self._text = b""
        self._read_s = -FRESH_S

    async def text(self) -> bytes:
        async with self._asking:
            if self._clock() - self._read_s >= FRESH_S:
                pages = await asyncio.gather(*map(self._page, self._nodes()))
                self._text = await asyncio.to_thread(merge, [page for page in pages if page is not None])
                self._read_s = self._clock()
            return self._text

    async def _page(self, node: Node) -> Page | None:
        try:
            async with self._upstream.get(node.url, METRICS_PATH, timeout_s=TIMEOUT_S) as answer:
                body = await answer.read_all()
        except UpstreamError:
            return None
        return (node.role, node.url, body.decode(errors="replace")) if answer.status == HTTPStatus.OK else None


def merge(pages: Iterable[Page]) -> bytes:
    """Put the `vllm:` series of several nodes into one text, each metric's samples together."""
    metrics: dict[str, tuple[list[str], list[str]]] = {}  # name → its HELP and TYPE lines, its samples
    for role, url, text in pages:
        added = f'role="{role}",url="{url}"'
        for name, heading, sample in _lines(text):
            headings, samples = metrics.setdefault(name, ([], []))
            if sample:
                samples.append(_labelled(sample, added))
            elif heading not in headings:
                headings.append(heading)
    return "".join(
        f"{line}\n" for headings, samples in metrics.values() if samples for line in (*headings, *samples)
    ).encode()


def _lines(text: str) -> Iterable[tuple[str, str, str]]:
    """Yield the metric that a line belongs to, and the line as a heading or as a sample."""
    name = ""
    for line in text.splitlines():
        if line.startswith("# "):
            name = line.split(" ", 3)[2] if line.count(" ") >= 2 else ""  # "# TYPE name"
            if name.startswith(_PREFIX):
                yield name, line, ""
        elif line.startswith(_PREFIX) and name.startswith(_PREFIX):
            yield name, "", line


def _labelled(sample: str, added: str) -> str:
    name, brace, rest = sample.partition("{")
    if brace and " " not in name:
        return f"{name}{{{added},{rest}"
    name, _, value = sample.partition(" ")
    return f"{name}{{{added}}} {value}"
