"""The wheel, away from the tree: installed elsewhere, run in an empty folder. `WHEEL=dist/….whl` has a given one tried."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from baton.contracts.http import DISAGGREGATED, PATH_HEADER
from baton.deploy.release import build
from tests.support.installed import Installed, install
from tests.support.ports import free_port

pytest.importorskip("hatchling", reason="the build back end comes with requirements/dev.txt")
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = sorted(f"baton.{link.name}" for link in (ROOT / "baton").iterdir() if link.is_symlink())
START_S = 240.0
STOP_S = 60.0
CHAT = {"model": "baton-embedded", "messages": [{"role": "user", "content": "Who is Clara Voss?"}], "max_tokens": 20}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel that is named, or one that is built now."""
    folder = tmp_path_factory.mktemp("wheel")
    given = os.environ.get("WHEEL")
    wheel = Path(given).resolve() if given else build(ROOT, folder / "built", epoch_s=1_800_000_000).wheel
    return install(wheel, folder / "environment")


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """A folder in which there is nothing, so that nothing can be found in it."""
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


def run(installed: Installed, folder: Path, *argv: str) -> str:
    """Run a command of the environment to its end, and return what it printed."""
    done = subprocess.run(
        argv, cwd=folder, env=installed.environ, capture_output=True, text=True, check=False, timeout=START_S
    )
    assert done.returncode == 0, f"{argv}\n{done.stdout}{done.stderr}"
    return done.stdout


@dataclass
class Running:
    process: subprocess.Popen[bytes]
    log: Path

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + START_S
        while not condition():
            assert self.process.poll() is None, f"it ended:\n{self.said}"
            assert time.monotonic() < deadline_s, self.said
            time.sleep(0.1)

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGTERM)  # SIGINT is ignored where the tests were started in the background
        return self.process.wait(STOP_S)

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")


@contextmanager
def running(
    installed: Installed, folder: Path, *argv: str, environ: Mapping[str, str] | None = None
) -> Iterator[Running]:
    """Run `baton …`; what is left of it is killed."""
    log = folder.parent / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [installed.baton, *argv],
            cwd=folder,
            env={**installed.environ, **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield Running(process, log)
    finally:
        process.kill()
        process.wait()


def test_its_modules_are_the_wheels(installed: Installed, empty: Path) -> None:
    """No path leads to the tree, and each package comes from where the wheel was installed."""
    script = f"""
import importlib, json, sys
files = [importlib.import_module(name).__file__ for name in {PACKAGES}]
print(json.dumps([sys.path, files]))
"""
    path, files = json.loads(run(installed, empty, "python", "-c", script))

    assert str(ROOT) not in path
    assert files == [str(installed.site.joinpath(*name.split("."), "__init__.py")) for name in PACKAGES]


def test_its_commands_answer_in_an_empty_folder(installed: Installed, empty: Path) -> None:
    """Words and settings; the version is the one that the wheel was built with."""
    about = next(installed.site.glob("baton_serve-*.dist-info")).name

    assert "serve" in run(installed, empty, installed.baton, "--help")
    assert run(installed, empty, installed.baton, "--version") == f"baton {about.split('-')[1].removesuffix('.dist')}\n"
    assert "port: 8000" in " ".join(run(installed, empty, installed.baton, "config", "check").split())
    assert list(empty.iterdir()) == []


def test_it_serves_its_own_model_over_both_nodes(installed: Installed, empty: Path) -> None:
    """`baton serve` answers a chat and shows a dashboard, `baton loadtest` replays the trace that comes with it, and the nodes ran the wheel's code."""
    port, prefill, decode = free_port(), free_port(), free_port()
    bases = {"BATON_SERVE_PREFILL_BASE_PORT": str(prefill), "BATON_SERVE_DECODE_BASE_PORT": str(decode)}
    url = f"http://127.0.0.1:{port}"
    find_trace = "from baton.loadtest.traffic.recorded import CONVERSATION; print(CONVERSATION)"
    trace = run(installed, empty, "python", "-c", find_trace).strip()
    load = ["--trace", trace, "--requests", "2", "--time-scale", "0.001", "--max-input", "64", "--max-output", "4"]
    with running(installed, empty, "serve", "--port", str(port), environ=bases) as stack:
        stack.wait_for(lambda: "Serving baton-embedded" in stack.said)
        answer = httpx.post(f"{url}/v1/chat/completions", json=CHAT, timeout=START_S)
        page = httpx.get(f"{url}/dashboard", follow_redirects=True)
        parts = [httpx.get(f"{url}/dashboard/{name}") for name in ("main.js", "style.css", "icon.svg")]
        report = empty / "report"
        run(installed, empty, installed.baton, "loadtest", "run", "--url", url, *load, "--out", str(report))
        status = stack.interrupt()

    assert (answer.status_code, answer.headers[PATH_HEADER]) == (200, DISAGGREGATED), answer.text
    assert answer.json()["choices"][0]["message"]["content"]
    assert (page.status_code, "</html>" in page.text) == (200, True)
    assert [part.status_code for part in parts] == [200, 200, 200]
    assert list(report.glob("*.html"))
    assert status == 0, stack.said
    for module in ("deploy/zygote", "proxy/app", "node/server", "kv_connector/connector", "model_runner/cpu"):
        folder, _, name = module.rpartition("/")
        assert list((installed.site / "baton" / folder / "__pycache__").glob(f"{name}.*.pyc")), (
            f"{module} came from elsewhere"
        )
