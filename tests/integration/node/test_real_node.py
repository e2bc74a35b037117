"""Real vLLM servers under the node, with a connector that moves nothing. At most one at a time."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from baton.contracts.http import NODE_PATH, PATH_HEADER, REASON_HEADER, TRANSFERS_PATH
from baton.contracts.kv_transfer import FIELD, Role, TransferParams, sign
from baton.contracts.secret import generate_secret, read_secret
from baton.deploy.forkserver import Child, ForkServer
from baton.node.engine_watch import EXIT_ENGINE_ENDED

pytest.importorskip("vllm")

from tests.support import probe_connector
from tests.support.probe_node import SERVED_AS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

READY_WITHIN_S = 120.0
STOPPED_WITHIN_S = 8.0
SERVE = "tests.support.probe_node:serve"
PLAIN = "a" * 32
FAILING = "b" * 32  # the probe reports ids that start with "b" as recomputed


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a node is to run."""

    port: int
    runtime_dir: Path
    secret_file: Path

    def arguments(self, role: Role) -> dict[str, Any]:
        return {
            "role": role,
            "port": self.port,
            "runtime_dir": str(self.runtime_dir),
            "secret_file": str(self.secret_file),
        }

    def leg(self, transfer_id: str, role: Role = "decode") -> dict[str, Any]:
        params = TransferParams(transfer_id=transfer_id, role=role, peer="")
        return completion(**{FIELD: sign(params, read_secret(self.secret_file))})


@pytest.fixture
def place() -> Iterator[Place]:
    """A free port and a folder short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="baton-test-") as folder:
        secret_file = Path(folder, "secret")
        secret_file.write_text(generate_secret())
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        yield Place(port=port, runtime_dir=Path(folder), secret_file=secret_file)


def completion(**fields: Any) -> dict[str, Any]:
    """A request that the embedded model answers in a moment."""
    return {"model": SERVED_AS, "prompt": "In the town of", "max_tokens": 4, "temperature": 0, **fields}


def client(place: Place) -> httpx.Client:
    """A client that may use the node API."""
    token = read_secret(place.secret_file).node_token()
    return httpx.Client(
        base_url=f"http://127.0.0.1:{place.port}", headers={"Authorization": f"Bearer {token}"}, timeout=30
    )


def wait_ready(http: httpx.Client, ended: Callable[[], object], log: Path) -> None:
    """Wait until the node says that it is ready; fail with its log if it ends first."""
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        assert ended() is None, log.read_text()[-4000:]
        try:
            if http.get(NODE_PATH).json()["state"] == "ready":
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    pytest.fail(f"not ready within {READY_WITHIN_S:g} s:\n{log.read_text()[-4000:]}")


def children_of(pid: int) -> list[int]:
    """The processes that a process has started and that still run."""
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    return [int(word) for word in found.stdout.split()]


def still_running(pids: list[int]) -> list[int]:
    """Those processes that have not ended, after a moment."""
    deadline = time.monotonic() + STOPPED_WITHIN_S
    while (left := [pid for pid in pids if _alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def forked(forkserver: ForkServer, place: Place) -> Iterator[Child]:
    """A decode node in a forked process with one core, ready."""
    log = place.runtime_dir / "log"
    child = forkserver.spawn(SERVE, kwargs=place.arguments("decode"), log=log, cpus=[min(os.sched_getaffinity(0))])
    try:
        with client(place) as http:
            wait_ready(http, child.poll, log)
        yield child
    finally:
        child.kill()
        child.wait(STOPPED_WITHIN_S)


@pytest.mark.usefixtures("forked")
def test_a_forked_node_on_one_core_serves_and_describes_itself(place: Place) -> None:
    """The node API answers next to vLLM's own, the gate names the path, and nothing unsigned passes."""
    with client(place) as http:
        info = http.get(NODE_PATH).json()
        assert (info["role"], info["served_models"], info["max_model_len_tokens"]) == ("decode", [SERVED_AS], 4096)
        assert info["fingerprint"] == probe_connector.WORKER["fingerprint"]
        assert info["versions"]["vllm"]
        (transfer,) = http.get(TRANSFERS_PATH).json()["transfers"]
        assert transfer["scheduler"]["blocks_held"] == 1
        assert http.get(NODE_PATH, headers={"Authorization": "Bearer x"}).status_code == 401

        plain = http.post("/v1/completions", json=completion())
        pushed = http.post("/v1/completions", json=place.leg(PLAIN))
        failed = http.post("/v1/completions", json={**place.leg(FAILING), "stream": True})

        assert [answer.status_code for answer in (plain, pushed, failed)] == [200, 200, 200]
        assert PATH_HEADER not in plain.headers
        assert pushed.headers[PATH_HEADER] == "disaggregated"
        assert pushed.json()["choices"][0]["text"] == plain.json()["choices"][0]["text"]
        assert failed.headers[PATH_HEADER] == "recomputed"
        assert failed.headers[REASON_HEADER] == f"no {FIELD} for the probe"
        assert failed.text.endswith("data: [DONE]\n\n")

        for body in (completion(**{FIELD: {"do_remote_prefill": True}}), place.leg(PLAIN, "prefill")):
            assert http.post("/v1/completions", json=body).status_code == 403


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.exhaustive)])
def test_a_signal_stops_a_forked_node_in_order(number: signal.Signals, place: Place, forked: Child) -> None:
    """Both sides of the connector are shut down, and no engine stays behind."""
    engine = children_of(forked.pid)
    assert engine

    forked.send_signal(number)

    assert forked.wait(STOPPED_WITHIN_S) == 0
    assert not still_running(engine)
    assert sorted(path.stem for path in place.runtime_dir.glob("*.stopped")) == ["scheduler", "worker-0"]


def test_a_node_whose_engine_was_killed_ends_with_a_failure(place: Place, forked: Child) -> None:
    """A supervisor that restarts on failure must see one; vLLM's server alone ends with 0."""
    (engine,) = children_of(forked.pid)
    os.kill(engine, signal.SIGKILL)

    assert forked.wait(60) == EXIT_ENGINE_ENDED
    assert "its engine has died" in (place.runtime_dir / "log").read_text()


@pytest.mark.exhaustive
def test_a_plain_process_serves_and_leaves_no_engine_behind_when_killed(place: Place) -> None:
    """An orphaned engine would keep the node's ports and look alive to its peers."""
    log = place.runtime_dir / "log"
    command = [sys.executable, "-m", "tests.support.probe_node", json.dumps(place.arguments("prefill"))]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            with client(place) as http:
                wait_ready(http, process.poll, log)
                assert http.post("/v1/completions", json=place.leg(PLAIN, "prefill")).status_code == 200
            engine = children_of(process.pid)
            assert engine
        finally:
            process.kill()
    assert not still_running(engine)
