"""How far it is from a request to the first byte that a prefill node gets, as `proxy/handler/request_handler.py` says."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from baton.proxy.http.upstream import PendingRequest, Upstream
from tests.support.cluster import COMPLETION, cluster

PROXY = Path(__file__).parents[3] / "proxy"


def calls_up_to(name: str, frame: FrameType | None) -> list[tuple[str, str]]:
    """The proxy's functions on the stack, up to one of them, the last call first: file and name."""
    found: list[tuple[str, str]] = []
    while frame is not None and (not found or found[-1][1] != name):
        path = Path(frame.f_code.co_filename).resolve()
        if path.is_relative_to(PROXY):
            found.append((path.name, frame.f_code.co_name))
        frame = frame.f_back
    return found


async def test_six_calls_in_four_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which the last one writes."""
    paths: list[list[tuple[str, str]]] = []
    send = Upstream.send

    def noted(upstream: Upstream, *arguments: Any) -> PendingRequest:
        paths.append([("upstream.py", "send"), *calls_up_to("__call__", sys._getframe(1))])
        return send(upstream, *arguments)

    monkeypatch.setattr(Upstream, "send", noted)
    async with cluster() as running:
        await running.http.post("/v1/completions", json=COMPLETION)

    assert [name for _, name in reversed(paths[0])] == ["__call__", "answer", "serve", "answer", "__aenter__", "send"]
    assert len({file for file, _ in paths[0]}) == 4
