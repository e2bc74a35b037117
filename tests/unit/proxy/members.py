"""Nodes and requests for the tests of pure decisions."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import msgspec

from baton.contracts.node_info import NodeInfo
from baton.proxy.nodes.node import Node
from baton.proxy.request.endpoints import COMPLETIONS
from baton.proxy.request.parse import ClientRequest, parse
from tests.support.described import fingerprint, node_info

MODEL = "m"
BFLOAT16 = fingerprint(dtype="bfloat16")


def info(role: Literal["prefill", "decode"], **changes: Any) -> NodeInfo:
    addresses = ["tcp://p:1"] if role == "prefill" else []
    return node_info(role, **{"control_addresses": addresses, "served_models": [MODEL], **changes})


def node(role: Literal["prefill", "decode"], url: str = "http://n", slot: int = 0, **changes: Any) -> Node:
    made = Node(url=url, role=role, slot=slot)
    made.describe(info(role, **changes))
    return made


@contextmanager
def computing(made: Node, prompt_bytes: int) -> Iterator[None]:
    """A decode node computes such a prompt itself during the block."""
    end = made.begin_computing(prompt_bytes)
    try:
        yield
    finally:
        end()


def request(body: dict[str, Any] | None = None) -> ClientRequest:
    return parse(COMPLETIONS, "id", [], msgspec.json.encode({"model": MODEL, "prompt": "x", **(body or {})}))
