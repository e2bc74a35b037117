from pathlib import Path

from benchmarks.proxy.__main__ import put
from benchmarks.proxy.figures import ASGI, BATON, HTTPX
from benchmarks.proxy.report import markdown
from benchmarks.proxy.session import Noise, Result
from benchmarks.proxy.stage import Plan
from benchmarks.proxy.subjects import Missing, Place, subjects
from benchmarks.usage import Memory
from tests.unit.benchmarks.proxy.test_figures import costs

ABOUT = {"when": "2026-01-02T03:04:05+00:00", "system": "Linux x86_64", "cpus": 2}
MISSING = [Missing("vllm-router", "it cannot be had")]


def result() -> Result:
    """Two rounds of three subjects."""
    samples = {BATON: costs(100, 120), ASGI: costs(100, 100), HTTPX: costs(700, 700)}
    memory = dict.fromkeys(samples, Memory(64 << 20, 32 << 20))
    return Result(samples=samples, memory=memory, noise=Noise(0.1, 0.9, [0.01, 0.02]))


def test_the_report_says_what_was_not_reached_and_who_was_not_there() -> None:
    """A missed target, a subject that is missing with its reason, and the noise stand in the text."""
    text = markdown(Plan(rounds=2), subjects(Path("/nowhere"))[0], MISSING, result(), ABOUT)

    assert "| CPU per request: httpx-relay ÷ baton ≥ 8 | 6.42 (5.83–7.00) | **no** |" in text
    assert "| CPU per request: baton ÷ asgi-relay ≤ 1.35 | 1.10 (1.00–1.20) | yes |" in text
    assert "| CPU per chunk: baton ÷ vllm-router ≤ 1.25 | – | vllm-router was not there |" in text
    assert "- **vllm-router**: not measured, it cannot be had" in text
    assert "at most 0.020 cores" in text
    assert "| baton | 110 (100–120) |" in text


def test_what_people_wrote_around_the_figures_stays(tmp_path: Path) -> None:
    """A second report replaces the figures between the marks, nothing else."""
    path = tmp_path / "proxy.md"
    put("old figures", path)
    path.write_text(path.read_text() + "\nWhere the time goes.\n")

    put("new figures", path)

    assert "old figures" not in path.read_text()
    assert "new figures" in path.read_text()
    assert path.read_text().endswith("Where the time goes.\n")


def test_peers_that_are_not_installed_are_named_with_the_reason(tmp_path: Path) -> None:
    """Those that are there become subjects."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "vllm-router").touch()

    found, missing = subjects(tmp_path)

    assert "vllm-router" in [subject.name for subject in found]
    assert [one.name for one in missing] == ["sglang-router"]
    place = Place(
        port=1,
        spare_port=2,
        prefill_url="http://p",
        decode_url="http://d",
        secret_file=tmp_path / "secret",
        collector_url="http://c",
    )
    assert all("http://p" in subject.command(place) and "http://d" in subject.command(place) for subject in found)
