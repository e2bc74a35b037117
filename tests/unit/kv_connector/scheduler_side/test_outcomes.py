"""What a decode node's scheduler side says of requests that it receives nothing for, and the sockets that it has."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from baton.contracts.kv_transfer import Grid, Grids
from baton.kv_connector.control.wake import wake_path
from baton.kv_connector.handoff.metadata import DecodeReport
from tests.unit.kv_connector.scheduler_fakes import MakeDecode, config, request


@pytest.fixture
def node(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket on which a node hears of outcomes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(config(tmp_path).outcomes_path))
        listening.listen()
        listening.settimeout(30)
        yield listening


def test_the_node_is_told_which_transfers_are_computed_here_until_the_side_is_closed(
    make_decode: MakeDecode, node: socket.socket
) -> None:
    """By the name in the request's parameters: one that cannot be received, one of a batch that has failed, one without a transfer."""
    side, told = make_decode(), []
    side.add_request(unfit := request("decode", 40, grids=Grids(decode=Grid(tp=2)), kv_only=True))
    assert unfit.__dict__["baton_kv_is_lost"] is True  # it ends
    side.add_request(request("decode", 40, request_id="r2", transfer_id="b" * 32, several=True))
    side.update(DecodeReport(failed={"r2": "a push failed"}), set())
    side.add_request(request("decode", 40, request_id="r3", transfer_id="c" * 32, peer=""))
    heard, _ = node.accept()
    with heard:
        heard.settimeout(5)
        for _ in range(3):
            said: dict[str, Any] = json.loads(heard.recv(4096))
            told.append((said["transfer_id"], said["outcome"], said["reason"]))
        side.close()
        assert heard.recv(4096) == b""

    assert told == [
        ("a" * 32, "recomputed", "the proxy takes this node for tp=2 pp=1, it is tp=1 pp=1"),
        ("b" * 32, "recomputed", "a push failed"),
        ("c" * 32, "local", ""),
    ]


@pytest.mark.parametrize(
    ("more", "lost"), [({}, False), ({"skip_reading_prefix_cache": True}, True), ({"prompt_embeds": "given"}, True)]
)
def test_a_request_for_kv_alone_ends_at_once_where_none_can_come(
    make_decode: MakeDecode, more: dict[str, Any], lost: bool
) -> None:
    """Its engine would compute the prompt; one whose KV may come waits."""
    make_decode().add_request(req := request("decode", 40, kv_only=True, **more))

    assert req.__dict__["baton_kv_is_lost"] is lost


def test_it_listens_for_the_worker_from_when_it_has_a_pool_until_it_is_closed(
    make_decode: MakeDecode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker wakes the engine there, which begins its next step at once behind one with news; nothing is left of it."""
    side, skipped = make_decode(), []
    assert wake_path(tmp_path).is_socket()
    monkeypatch.setattr(side._idle_sleep, "skip_next", lambda: skipped.append("pause"))
    side.update(DecodeReport(), set())
    assert skipped == []
    side.update(DecodeReport(started={"a" * 32}), set())
    side.update(DecodeReport(), {"r1"})
    assert skipped == ["pause"] * 2

    side.close()

    assert not wake_path(tmp_path).exists()
