"""The pods of the overlay `cpu`, run as processes: what the manifests say is enough for them to serve, and to end."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.kubernetes.pod import ADDRESS, network, start
from tests.support.kubernetes.render import named, render

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="makes namespaces: root, iproute2"),
]
START_S: Final = 240
KEY: Final = "a-key-of-a-client-of-this-cluster"
SECRETS: Final = {
    "baton-cluster-secret": {"secret": "a cluster secret for a test"},
    "baton-admin-token": {"token": "an admin token for a test"},
    "baton-api-keys": {"keys.yaml": f"keys:\n  team-a:\n    key: {KEY}\n"},
}
PARTS: Final = (("StatefulSet", "prefill"), ("StatefulSet", "decode"), ("Deployment", "proxy"))
PORTS: Final = {"prefill": 8100, "decode": 8200, "proxy": 8000}


class Pods:
    """All three, in one network."""

    def __init__(self, netns: str, folder: Path) -> None:
        self._netns = netns
        self._folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start them in no order that anybody waits for."""
        objects = render("cpu")
        for kind, name in PARTS:
            template = named(objects, kind, name)["spec"]["template"]
            self.processes[name] = start(template, objects, SECRETS, self._netns, self._folder / name)

    def ask(self, part: str, path: str, *more: str) -> tuple[int, str]:
        """Ask one of them over HTTP; status 0: no answer."""
        url = f"http://{ADDRESS}:{PORTS[part]}{path}"
        curl = ["ip", "netns", "exec", self._netns, "curl", "-sS", "-m", "60", "-w", "\n%{http_code}", *more, url]
        said = subprocess.run(curl, capture_output=True, text=True, check=False, timeout=90).stdout
        body, _, status = said.rpartition("\n")
        return int(status or 0), body

    def until_ready(self) -> None:
        """Wait until the proxy knows both nodes; a process that ends is told with its last words."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            ended = [name for name, process in self.processes.items() if process.poll() is not None]
            assert not ended, {name: self.log(name) for name in ended}
            status, body = self.ask("proxy", "/ready")
            if status == 200 and [node["state"] for node in json.loads(body)["nodes"]] == ["ready", "ready"]:
                return
            time.sleep(0.5)
        pytest.fail(f"not ready within {START_S} s: { {name: self.log(name) for name in self.processes} }")

    def log(self, name: str) -> str:
        """Return the end of what one has said."""
        return (self._folder / name / "log").read_text(errors="replace")[-3000:]

    def stop(self) -> None:
        """Kill what is left."""
        for process in self.processes.values():
            process.kill()
            process.wait()


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    """The overlay's pods, ready to serve."""
    tmp_path.chmod(0o755)
    with network(f"pods-{os.getpid()}") as netns:
        made = Pods(netns, tmp_path)
        try:
            made.start()
            made.until_ready()
            yield made
        finally:
            made.stop()


def test_the_pods_serve_and_end_within_their_grace(pods: Pods) -> None:
    """A disaggregated answer for who has a key; probes and scrapes answered; the drain ends before Kubernetes kills."""
    body: dict[str, Any] = {"model": "baton-embedded", "prompt": "The harbour " * 40, "max_tokens": 8}
    asked = ("-D", "-", "-H", "Content-Type: application/json", "-d", json.dumps(body))

    status, answer = pods.ask("proxy", "/v1/completions", "-H", f"Authorization: Bearer {KEY}", *asked)
    refused, _ = pods.ask("proxy", "/v1/completions", *asked)

    assert status == 200, answer
    assert "x-baton-path: disaggregated" in answer.lower()
    assert refused == 401
    for part in PORTS:
        assert pods.ask(part, "/health")[0] == 200
        assert "\nbaton_" in pods.ask(part, "/metrics")[1]

    grace_s = {name: named(render("cpu"), kind, name)["spec"]["template"]["spec"] for kind, name in PARTS}
    for name, process in pods.processes.items():
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=grace_s[name]["terminationGracePeriodSeconds"]) == 0, pods.log(name)
        assert time.monotonic() - began < grace_s[name]["terminationGracePeriodSeconds"]
