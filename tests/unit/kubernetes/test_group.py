"""`group.sh` among stubs: every host of a node starts its part, once it can find the first one."""

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
    """A PATH with stubs that write down what they are told, and the environment that a pod of a group has."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.environ = {
            "PATH": str(folder),
            "LWS_GROUP_SIZE": "2",
            "LWS_LEADER_ADDRESS": ADDRESS,
            "WORKER_INDEX": "1",
            "POD_IP": "10.0.0.7",
            "JOIN_S": "20",
        }
        for tool in ("bash", "sleep"):
            (folder / tool).symlink_to(shutil.which(tool) or "")
        self.stub("getent", "")
        self.stub("baton", "")

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
        return self.log.read_text().splitlines()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """The second host of a group of two."""
    return Host(tmp_path)


@pytest.mark.parametrize("index", ["0", "1"])
def test_every_host_starts_its_part_of_the_node(host: Host, index: str) -> None:
    """The same command but for its number and its own address."""
    host.environ["WORKER_INDEX"] = index

    assert host.run("prefill") == (0, "")
    looked, started = host.told()
    assert looked == f"getent hosts {ADDRESS}"
    assert started == (
        "baton prefill --config /etc/baton/baton.yaml --advertise-host 10.0.0.7 "
        f"--nnodes 2 --node-rank {index} --master-addr {ADDRESS}"
    )


def test_a_host_waits_until_the_first_one_has_a_name(host: Host) -> None:
    """Pods of a group start in any order."""
    host.stub("getent", f"[ -e {host.folder}/asked ] || {{ >{host.folder}/asked; exit 2; }}")

    assert host.run("decode")[0] == 0
    assert [line.split()[0] for line in host.told()] == ["getent", "getent", "baton"]


def test_a_host_whose_leader_never_comes_ends(host: Host) -> None:
    """With a sentence that names the leader; the group is made anew then."""
    host.environ["JOIN_S"] = "0"
    host.stub("getent", "exit 2")

    assert host.run("prefill") == (1, f"group: no leader at {ADDRESS} within 0 s\n")


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


def test_another_word_is_refused(host: Host) -> None:
    """Rather than to do nothing."""
    status, said = host.run("worker")

    assert status == 2
    assert "not 'worker'" in said
