"""`group.sh` among stubs: every host of a node starts its part, once it can find the first one."""

import os
import signal
from pathlib import Path
from typing import Final

import pytest

from tests.support.kubernetes.render import FOLDER
from tests.support.stub_commands import WAIT_S, StubCommands
from tests.support.waiting import eventually

SCRIPT: Final = FOLDER / "overlays" / "multi-host" / "group.sh"
ADDRESS: Final = "leader.example"


@pytest.fixture
def host(tmp_path: Path) -> StubCommands:
    """The second host of a group of two, with the environment that its pod has."""
    made = StubCommands(tmp_path, "bash")
    for command in ("getent", "baton", "sleep"):
        made.stub(command)
    made.environ |= {"LWS_GROUP_SIZE": "2", "LWS_LEADER_ADDRESS": ADDRESS, "WORKER_INDEX": "1"}
    made.environ |= {"POD_IP": "10.0.0.7", "JOIN_S": "20"}
    return made


@pytest.mark.parametrize("index", ["0", "1"])
def test_every_host_starts_its_part_of_the_node(host: StubCommands, index: str) -> None:
    """The same command but for its number and its own address."""
    host.environ["WORKER_INDEX"] = index

    assert host.run(SCRIPT, "prefill") == (0, "")
    looked, started = host.calls()
    assert looked == f"getent hosts {ADDRESS}"
    assert started == (
        "baton prefill --config /etc/baton/baton.yaml --advertise-host 10.0.0.7 "
        f"--nnodes 2 --node-rank {index} --master-addr {ADDRESS}"
    )


def test_a_host_waits_until_the_first_one_has_a_name(host: StubCommands) -> None:
    """Pods of a group start in any order."""
    host.stub("getent", f"[ -e {host.folder}/asked ] || {{ >{host.folder}/asked; exit 2; }}")

    assert host.run(SCRIPT, "decode")[0] == 0
    assert [line.split()[0] for line in host.calls()] == ["getent", "sleep", "getent", "baton"]


def test_a_host_whose_leader_never_comes_ends(host: StubCommands) -> None:
    """With a sentence that names the leader; the group is created again then."""
    host.environ["JOIN_S"] = "0"
    host.stub("getent", "exit 2")

    assert host.run(SCRIPT, "prefill") == (1, f"group: no leader at {ADDRESS} within 0 s\n")


def test_sigterm_reaches_the_node(host: StubCommands) -> None:
    """It drains then: a shell in between would keep the signal to itself."""
    host.stub("baton", "trap 'exit 7' TERM\n>${0%/*}/up\nfor ((i = 0; i < 10000000; i++)); do :; done")
    with host.start(SCRIPT, "prefill") as process:
        eventually((host.folder / "up").exists, WAIT_S)
        os.kill(process.pid, signal.SIGTERM)
        process.communicate(timeout=WAIT_S)

    assert process.returncode == 7


def test_another_word_is_refused(host: StubCommands) -> None:
    """Rather than to do nothing."""
    status, said = host.run(SCRIPT, "worker")

    assert status == 2
    assert "not 'worker'" in said
