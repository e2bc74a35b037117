import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.proxy.figures import ASGI, BATON, HTTPX
from benchmarks.proxy.subjects import GREEDY

TINY = (
    *("--rounds", "2", "--short-requests", "20", "--at-once", "4"),
    *("--single-requests", "3", "--streams", "8", "--starts", "2"),
)


@pytest.mark.exhaustive
def test_a_tiny_session_measures_every_proxy_of_ours_and_loses_no_request(tmp_path: Path) -> None:
    """Each subject hands over every request; the session itself fails if a count or a byte is wrong."""
    out = tmp_path / "proxy.json"
    command = [sys.executable, "-m", "benchmarks.proxy", *TINY, "--tokens", "5", "--itl-ms", "5"]
    ended = subprocess.run(
        [*command, "--json", str(out), "--markdown", str(tmp_path / "proxy.md"), "--peers", str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )

    assert ended.returncode == 0, ended.stderr
    found = json.loads(out.read_text())
    assert set(found["samples"]) == {BATON, GREEDY, ASGI, HTTPX}
    assert set(found["missing"]) == {"vllm-router", "sglang-router"}
    for samples in found["samples"].values():
        assert [(sample["short_requests"], sample["streams"], sample["chunks"]) for sample in samples] == [
            (20, 8, 40)
        ] * 2
        assert all(sample["short_cpu_s"] > 0 and sample["streams_cpu_s"] > 0 for sample in samples)
    assert (tmp_path / "proxy.md").read_text().count("| baton |") >= 1
