"""`group.sh` among stubs: a node over several hosts starts when all are there, and ends in the right order."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Final

import pytest

from tests.support.kubernetes.render import FOLDER

SCRIPT: Final = FOLDER / "overlays" / "multi-host" / "group.sh"
ADDRESS: Final = "leader.example"
WAIT_S: Final = 30


class Host:
    """A PATH with stubs that write down what they are told, and the environment that LeaderWorkerSet gives."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.environ = {
            "PATH": str(folder),
            "LWS_GROUP_SIZE": "2",
            "LWS_LEADER_ADDRESS": ADDRESS,
            "POD_IP": "10.0.0.7",
            "JOIN_S": "20",
        }
        for tool in ("bash", "sleep"):
            (folder / tool).symlink_to(shutil.which(tool) or "")
        self.stub("ray", "")
        self.stub("baton", "")
        self.stub("python3", "echo 2")

    def stub(self, name: str, script: str) -> None:
        """Put a command there."""
        path = self.folder / name
        path.write_text(f'#!{shutil.which("bash")}\necho {name} "$@" >>{self.log}\n{script}\n')
        path.chmod(0o755)

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start the script."""
        return subprocess.Popen([SCRIPT, *arguments], env=self.environ, stderr=subprocess.PIPE, text=True)

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run the script; return its status and what it complained of."""
        with self.start(*arguments) as process:
            _, said = process.communicate(timeout=WAIT_S)
        return process.returncode, said

    def told(self) -> list[str]:
        """Return the commands that were run."""
        return [line for line in self.log.read_text().splitlines() if not line.startswith("python3")]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A host of a group of two, both of which are there."""
    return Host(tmp_path)


def test_the_leader_starts_ray_and_then_the_node(host: Host) -> None:
    """Without Ray's dashboard, which would be one more open port."""
    assert host.run("prefill") == (0, "")
    assert host.told() == [
        "ray start --head --port=6379 --node-ip-address=10.0.0.7 --include-dashboard=false",
        "baton prefill --config /etc/baton/baton.yaml",
    ]


def test_the_node_waits_for_all_hosts(host: Host) -> None:
    """An engine cannot begin with a part of its ranks."""
    host.stub("python3", f"[ -e {host.folder}/asked ] && echo 2 || {{ >{host.folder}/asked; echo 1; }}")

    assert host.run("decode")[0] == 0
    assert host.log.read_text().count("python3") == 2
    assert host.told()[-1].startswith("baton decode")


def test_a_group_that_stays_incomplete_ends(host: Host) -> None:
    """The group is made anew then, on other machines if need be."""
    host.environ["JOIN_S"] = "0"
    host.stub("python3", "echo 1")

    assert host.run("prefill") == (1, "group: not all 2 hosts came within 0 s\n")
    assert not [line for line in host.told() if line.startswith("baton")]


def test_sigterm_reaches_the_node(host: Host) -> None:
    """It drains then: a shell in between would keep the signal to itself."""
    host.stub("baton", "trap 'exit 7' TERM\n>${0%/*}/up\nfor ((i = 0; i < 400; i++)); do sleep 0.05; done")
    with host.start("prefill") as process:
        deadline = time.monotonic() + WAIT_S
        while not (host.folder / "up").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGTERM)
        process.communicate(timeout=WAIT_S)

    assert process.returncode == 7


def test_a_worker_joins_when_the_leader_is_there(host: Host) -> None:
    """Pods of a group start in any order."""
    host.stub("ray", f'[ "$1" != health-check ] || [ -e {host.folder}/asked ] || {{ >{host.folder}/asked; exit 1; }}')

    assert host.run("worker")[0] == 0
    assert host.told() == [
        *[f"ray health-check --address {ADDRESS}:6379"] * 2,
        f"ray start --address={ADDRESS}:6379 --node-ip-address=10.0.0.7 --block",
    ]


def test_a_worker_whose_leader_never_comes_ends(host: Host) -> None:
    """With a sentence that names the leader."""
    host.environ["JOIN_S"] = "0"
    host.stub("ray", "exit 1")

    assert host.run("worker") == (1, f"group: no leader at {ADDRESS} within 0 s\n")


def test_a_worker_outlives_its_leader(host: Host) -> None:
    """All pods are told to end at once, and the leader's drain needs every rank."""
    host.stub("ray", f"[ -e {host.folder}/asked ] && exit 1\n>{host.folder}/asked")

    assert host.run("outlive-leader") == (0, "")
    assert len(host.told()) == 2


def test_but_not_for_ever(host: Host) -> None:
    """A leader that hangs is killed with its group."""
    host.environ["DRAIN_S"] = "0"

    assert host.run("outlive-leader") == (0, "")


def test_another_word_is_refused(host: Host) -> None:
    """Rather than to do nothing."""
    status, said = host.run("leader")

    assert status == 2
    assert "not 'leader'" in said
