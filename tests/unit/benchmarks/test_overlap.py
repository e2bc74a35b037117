import subprocess
import sys

import pytest

from benchmarks.overlap.__main__ import layer_syncs, main, parser
from benchmarks.overlap.network import NetworkError, maker_of, refuse_unprivileged, sent_bytes

NET_DEV = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo frame
    lo:     100       1    0    0    0     0          0         0      100       1    0    0    0     0
  data: 1234567    4321    0    0    0     0          0         0 76543210   12345    0    0    0     0
"""


def test_who_may_not_make_namespaces_is_told_so() -> None:
    """One sentence, before anything was started."""
    with pytest.raises(NetworkError, match="root"):
        refuse_unprivileged(1000)


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


def test_one_core_is_not_enough(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Two nodes on one core would compute in turn, and no overlap could be seen."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})

    assert main([]) == 1
    assert "a core each" in capsys.readouterr().err


def test_a_user_who_is_not_root_gets_a_sentence() -> None:
    """And no traceback."""
    code = (
        "import os, sys\nos.sched_getaffinity = lambda _: {0, 1}\nos.geteuid = lambda: 1000\n"
        "from benchmarks.overlap.__main__ import main\nsys.exit(main([]))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert ended.returncode == 1
    assert "root" in ended.stderr
    assert "Traceback" not in ended.stderr
