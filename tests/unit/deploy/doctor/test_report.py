import json
from dataclasses import replace

from baton.contracts.probe import Pushed
from baton.deploy.doctor.catalogue import Finding
from baton.deploy.doctor.fit import Tried
from baton.deploy.doctor.report import Examination, as_json, status, text
from tests.unit.deploy.doctor.known import VERSIONS, decode, machine, prefill

WRONG = Finding(code="port", where="here", what="port 1 is taken")
WARNING = Finding(code="draining", where="there", what="it drains")


def seen() -> Examination:
    """A deployment with nothing wrong."""
    push = Pushed(first_s=0.01, latency_s=0.002, bytes_per_s=125e6, after_idle_s=0.003)
    tried = Tried(prefill=prefill(), decode=decode(), push=push, idle_s=5)
    return Examination(findings=[], nodes=[prefill(), decode()], tried=[tried])


def test_each_finding_has_a_line_and_its_fix_another() -> None:
    """What is wrong comes before warnings."""
    lines = text(Examination(findings=[WARNING, WRONG])).splitlines()

    assert lines[0] == "wrong    port  here: port 1 is taken"
    assert lines[1].split()[:2] == ["fix:", "End"]
    assert lines[2].startswith("warning  draining  there: ")
    assert lines[-1] == "1 wrong, 1 warning"


def test_what_was_measured_is_told() -> None:
    """Bandwidth also as tokens of this model's KV: 1024 B in blocks of 128. In local mode: a machine's versions and limits."""
    local = text(Examination(findings=[], versions=VERSIONS, machine=machine()))
    told = text(seen())

    assert "Baton 0.1.0, vLLM 0.32.0, Mooncake 0.3.13" in local
    assert "65536 open files, any pinned memory, RDMA cards: none" in local
    assert "1000 Mbit/s (15625000 tokens of KV a second), 2.00 ms, 3.00 ms after 5 s without a byte" in told
    assert told.endswith("nothing is wrong")


def test_the_status_counts_what_is_wrong_and_if_asked_warnings() -> None:
    assert status(Examination(findings=[]), strict=True) == 0
    assert status(Examination(findings=[WARNING]), strict=False) == 0
    assert status(Examination(findings=[WARNING]), strict=True) == 1
    assert status(Examination(findings=[WRONG]), strict=False) == 1


def test_json_says_the_same() -> None:
    """With the fix, and everything that was measured; a name that goes, or changes, breaks the CI of users."""
    said = json.loads(as_json(replace(seen(), findings=[WRONG, WARNING], machine=machine())))
    empty = json.loads(as_json(Examination(findings=[])))
    finding = {"code": "port", "severity": "wrong", "where": "here", "what": "port 1 is taken", "fix": WRONG.fix}
    machines = {"data_host", "protocol", "open_files", "locked_bytes", "rdma_devices"}
    measured = {"mbit_s": 1000, "tokens_s": 15625000, "latency_ms": 2, "first_ms": 10, "idle_s": 5, "after_idle_ms": 3}

    assert set(said) == set(empty) == {"wrong", "warnings", "findings", "versions", "machine", "nodes", "pairs"}
    assert (said["wrong"], said["warnings"]) == (1, 1)
    assert said["findings"][0] == finding
    assert set(said["machine"]) == set(said["nodes"][0]["machine"]) == machines
    assert set(said["nodes"][0]) == {"url", "role", "says", "machine"}
    assert set(said["nodes"][0]["says"]) == {"role", "state", "model", "versions", "weights", "control_addresses"}
    assert [node["says"]["state"] for node in said["nodes"]] == ["ready", "ready"]
    assert said["pairs"] == [{"prefill": prefill().url, "decode": decode().url, **measured}]
    failed = Examination(findings=[], tried=[Tried(prefill=prefill(), decode=decode(), push=Pushed(problem="failed"))])
    assert json.loads(as_json(failed))["pairs"][0]["mbit_s"] is None
    assert "pair" not in text(failed)
