import os
import runpy
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import Mock

import pytest

from baton.contracts.configuration.schema import BatonConfig, ClusterConfig, NodeConfig
from baton.model_runner import choose
from baton.model_runner.channel import RUNTIME_DIR_VARIABLE, STEP_TIMEOUT_VARIABLE
from baton.node import middleware, server
from baton.node.drain import StopSignals
from baton.node.errors import StartRefusedError
from baton.node.startup import checks
from tests.support.ports import free_port


@pytest.fixture
def config(tmp_path: Path) -> BatonConfig:
    (tmp_path / "secret").write_text("long enough to be a secret")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return BatonConfig(
        cluster=ClusterConfig(secret_file=tmp_path / "secret"),
        decode_node=NodeConfig(model=str(tmp_path / "model"), port=free_port()),
    )


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """A vLLM whose server notes its arguments; the process is as before afterwards."""
    served: list[list[str]] = []
    package = ModuleType("vllm.entrypoints.launchers.api_server")
    package.entry = SimpleNamespace(main=lambda: served.append(sys.argv[1:]))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.setattr(choose, "detect_device", lambda: "cpu")
    monkeypatch.setattr(checks, "check_transfer_engine", lambda: None)
    monkeypatch.setattr(sys, "argv", ["test"])
    monkeypatch.setattr(middleware, "_configured", [])
    before = dict(os.environ)
    yield served
    os.environ.clear()
    os.environ.update(before)


