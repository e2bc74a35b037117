"""Releases of one protocol version understand each other: what was sent once is read the same today."""

from typing import get_args

import msgspec
import pytest

from baton.contracts.kv_transfer import PROTOCOL_VERSION, verify
from baton.contracts.node_info import NodeInfo
from baton.kv_connector.protocol.messages import Body, Message, decode
from tests.support.golden_wire.examples import BODIES, NODE, PARAMS, SECRET, Wire, file_of

RAISE = "raise PROTOCOL_VERSION and run `python -m tests.support.golden_wire`"


@pytest.fixture(scope="module")
def sent() -> Wire:
    """What the first release of this protocol version sent."""
    assert file_of(PROTOCOL_VERSION).exists(), "run `python -m tests.support.golden_wire`"
    return msgspec.json.decode(file_of(PROTOCOL_VERSION).read_bytes(), type=Wire)


@pytest.mark.parametrize("name", BODIES)
def test_a_message_means_what_it_meant(name: str, sent: Wire) -> None:
    """A field that is gone, has another name or has become necessary is another protocol."""
    assert decode(bytes.fromhex(sent.frames[name])) == Message(1, 2, 3, BODIES[name]), RAISE


def test_every_kind_of_message_is_among_them(sent: Wire) -> None:
    """A new kind that old peers do not know is another protocol too."""
    assert {type(body) for body in BODIES.values()} == set(get_args(Body))
    assert set(sent.frames) == set(BODIES), RAISE


@pytest.mark.parametrize("role", PARAMS)
def test_parameters_that_another_release_signed_are_accepted(role: str, sent: Wire) -> None:
    """Proxies and nodes are upgraded one by one."""
    assert verify(sent.params[role], SECRET) == PARAMS[role], RAISE


def test_a_node_of_another_release_is_understood_by_the_proxy(sent: Wire) -> None:
    assert msgspec.convert(sent.node, NodeInfo) == NODE, RAISE
    assert msgspec.convert(sent.node | {"of a later release": 1}, NodeInfo) == NODE
