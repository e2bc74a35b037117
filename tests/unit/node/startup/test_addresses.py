import pytest

from baton.contracts.configuration.schema import NodeConfig
from baton.node.errors import StartRefusedError
from baton.node.startup import addresses
from baton.node.startup.addresses import first_external, is_local, refuse_unreachable, resolve

EXTERNAL = "203.0.113.7"  # of a documentation range: surely not this machine's


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose addresses are loopback and `EXTERNAL`."""
    monkeypatch.setattr(addresses, "first_external", lambda: EXTERNAL)
    monkeypatch.setattr(addresses, "is_local", lambda address: address in ("127.0.0.1", EXTERNAL))


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("host", "listen", "advertised", "data"),
    [
        ("127.0.0.1", "127.0.0.1", "127.0.0.1", "127.0.0.1"),  # one machine needs nothing else
        ("localhost", "127.0.0.1", "localhost", "127.0.0.1"),  # peers may resolve it; the engine wants an address
        ("0.0.0.0", "0.0.0.0", EXTERNAL, EXTERNAL),  # the pod's address need not be configured
        ("", "0.0.0.0", EXTERNAL, EXTERNAL),
        (EXTERNAL, EXTERNAL, EXTERNAL, EXTERNAL),
    ],
)
def test_a_node_advertises_its_host_or_the_first_external_address(
    host: str, listen: str, advertised: str, data: str
) -> None:
    """What the node listens on is what peers dial."""
    found = resolve(NodeConfig(host=host))
    assert (found.listen_host, found.advertise_host, found.data_host) == (listen, advertised, data)


@pytest.mark.parametrize(
    ("host", "advertised", "words"),
    [
        ("0.0.0.0", "", "advertise_host"),  # there is nothing to guess
        ("0.0.0.0", EXTERNAL, EXTERNAL),  # peers would dial another machine
        ("0.0.0.0", "no-such-host.invalid", r"^advertise_host 'no-such-host"),
        ("no-such-host.invalid", "no-such-host.invalid", r"^host 'no-such-host"),
    ],
)
def test_what_is_no_address_of_this_machine_is_refused(
    monkeypatch: pytest.MonkeyPatch, host: str, advertised: str, words: str
) -> None:
    """The sentence says which setting is wrong."""
    monkeypatch.setattr(addresses, "first_external", lambda: None)
    with pytest.raises(StartRefusedError, match=words):
        resolve(NodeConfig(host=host, advertise_host=advertised))


@pytest.mark.parametrize(
    ("listen", "advertised"),
    [
        ("0.0.0.0", "0.0.0.0"),  # nothing that can be dialled
        ("0.0.0.0", "127.0.0.1"),  # this machine alone
        (EXTERNAL, "127.0.0.1"),
        ("127.0.0.1", EXTERNAL),  # no node listens there
        (EXTERNAL, "203.0.113.8"),
        ("::", "::1"),
    ],
)
def test_what_a_peer_could_not_reach_is_refused(listen: str, advertised: str) -> None:
    """Each of these would start well and then never see a peer."""
    with pytest.raises(StartRefusedError, match=advertised):
        refuse_unreachable(listen, advertised)


@pytest.mark.parametrize("has_route", [True, False])
def test_this_machine_knows_its_own_addresses(has_route: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback is ours, a documentation address is not; an isolated network still has an address to advertise."""
    if not has_route:
        monkeypatch.setattr(addresses, "_ELSEWHERE", ("256.0.0.1", 9))  # cannot be connected to
    assert is_local("127.0.0.1")
    assert not is_local(EXTERNAL)
    found = first_external()
    assert found is None or (is_local(found) and not found.startswith("127."))


def test_an_address_is_that_of_an_interface() -> None:
    """Which torch must be told of; another machine's is of none."""
    assert addresses.interface_of("127.0.0.1") == "lo"
    assert addresses.interface_of(EXTERNAL) is None
