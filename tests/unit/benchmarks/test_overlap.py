import pytest

from benchmarks.overlap.__main__ import layer_syncs, parser
from benchmarks.overlap.network import NetworkError, maker_of, sent_bytes

NET_DEV = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo frame
    lo:     100       1    0    0    0     0          0         0      100       1    0    0    0     0
  data: 1234567    4321    0    0    0     0          0         0 76543210   12345    0    0    0     0
"""


@pytest.mark.parametrize(
    ("space", "maker"),
    [("baton-overlap-123-p", 123), ("baton-overlap-7-d", 7), ("blue", None), ("baton-overlap-x", None)],
)
def test_namespaces_name_their_maker(space: str, maker: int | None) -> None:
    """So that what a killed run left behind is told from what a running one uses."""
    assert maker_of(space) == maker


def test_the_links_bytes_are_the_device_that_sent_them() -> None:
    """The ninth counter, of the data link and no other."""
    assert sent_bytes(NET_DEV) == 76543210
    with pytest.raises(NetworkError, match="eth7"):
        sent_bytes(NET_DEV, "eth7")


def test_every_policy_of_the_configuration_is_measured() -> None:
    """A new one appears here by itself; `auto` is one of the others."""
    assert {"forward", "event"} <= set(layer_syncs())
    assert "auto" not in layer_syncs()
    assert parser().parse_args([]).variants == [*layer_syncs(), "mooncake"]
