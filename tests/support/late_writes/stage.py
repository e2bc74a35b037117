"""Starts P and D with a slow link between them, and does them harm."""

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from baton.deploy.forkserver import Child, ForkServer
from benchmarks.netns import target_in
from benchmarks.overlap.network import DATA_DEVICE, DECODE_DATA, PREFILL_DATA, Network

PATIENCE_S = 40.0


class Stage:
    """One P, one D, one prompt on its way."""

    def __init__(self, forkserver: ForkServer, network: Network, folder: Path) -> None:
        self._forkserver = forkserver
        self._network = network
        self._folder = folder
        self._children: list[Child] = []

    def start(self, *, naive: bool, bad_block: bool = False) -> None:
        """Start both; the push begins by itself."""
        self.prefill = self._spawn("prefill", self._network.prefill, host=PREFILL_DATA)
        address = self._folder / "address"
        self.wait(address.exists)
        self.decode = self._spawn(
            "decode",
            self._network.decode,
            host=DECODE_DATA,
            peer=address.read_text(),
            bad_block=bad_block,
            naive=naive,
        )

    def stop(self) -> None:
        (self._folder / "stop").touch()
        for child in reversed(self._children):
            child.send_signal(signal.SIGCONT)
            child.kill()
            child.wait(10)

    # --- what D has seen ---

    def facts(self) -> dict[str, Any]:
        """What D says of itself; nothing before its first look."""
        try:
            facts: dict[str, Any] = json.loads((self._folder / "facts").read_text())
        except FileNotFoundError:
            facts = {"landed": 0, "failed": "", "closed": False, "after_failure": 0, "stray": 0, "looks": 0}
        return facts

    def wait(self, condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        """Poll until something holds."""
        deadline = time.monotonic() + patience_s
        while not condition():
            assert time.monotonic() < deadline, f"gave up: {self.facts()} {self._logs()}"
            assert all(child.poll() is None for child in self._children if child is not self.dead), self._logs()
            time.sleep(0.01)

    def until(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until D has seen something; returns what it has seen."""
        self.wait(lambda: condition(self.facts()))
        return self.facts()

    def watch(self, seconds: float) -> dict[str, Any]:
        """Let time pass; returns what D has seen at its end."""
        time.sleep(seconds)
        looks = self.facts()["looks"]
        return self.until(lambda facts: facts["looks"] > looks + 1)

    # --- harm ---

    dead: Child | None = None

    def kill_prefill(self) -> None:
        self.dead = self.prefill
        self.prefill.kill()
        self.prefill.wait(10)

    def pause_prefill(self) -> None:
        self.prefill.send_signal(signal.SIGSTOP)

    def resume_prefill(self) -> None:
        self.prefill.send_signal(signal.SIGCONT)

    def cut(self) -> None:
        _run(f"ip -n {self._network.decode} link set {DATA_DEVICE} down")

    def heal(self) -> None:
        _run(f"ip -n {self._network.decode} link set {DATA_DEVICE} up")

    def unsent_bytes(self) -> int:
        """What the kernel of P's machine still has to send, of any process."""
        table = subprocess.run(
            ["ip", "netns", "exec", self._network.prefill, "cat", "/proc/net/tcp"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        return sum(int(line.split()[4].partition(":")[0], 16) for line in table.splitlines()[1:])

    def _spawn(self, name: str, netns: str, **kwargs: Any) -> Child:
        target, given = target_in(
            netns, f"tests.support.late_writes.{name}:main", {"folder": str(self._folder), **kwargs}
        )
        env, log = {"MC_TCP_BIND_ADDRESS": kwargs["host"]}, self._folder / f"{name}.log"
        child = self._forkserver.spawn(target, kwargs=given, env=env, log=log)
        self._children.append(child)
        return child

    def _logs(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in self._folder.glob("*.log"))


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True)
