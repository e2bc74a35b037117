import re
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from baton.node.errors import StartRefusedError
from baton.node.startup import checks


@pytest.mark.parametrize("patience_s", [0.0, 0.2])
def test_a_taken_port_is_refused(patience_s: float) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartRefusedError, match=f"control port {port} on 127.0.0.1 is not free"):
            checks.check_port("127.0.0.1", port, "control", patience_s)


def test_a_port_that_is_let_go_in_time_passes() -> None:
    """The workers of a node that was killed hold its ports until they see it."""
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    leaving = threading.Timer(0.3, taken.close)
    leaving.start()
    try:
        checks.check_port("127.0.0.1", port, "HTTP", patience_s=30.0)
    finally:
        leaving.join()


@pytest.mark.parametrize("port", [0, 65536])
def test_an_impossible_port_is_refused(port: int) -> None:
    """An HTTP port near the top leaves no room for the control port above it."""
    with pytest.raises(StartRefusedError, match=str(port)):
        checks.check_port("127.0.0.1", port, "control")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("", "no model is given: name a folder or a hub id"),
        (".", "the folder . holds no model: it has no config.json"),
        *(
            (name, f"the model {name} does not exist")
            for name in ("/no/such/folder", "./no-such", "~/models/m", "a/b/c", "bad name")
        ),
    ],
)
def test_a_missing_model_is_refused(model: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node alone has no embedded model to fall back to; what is no hub id must be there, and be a model's folder."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StartRefusedError, match=re.escape(words)):
        checks.check_model(model)


def test_models_that_may_exist_pass(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "m.gguf").touch()
    for model in (str(tmp_path), str(tmp_path / "m.gguf"), "Qwen/Qwen2.5-0.5B", "gpt2"):
        checks.check_model(model)


def test_the_secret_must_be_set_readable_and_long_enough(tmp_path: Path) -> None:
    """Without the proxy's secret no transfer could be accepted."""
    short, good = tmp_path / "short", tmp_path / "good"
    short.write_text("short")
    good.write_text("long enough to be a secret")
    for path, words in ((None, "secret_file"), (tmp_path / "none", "none"), (short, "16 characters")):
        with pytest.raises(StartRefusedError, match=words):
            checks.check_secret(path)
    assert checks.check_secret(good) == good


def test_the_runtime_folder_must_hold_sockets(tmp_path: Path) -> None:
    checks.check_runtime_dir(Path("/tmp"))
    with pytest.raises(StartRefusedError, match="does not exist"):
        checks.check_runtime_dir(tmp_path / "none")
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    with pytest.raises(StartRefusedError, match="too long"):
        checks.check_runtime_dir(deep)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("ModuleNotFoundError: No module named 'mooncake'", "extras"),
        ("Traceback\nImportError: something else\n", "ImportError: something else"),
        ("", "no reason given"),
        # Each library comes from elsewhere; Mooncake's own message names neither Mooncake nor a package.
        *(
            (
                f"Traceback (most recent call last):\n  …\nImportError: {library}: cannot open shared object file\n",
                f"{library}.*{words}",
            )
            for library, words in (
                ("libcudart.so.12", "mooncake-transfer-engine-cuda13 for CUDA 13"),
                ("libcuda.so.1", "NVIDIA's driver"),
                ("libascendcl.so", r"set_env\.sh"),
                ("libmlx5.so.1", "apt-get install .*ibverbs-providers"),
            )
        ),
    ],
)
def test_import_failures_are_explained(error: str, words: str) -> None:
    assert re.search(words, checks.explain_import_failure(error))


@pytest.mark.parametrize("code", [0, 1])
def test_the_transfer_engine_is_tried_in_another_process(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading it here would make forking unsafe."""
    done = subprocess.CompletedProcess(args=[], returncode=code, stdout="", stderr="No module named 'mooncake'")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    if code == 0:
        checks.check_transfer_engine()
    else:
        with pytest.raises(StartRefusedError, match="not installed"):
            checks.check_transfer_engine()


def test_a_transfer_engine_that_hangs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that does not answer keeps an import waiting; that is a sentence, and no traceback."""

    def run(command: list[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(command, 60)

    monkeypatch.setattr(subprocess, "run", run)

    with pytest.raises(StartRefusedError, match=r"Mooncake cannot be imported: .* within 60 s"):
        checks.check_transfer_engine()


def test_pips_cuda_runtime_counts_although_only_torch_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It lies in no folder that the loader looks into; in vLLM's processes torch has loaded it before Mooncake."""
    asked: list[str] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(command[-1])
        missing = "ImportError: libcudart.so.13: cannot open shared object file" if len(asked) == 1 else ""
        return subprocess.CompletedProcess(args=command, returncode=1 if missing else 0, stdout="", stderr=missing)

    monkeypatch.setattr(subprocess, "run", run)

    checks.check_transfer_engine()

    assert asked == ["import mooncake.engine", "import torch; import mooncake.engine"]
