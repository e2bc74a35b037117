"""A link that drops everything for some seconds: control messages pass soon after it has healed. For root, with `ip`.

A router stands between the two namespaces and forwards nothing while the link is cut, so that TCP learns nothing of it.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.waiting import eventually

SPACES = ("p", "d", "r")
ADDRESS = "tcp://198.18.9.1:7700"
# TCP's attempts come 0.2, 0.6, 1.4, 3.0, 6.2 and 12.6 s after the first that was lost: the last of these is far away.
CUT_S = 7.5
TALKER = f"""
import sys, time
from baton.contracts.secret import ClusterSecret
from baton.kv_connector.control.loop import ControlLoop

class Talker:
    def on_payload(self, peer, payload):
        if dials:
            print("heard", flush=True)
        else:
            print(peer[1].hex(), flush=True)
            loop.send(peer, payload)
    def on_tick(self):
        if dials:
            loop.send(("dial", {ADDRESS!r}), b"beat")
    def on_disconnect(self, peer):
        print("broken", flush=True)

dials = sys.argv[1] == "d"
secret = ClusterSecret(b"a secret of the cluster")
loop = ControlLoop(Talker(), 0.2, secret=secret)
if not dials:
    loop.listen("198.18.9.1", 7700, secret)
loop.start()
time.sleep(120)
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="network namespaces take root and `ip`"),
]


def run(command: str, **more: object) -> None:
    subprocess.run(["ip", *command.split()], check=True, capture_output=True, **more)  # type: ignore[call-overload]


class Link:
    """Two namespaces, and a router between them."""

    def __init__(self) -> None:
        self.name = {space: f"baton-link-{os.getpid()}-{space}" for space in SPACES}

    def make(self) -> None:
        for space in SPACES:
            run(f"netns add {self.name[space]}")
        for space, own, router in (("p", "198.18.9.1", "198.18.9.2"), ("d", "198.18.9.5", "198.18.9.6")):
            run(f"-n {self.name[space]} link add e0 type veth peer name to-{space} netns {self.name['r']}")
            run(f"-n {self.name[space]} addr add {own}/30 dev e0")
            run(f"-n {self.name['r']} addr add {router}/30 dev to-{space}")
            run(f"-n {self.name[space]} link set e0 up")
            run(f"-n {self.name['r']} link set to-{space} up")
            run(f"-n {self.name[space]} route add default via {router}")
        self.forward(passes=True)

    def forward(self, *, passes: bool) -> None:
        """Let packets pass, or drop them."""
        write = f"echo {int(passes)} > /proc/sys/net/ipv4/ip_forward"
        subprocess.run(["ip", "netns", "exec", self.name["r"], "sh", "-c", write], check=True)

    def remove(self) -> None:
        for space in SPACES:
            with suppress(subprocess.CalledProcessError):
                run(f"netns delete {self.name[space]}")


@pytest.fixture
def link() -> Iterator[Link]:
    made = Link()
    try:
        made.make()
        yield made
    finally:
        made.remove()


@contextmanager
def talking(link: Link, space: str, folder: Path) -> Iterator[Callable[[], list[str]]]:
    """Run one end; yields what returns the lines that it has written."""
    log = folder / space
    with log.open("w") as file:
        command = ["ip", "netns", "exec", link.name[space], sys.executable, "-c", TALKER, space]
        talker = subprocess.Popen(command, stdout=file, cwd=Path(__file__).parents[3])
        try:
            yield lambda: log.read_text().splitlines()
        finally:
            talker.kill()
            talker.wait()


def test_a_link_that_was_dead_is_replaced(link: Link, tmp_path: Path) -> None:
    """TCP alone would try again after the length of the outage; and it is silence, no connection that the peer broke."""
    with talking(link, "p", tmp_path) as listener, talking(link, "d", tmp_path) as dialler:
        eventually(dialler, 60)
        link.forward(passes=False)
        time.sleep(CUT_S)
        before, heard = listener()[-1], len(dialler())
        link.forward(passes=True)
        eventually(lambda: len(dialler()) > heard, 60)

        assert listener()[-1] != before  # the first message came over a new connection
        assert "broken" not in dialler()
