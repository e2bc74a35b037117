"""Connections between the ranks of a node on several hosts: who may connect, and who hears of whose end."""

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from queue import SimpleQueue

import pytest

from baton.contracts.secret import ClusterSecret
from baton.kv_connector.errors import ConnectorError
from baton.model_runner import rank_monitor
from baton.model_runner.rank_monitor import RankLink, RankMonitor

HERE = "127.0.0.1"
SECRET = ClusterSecret(b"the secret of this cluster")
OTHER = ClusterSecret(b"the secret of another cluster")
HEARD_WITHIN_S = 20.0
Heard = SimpleQueue[tuple[str, bool]]


class Ranks:
    """The first rank, and ranks on other hosts that connect to it."""

    def __init__(self, secret: ClusterSecret = SECRET) -> None:
        self.hub = RankMonitor(HERE, secret)
        self.ends: list[RankLink] = []
        self.heard_by_hub: Heard = SimpleQueue()
        self.heard_by_end: Heard = SimpleQueue()

    def connect(self, *indices: int, secret: ClusterSecret = SECRET) -> None:
        threads = [threading.Thread(target=self._connect, args=(index, secret)) for index in indices]
        for thread in threads:
            thread.start()
        self.hub.wait_for(set(indices), lambda *told: self.heard_by_hub.put(told))
        for thread in threads:
            thread.join()

    def _connect(self, index: int, secret: ClusterSecret) -> None:
        self.ends.append(RankLink(self.hub.address, secret, index, lambda *told: self.heard_by_end.put(told)))

    def close(self) -> None:
        for end in self.ends:
            end.close()
        self.hub.close()


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    """No rank has connected yet."""
    made = Ranks()
    yield made
    made.close()


def test_a_rank_that_breaks_off_is_missed(ranks: Ranks) -> None:
    """Its kernel hangs up, however its process ended; the rank did not say farewell."""
    ranks.connect(1)

    ranks.ends[0]._socket.shutdown(socket.SHUT_RDWR)

    assert ranks.heard_by_hub.get(timeout=HEARD_WITHIN_S) == ("rank 1", False)


def test_the_first_rank_is_missed_by_all_others(ranks: Ranks) -> None:
    """Each host ends by itself then."""
    ranks.connect(2, 3)

    for end in ranks.hub._ends.values():
        end.shutdown(socket.SHUT_RDWR)

    assert [ranks.heard_by_end.get(timeout=HEARD_WITHIN_S) for _ in range(2)] == [("the node's first rank", False)] * 2


def test_an_orderly_end_is_told_from_a_loss(ranks: Ranks) -> None:
    """The first host has drained and stops: the others may stop without a complaint."""
    ranks.connect(1)

    ranks.hub.close()
    ranks.hub.close()

    assert ranks.heard_by_end.get(timeout=HEARD_WITHIN_S) == ("the node's first rank", True)
    assert ranks.heard_by_hub.empty()


def test_strangers_do_not_get_in(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that says nothing and one that speaks something else are hung up on, and the rank that was waited for is let in."""
    monkeypatch.setattr(rank_monitor, "_GREETING_S", 0.2)
    with socket.create_connection(ranks.hub.address), socket.create_connection(ranks.hub.address) as odd:
        odd.sendall(b"GET / HTTP/1.1\r\n\r\n" * 20)
        ranks.connect(1)

    assert list(ranks.hub._ends) == [1]


def test_a_rank_with_another_secret_stops_the_start(ranks: Ranks) -> None:
    """At once, and both sides name the reason."""
    refused: list[str] = []

    def knock() -> None:
        with pytest.raises(ConnectorError) as stopped:
            RankLink(ranks.hub.address, OTHER, 1, lambda *_: None)
        refused.append(str(stopped.value))

    thread = threading.Thread(target=knock)
    thread.start()
    with pytest.raises(ConnectorError, match="rank 1, on another host of this node, holds another cluster secret"):
        ranks.hub.wait_for({1}, lambda *_: None)
    thread.join()

    assert "it holds another cluster secret" in refused[0]


def test_the_hub_does_not_wait_for_ever_for_a_rank_that_does_not_come(ranks: Ranks) -> None:
    """Its process may have died before it was tied."""
    with pytest.raises(ConnectorError, match="ranks 1, 2 on other hosts did not connect"):
        ranks.hub.wait_for({1, 2}, lambda *_: None, timeout_s=0.1)


def test_a_stranger_that_sends_byte_by_byte_does_not_keep_the_hub(ranks: Ranks) -> None:
    """The hub waits so long in all, however often a byte comes."""
    gave_up, sent = threading.Event(), bytearray()
    with socket.create_connection(ranks.hub.address) as stranger:

        def drip() -> None:
            with suppress(OSError):  # the hub hangs up
                while not gave_up.wait(0.2):
                    stranger.sendall(b"x")
                    sent.append(1)

        thread = threading.Thread(target=drip)
        thread.start()
        with pytest.raises(ConnectorError, match="did not connect"):
            ranks.hub.wait_for({1}, lambda *_: None, timeout_s=0.5)
        gave_up.set()
        thread.join()
        assert stranger.recv(64)  # the nonce: it was let speak

    assert len(sent) < rank_monitor._GREETING


def test_a_rank_sees_through_a_false_hub() -> None:
    """What answers at the address must hold the secret as well."""
    with socket.create_server((HERE, 0)) as server:

        def pretend() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(bytes(32))
                connection.recv(200)
                connection.sendall(bytes(32))
                connection.recv(1)

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(ConnectorError, match="does not hold this cluster secret"):
            RankLink(server.getsockname(), SECRET, 1, lambda *_: None)
        thread.join()


def test_either_secret_is_accepted_while_one_replaces_the_other() -> None:
    """The hosts read their files at different times."""
    ranks = Ranks(ClusterSecret(*OTHER.values, *SECRET.values))
    ranks.connect(1, secret=SECRET)

    assert len(ranks.ends) == 1
    ranks.close()


def test_a_host_that_vanishes_is_noticed_by_the_kernel(ranks: Ranks) -> None:
    """No process has to be in time for that: both ends have it probe the other, and not wait longer for what was sent last."""
    ranks.connect(1)

    for end in (ranks.ends[0]._socket, ranks.hub._ends[1]):
        assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle_s, every_s, probes = (
            end.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert idle_s + every_s * probes == rank_monitor.SILENT_S
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == rank_monitor.SILENT_S * 1_000
