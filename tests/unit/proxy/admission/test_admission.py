"""What a request goes through before it is served, apart from the gate."""

import asyncio
from types import SimpleNamespace

import pytest

from baton.contracts.configuration.schema import ProxyConfig
from baton.proxy.admission import admission
from baton.proxy.admission.admission import Admission
from baton.proxy.admission.concurrency_limiter import Ticket
from baton.proxy.errors import NoDescriptorsError
from baton.proxy.http_server import descriptors
from baton.proxy.nodes.node import SEQUENCE_BYTES
from tests.support.clock import Clock
from tests.unit.proxy.members import request


def made() -> Admission:
    return Admission(ProxyConfig(priority_header="X-Priority"), members=lambda: 2, waited=lambda _: None)


def test_a_lack_of_descriptors_is_logged_every_five_seconds_at_most(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, counted = Clock(), list[int]()
    monkeypatch.setattr(admission, "time", SimpleNamespace(monotonic=clock))
    here = made()
    here.claims.connections = most = here.state().most_connections_to_nodes
    for passed_s in (0.0, 4.5, 0.5, 0.5):
        clock.now_s += passed_s
        with pytest.raises(NoDescriptorsError):
            here.claims.enter()
        counted.append(len(caplog.records))

    assert counted == [1, 1, 2, 2]
    said = vars(caplog.records[0])
    assert (said["requests"], said["connections_to_nodes"]) == (0, most)
    assert said["most"] == most == descriptors.budget(here._limit, members=2).to_nodes
    assert said["open_files_limit"] == here._limit


async def test_what_the_gate_is_told_of_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short prompt costs something, too; its patience lasts until its deadline."""
    here, tickets = made(), list[Ticket]()
    monkeypatch.setattr(here.gate, "inside_for", tickets.append)
    asked = request()
    here.inside(asked, {"headers": [(b"x-priority", b"3")]}, asyncio.timeout(1000))

    (ticket,) = tickets
    assert (ticket.tenant, ticket.priority) == ("", 3)
    assert ticket.cost == asked.prompt_bytes + SEQUENCE_BYTES
    assert 0 < ticket.patience_s <= 1000


def test_a_client_may_ask_for_less_time_under_the_configured_name() -> None:
    here = Admission(ProxyConfig(timeout_header="X-Timeout"), members=lambda: 2, waited=lambda _: None)

    assert [here.timeout_s([(b"x-timeout", b"3")]), here.timeout_s([])] == [3, ProxyConfig().request_timeout_s]