def node(config: BatonConfig, **changes: object) -> BatonConfig:
    return replace(config, decode_node=replace(config.decode_node, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(("model_runner", "worker"), [("auto", "Worker"), ("engine", "EngineWorker")])
def test_a_checked_node_hands_over_to_vllm(
    config: BatonConfig, vllm: list[list[str]], tmp_path: Path, model_runner: str, worker: str
) -> None:
    server.run("decode", node(config, model_runner=model_runner, step_timeout_s=300.0), tmp_path)

    ((*arguments,),) = vllm
    assert arguments[arguments.index("--worker-cls") + 1] == f"baton.model_runner.cpu.{worker}"
    told = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", RUNTIME_DIR_VARIABLE: str(tmp_path), STEP_TIMEOUT_VARIABLE: "300.0"}
    assert told.items() <= os.environ.items()
    assert middleware._configured[0].role == "decode"
    assert "long enough" not in " ".join(arguments)  # the secret: arguments are visible to the whole machine


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "/no/such/model"}, "/no/such/model"),
        ({"vllm_args": ("--kv-transfer-config", "{}")}, "--kv-transfer-config"),
        ({"vllm_args": ("--no-such-flag",)}, "has no flag --no-such-flag"),
        ({"vllm_args": ("-tp", "none")}, "--tensor-parallel-size"),
        ({"advertise_host": "203.0.113.7"}, "203.0.113.7"),
        ({"host": "0.0.0.0", "advertise_host": "127.0.0.1"}, "other machines cannot reach"),
        ({"port": 0}, "port 0"),
        ({"vllm_args": ("--distributed-executor-backend", "ray")}, "start Baton on each host"),
        ({"beside": ({"kv_connector": "NixlConnector"},)}, "NixlConnector cannot stand in `beside`"),
        ({"vllm_args": ("--spec-method", "ngram_gpu")}, "'ngram_gpu' needs an accelerator"),
    ],
)
@pytest.mark.usefixtures("vllm")
def test_a_refusal_is_one_sentence_and_exit_status_2(
    changes: dict[str, object],
    words: str,
    config: BatonConfig,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as stopped:
        server.run("decode", node(config, **changes), tmp_path)

    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("decode node: ")
    assert words in line


def test_a_folder_that_cannot_hold_the_sockets_is_refused(
    config: BatonConfig, vllm: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        server.run("decode", config, tmp_path / "nowhere")

    assert "nowhere does not exist" in capsys.readouterr().err
    assert vllm == []


@pytest.mark.usefixtures("vllm")
def test_a_prefill_nodes_control_port_must_be_free_too(
    config: BatonConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "PORT_PATIENCE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        section = replace(config.decode_node, control_port=taken.getsockname()[1])
        with pytest.raises(SystemExit):
            server.run("prefill", replace(config, prefill_node=section), tmp_path)
    assert "control port" in capsys.readouterr().err


FURTHER_HOST = ("--nnodes", "2", "--node-rank", "1", "--master-addr", "10.0.0.1", "-tp", "2")


def test_a_further_host_of_a_node_serves_no_http(
    config: BatonConfig, vllm: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs its ranks alone, with the same arguments; of all ports it wants those of its ranks."""
    followed: list[list[str]] = []
    wanted: list[int] = []
    monkeypatch.setattr(server, "follow", lambda arguments, _timeout_s: followed.append(arguments))
    monkeypatch.setattr(checks, "check_port", lambda _host, port, *_: wanted.append(port))
    section = replace(config.decode_node, vllm_args=FURTHER_HOST, control_port=9100)
    server.run("prefill", replace(config, prefill_node=section), tmp_path)

    assert vllm == []
    assert wanted == [9101]
    assert os.environ["VLLM_HOST_IP"] == "127.0.0.1"
    assert followed[0][-len(FURTHER_HOST) :] == list(FURTHER_HOST)


@pytest.mark.usefixtures("vllm")
def test_being_stopped_while_starting_is_no_crash(
    config: BatonConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal reaches us as KeyboardInterrupt until vLLM's server has handlers of its own."""
    package = sys.modules["vllm.entrypoints.launchers.api_server"]
    monkeypatch.setattr(package, "entry", Mock(main=Mock(side_effect=KeyboardInterrupt)))
    with pytest.raises(SystemExit) as stopped:
        server.run("decode", config, tmp_path)
    assert stopped.value.code == 130


@pytest.mark.parametrize(("watched", "told", "status"), [(True, False, 1), (True, True, None), (False, False, None)])
def test_a_server_that_ends_by_itself_ends_the_node_with_status_1(
    config: BatonConfig,
    vllm: list[list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    watched: bool,
    told: bool,
    status: int | None,
) -> None:
    """VLLM's server returns in order when its engine dies; one that was told to stop, or never served, did not fail."""
    monkeypatch.setattr(server, "STOP_SIGNALS", signals := StopSignals())
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(signal, "siginterrupt", lambda *_: None)
    if watched:
        signals.watch()
    if told:
        signals.record_stop()

    try:
        server.run("decode", config, tmp_path)
        ended = None
    except SystemExit as stopped:
        ended = stopped.code

    assert len(vllm) == 1
    assert ended == status
    assert ("decode node: vLLM's server ended by itself" in capsys.readouterr().err) == (status is not None)


@pytest.mark.usefixtures("vllm")
def test_an_older_vllm_is_run_as_a_script(config: BatonConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its server had no other entry. No exception is being handled then: the connector looks for one in the engine."""
    scripts: list[tuple[str, object]] = []
    monkeypatch.setitem(sys.modules, "vllm.entrypoints.launchers.api_server", None)
    monkeypatch.setattr(runpy, "run_module", lambda name, **_: scripts.append((name, sys.exception())))

    server.run("decode", config, tmp_path)

    assert scripts == [("vllm.entrypoints.openai.api_server", None)]
    assert sys.argv[1:3] == ["--model", config.decode_node.model]


@pytest.mark.usefixtures("vllm")
def test_a_library_that_the_server_lacks_is_no_older_version(
    config: BatonConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is vLLM's to tell."""
    package = sys.modules["vllm.entrypoints.launchers.api_server"]
    monkeypatch.delattr(package, "entry")
    broken = Mock(side_effect=ModuleNotFoundError("No module named 'x'", name="x"))
    monkeypatch.setattr(package, "__getattr__", broken, raising=False)
    with pytest.raises(ModuleNotFoundError):
        server.run("decode", config, tmp_path)


@pytest.mark.usefixtures("vllm")
def test_a_machine_that_vllm_or_the_transport_cannot_serve_is_refused_before_a_model_is_loaded(
    config: BatonConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_vllm() -> str:
        raise ImportError("No module named 'vllm'")

    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    for detect, words in (
        (no_vllm, "vLLM cannot be imported"),
        (lambda: "tpu", "device 'tpu'"),
        (lambda: "npu", "transfer.protocol 'tcp' cannot carry the KV of a npu device: use 'ascend'"),
        (lambda: "cpu", "VLLM_USE_V2_MODEL_RUNNER=1 asks for vLLM's V2 runner"),
    ):
        monkeypatch.setattr(choose, "detect_device", detect)
        with pytest.raises(SystemExit) as stopped:
            server.run("decode", config, tmp_path)
        assert stopped.value.code == 2
        assert words in capsys.readouterr().err

    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER")
    monkeypatch.setattr(checks, "check_transfer_engine", Mock(side_effect=StartRefusedError("no Mooncake")))
    with pytest.raises(SystemExit):
        server.run("decode", config, tmp_path)
    assert capsys.readouterr().err == "decode node: no Mooncake\n"


@pytest.mark.usefixtures("vllm")
def test_vllm_looks_for_no_process_on_its_way_out(
    config: BatonConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would stumble over its own engine; fails when a version of vLLM has another name for it."""
    from vllm.entrypoints.launchers import launcher

    monkeypatch.setattr(launcher, server.PORT_SEARCH, lambda _port: "its own engine")
    server.run("decode", config, tmp_path)

    assert getattr(launcher, server.PORT_SEARCH)(8000) is None
