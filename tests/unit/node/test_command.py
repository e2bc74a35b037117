from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from baton.contracts.configuration.schema import BatonConfig, NodeConfig
from baton.contracts.kv_transfer import Role
from baton.decode_node import __main__ as decode_main
from baton.node import command
from baton.node.command import parse, with_passthrough
from baton.prefill_node import __main__ as prefill_main


def test_our_flags_become_settings_and_the_others_pass_on() -> None:
    line = parse(
        "prefill", ["--model", "/m", "--dtype", "float32", "--port=8101", "--layer-sync", "forward", "-tp", "2"]
    )

    assert line.overrides == {
        "prefill_node.model": "/m",
        "prefill_node.port": "8101",
        "transfer.layer_sync": "forward",
    }
    assert line.passthrough == ("--dtype", "float32", "-tp", "2")


def test_settings_belong_to_the_nodes_own_section() -> None:
    line = parse("decode", ["--advertise-host", "10.0.0.5", "--secret-file", "s", "--config", "b.yaml"])

    assert line.overrides == {"decode_node.advertise_host": "10.0.0.5", "cluster.secret_file": "s"}
    assert line.file == Path("b.yaml")
    assert parse("prefill", ["--control-port", "7"]).overrides == {"prefill_node.control_port": "7"}
    assert parse("decode", ["--control-port", "7"]).overrides == {"decode_node.control_port": "7"}


def test_a_flag_given_twice_is_refused_and_a_shortened_one_is_not_ours(capsys: pytest.CaptureFixture[str]) -> None:
    """One of the two would be ignored; the short one may be a flag of vLLM."""
    assert parse("prefill", ["--mod", "x"]).passthrough == ("--mod", "x")
    with pytest.raises(SystemExit) as stopped:
        parse("decode", ["--port", "1", "--port", "2"])
    assert stopped.value.code == 2
    assert "--port is given twice" in capsys.readouterr().err


def test_flags_of_the_command_line_follow_those_of_the_file() -> None:
    config = BatonConfig(decode_node=NodeConfig(vllm_args=("--dtype", "auto")))
    config = with_passthrough("decode", config, ("--dtype", "float32"))

    assert config.decode_node.vllm_args == ("--dtype", "auto", "--dtype", "float32")


@pytest.mark.parametrize(("role", "module"), [("prefill", prefill_main), ("decode", decode_main)])
def test_a_node_runs_with_its_role_and_a_folder_of_its_own(
    role: Role, module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[tuple[Role, BatonConfig, Path, int]] = []

    def run(role: Role, config: BatonConfig, runtime_dir: Path, *, own_flags: list[str]) -> None:
        assert "--drain-timeout-s" in own_flags
        runs.append((role, config, runtime_dir, runtime_dir.stat().st_mode & 0o777))

    monkeypatch.setattr(command, "run", run)
    monkeypatch.chdir(tmp_path)

    assert module.main(["--model", "/m", "--max-num-seqs", "8"]) == 0
    ((ran_as, config, runtime_dir, mode),) = runs
    node = config.prefill_node if role == "prefill" else config.decode_node
    default = NodeConfig(port=8100 if role == "prefill" else 8200)
    assert ran_as == role
    assert node == replace(default, model="/m", vllm_args=("--max-num-seqs", "8"))
    assert mode == 0o700
    assert not runtime_dir.exists()


def test_mistakes_in_the_configuration_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "baton.yaml"
    file.write_text("decode_node: {modle: x}\n")

    assert command.main("decode", ["--config", str(file), "--port", "many"]) == 2
    told = capsys.readouterr().err
    assert "did you mean decode_node.model?" in told
    assert "--port" in told
