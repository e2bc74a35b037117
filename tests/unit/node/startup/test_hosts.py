"""Which of a node's hosts a command line is for."""

import pytest

from baton.node.errors import StartRefusedError
from baton.node.startup.hosts import Hosts, hosts_of

LEADER = "10.0.0.1"
GROUP = ("--nnodes", "2", "--master-addr", LEADER)


def test_a_node_is_on_one_host_unless_told_otherwise() -> None:
    """All of its ranks are here then, also if the flags say so."""
    assert hosts_of([]) == Hosts()
    assert hosts_of(["-tp", "2", "-pp", "2", "-dp", "3"]) == Hosts(ranks_here=4)
    assert hosts_of(["--nnodes", "1", "--node-rank", "0"]) == Hosts()


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ((*GROUP, "-tp", "2"), Hosts(count=2, rank=0, ranks_here=1)),
        ((*GROUP, "-tp", "2", "--node-rank", "1", "--headless"), Hosts(count=2, rank=1, ranks_here=1)),
        (("-n", "2", "-r=1", "--master_addr=first", "-pp", "2", "-tp", "4"), Hosts(count=2, rank=1, ranks_here=4)),
    ],
)
def test_ranks_are_divided_among_the_hosts(flags: tuple[str, ...], found: Hosts) -> None:
    assert hosts_of(flags) == found
    assert found.first_rank == found.rank * found.ranks_here
    assert found.follows == (found.rank > 0)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((*GROUP, "-tp", "2", "--node-rank", "2"), "--node-rank 2 is none of --nnodes 2"),
        ((*GROUP, "-tp", "2", "--node-rank", "one"), "--node-rank must be a whole number"),
        (("--nnodes", "0"), "none of --nnodes 0"),
        (("--node-rank", "1"), "none of --nnodes 1"),
        ((*GROUP, "-tp", "3"), "3 ranks cannot be divided among --nnodes 2"),
        ((*GROUP, "-tp", "2", "-dp", "2"), "run several nodes"),
        ((*GROUP, "-tp", "2", "--headless"), "serves HTTP"),
        (("--headless",), "serves HTTP"),
        (("--nnodes", "2", "-tp", "2"), "set --master-addr"),
        (("--nnodes", "2", "-tp", "2", "--master-addr", "127.0.0.1"), "set --master-addr"),
        ((*GROUP, "-tp", "2", "--distributed-executor-backend", "uni"), "--distributed-executor-backend mp"),
        (("--distributed-executor-backend", "ray"), "start Baton on each host"),
        ((*GROUP, "--node-r", "1", "-tp", "2"), "write --node-r out: --node-rank"),
        (("--nno=2",), "write --nno out: --nnodes"),
    ],
)
def test_what_contradicts_itself_or_cannot_be_is_refused(flags: tuple[str, ...], words: str) -> None:
    with pytest.raises(StartRefusedError, match=words):
        hosts_of(flags)
