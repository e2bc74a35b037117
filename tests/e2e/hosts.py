"""Two hosts in network namespaces, and a node whose ranks are divided between them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from baton.contracts.kv_transfer import Role
from baton.node.follower import OUTLIVE_S
from tests.e2e.stack import FLOAT32, Server, Stack
from tests.support.network_spaces import Network, Seat

NETWORK = "hosts"
MASTER_PORT = "29517"
MEMORY = ("--kv-cache-memory-bytes", str(64 << 20))
COMMON = (*FLOAT32, *MEMORY, "--max-model-len", "4096", "--max-num-seqs", "16")
ENDED_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadNode:
    """One node: the process that serves, and the one that runs the ranks of the other host."""

    first: Server
    second: Server

    def ended(self) -> tuple[int, int]:
        """Wait for both processes; return their exit statuses."""
        return _status(self.first), _status(self.second)


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoHosts:
    stack: Stack
    seats: tuple[Seat, Seat]

    def address(self, host: int) -> str:
        return self.seats[host].address

    def server(self, role: Role, host: int, *flags: str, name: str = "") -> Server:
        return self.stack.node(
            role,
            *flags,
            name=name,
            host=self.address(host),
            netns=self.seats[host].space,
            target="tests.e2e.targets:node_on_host",
            kwargs={"role": role},
            env={"OMP_NUM_THREADS": "1"},
        )

    def spread(self, role: Role, *flags: str, secret_of_second: Path | None = None) -> SpreadNode:
        """Start a node on both hosts, the second one perhaps with another secret."""
        group = (*COMMON, *flags, "--nnodes", "2", "--master-addr", self.address(0), "--master-port", MASTER_PORT)
        first = self.server(role, 0, *group, "--node-rank", "0", name=f"{role}-first")
        own = self.stack.secret_file
        self.stack.secret_file = secret_of_second or own
        second = self.server(role, 1, *group, "--node-rank", "1", "--headless", name=f"{role}-second")
        self.stack.secret_file = own
        return SpreadNode(first=first, second=second)


@contextmanager
def two_hosts(stack: Stack) -> Iterator[TwoHosts]:
    """Make the namespaces; remove them, and whatever runs in them, at the end."""
    with Network(NETWORK) as network, stack.stopping():
        yield TwoHosts(stack=stack, seats=(network.add("h0"), network.add("h1")))


def _status(server: Server) -> int:
    assert server.child is not None
    return server.child.wait(ENDED_WITHIN_S + OUTLIVE_S)
