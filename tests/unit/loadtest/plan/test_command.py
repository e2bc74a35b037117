import json
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from baton.loadtest.__main__ import main
from baton.loadtest.errors import RunError, UsageError
from baton.loadtest.plan import calibrate_command, command
from baton.loadtest.plan.calibrate_command import parse_state
from baton.loadtest.plan.calibration import read_calibration, write_calibration
from baton.loadtest.plan.command import Prices, parser
from baton.loadtest.plan.demand import demands
from baton.loadtest.plan.simulate import Shape
from baton.loadtest.run import build
from baton.loadtest.run.build import parse
from baton.loadtest.run.loops import Open
from baton.loadtest.traffic.made_up import Vocabulary
from tests.unit.loadtest.plan.made import calibration

TRACE = "".join(
    json.dumps({"timestamp": 400 * at, "input_length": 600, "output_length": 20, "hash_ids": [0, at + 1]}) + "\n"
    for at in range(40)
)
RATE = ("--rate", "4", "--requests", "50", "--input-tokens", "100", "--max-tokens", "10")
SLO = ("--goodput", "ttft:300")


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "calibration.json"
    write_calibration(calibration(overhead_s=0.01), path)
    return str(path)


def test_a_plan_names_the_nodes(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With its neighbours beside it, and the same in JSON."""
    out = tmp_path / "plan.json"

    assert main(["plan", file, *RATE, *SLO, "--json", str(out)]) == 0

    said, found = capsys.readouterr().out, json.loads(out.read_text())
    assert found["recommended"] == {"prefill": 1, "decode": 1}
    assert "1:1 ◄" in said
    assert "1:2 " in said
    assert "2:1 " in said
    by_shape = {(one["prefill"], one["decode"]): one for one in found["predictions"]}
    assert by_shape[1, 1]["goodput_share"] >= 0.9
    assert by_shape[2, 1]["ttft_mean_s"] < by_shape[1, 1]["ttft_mean_s"]


def test_a_trace_can_be_planned(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With its own arrivals, lengths and shared blocks; `--nodes` predicts only what is asked."""
    trace = tmp_path / "trace.jsonl"
    trace.write_text(TRACE)

    assert main(["plan", file, "--trace", str(trace), "--nodes", "1:1,4:2"]) == 0

    said = capsys.readouterr().out
    assert "40 in 15.6 s" in said
    assert "\n  1:1 " in said
    assert "\n  4:2 " in said
    assert "◄" not in said


def test_a_plan_sees_the_load_that_a_run_sends() -> None:
    """The same arguments give the same arrivals and lengths to both; prompts with a shared prefix share a block."""
    argv = [*RATE, "--length-spread", "0.5", "--seed", "3"]
    given = parse(["--url", "http://a:1", *argv])
    dataset = build.source(given)
    sent = [next(dataset.script(index)) for index in range(50)]
    (stage,) = build.stages(given, dataset)
    assert isinstance(stage.load, Open)

    planned = parser().parse_args(["c.json", *argv])
    found = demands(planned, build.source(planned))

    assert [one.due_s for one in found] == stage.load.due_s
    assert [one.input_tokens for one in found] == [len(ask.prompt) for ask in sent]
    assert [one.output_tokens for one in found] == [ask.output_tokens for ask in sent]

    planned = parser().parse_args(["c.json", *RATE, "--dataset", "shared-prefix", "--prefix-tokens", "60"])
    found = demands(planned, build.source(planned))
    assert found[0].blocks == found[8].blocks != found[1].blocks
    assert (found[0].block_tokens, found[0].input_tokens) == (60, 160)


@pytest.mark.parametrize(
    ("limits", "count"),
    [([], 2399), (["--seconds", "30"], 119), (["--requests", "50"], 50), (["--requests", "50", "--seconds", "5"], 19)],
)
def test_a_plan_takes_as_many_arrivals_as_come_in_ten_minutes(limits: list[str], count: int) -> None:
    """Unless it is told otherwise: the 100 requests of a run can be over before a queue has grown.

    What is due as the time ends is left out, as in a run.
    """
    given = parser().parse_args(["c.json", "--rate", "4", "--input-tokens", "10", *limits])

    found = demands(given, build.source(given))

    assert len(found) == count
    assert found[-1].due_s == pytest.approx(count / 4, rel=0.05)


def test_a_high_rate_is_simulated_for_so_many_requests(capsys: pytest.CaptureFixture[str]) -> None:
    """Ten minutes of it would take many. For how long is said, and more can be had."""
    argv = ["c.json", "--rate", "2000", "--dataset", "shared-prefix"]
    given, longer = (parser().parse_args([*argv, *more]) for more in ([], ["--seconds", "11"]))

    found = demands(given, build.source(given))

    assert len(found) == 19_999
    assert found[-1].due_s == pytest.approx(10.0, rel=0.01)
    assert "20000 requests are simulated, 10 s at this rate" in capsys.readouterr().err
    assert len(demands(longer, build.source(longer))) == 21_999
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("dataset", ["random", "shared-prefix"])
def test_no_prompt_is_made_for_a_plan(dataset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks for lengths alone; the tokens of long prompts took most of its time."""
    given = parser().parse_args(["c.json", *RATE, "--dataset", dataset])
    monkeypatch.setattr(Vocabulary, "prompt", Mock(side_effect=AssertionError))

    assert len(demands(given, build.source(given))) == 50


def test_a_plan_is_the_same_again() -> None:
    """Nothing is asked of a server, so nothing can be in its caches."""
    first, second = (parser().parse_args(["c.json", *RATE, "--length-spread", "0.5"]) for _ in range(2))

    assert demands(first, build.source(first)) == demands(second, build.source(second))


def test_the_prices_of_nodes_decide(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Mock(return_value=Shape(1, 1))
    monkeypatch.setattr(command, "cheapest", found)

    assert main(["plan", file, *RATE, *SLO, "--prefill-cost", "2", "--decode-cost", "3"]) == 0

    assert found.call_args.kwargs["prices"] == Prices(prefill=2.0, decode=3.0)


CALIBRATE = ("calibrate", "--url", "http://a:1", "--out", "f")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["plan", "FILE", *RATE], "--goodput"),
        (["plan", "FILE", *SLO], "a plan needs a load: --trace, or --rate"),
        (["plan", "FILE", "--rate", "4", "--seconds", "0.2", *SLO], "no request is due before the 0.2 s are over"),
        (["plan", "FILE", *RATE, *SLO, "--concurrency", "4"], "--concurrency is not simulated"),
        (["plan", "FILE", "--rates", "1,2", *SLO], "plan one --rate at a time"),
        (["plan", "FILE", *RATE, "--goodput", "ttft"], "--goodput ttft"),
        (["plan", "FILE", *RATE, *SLO, "--target", "1.5"], "--target: '1.5' is not above 0 and at most 1"),
        (["plan", "FILE", *RATE, "--nodes", "3"], "--nodes: '3' is not of the form P:D"),
        (["plan", "FILE", *RATE, *SLO, "--dataset", "multi-turn"], "prompts of known length"),
        (["plan", "nowhere.json", *RATE, *SLO], "cannot read nowhere.json"),
        (["calibrate", "--url", "http://a:1"], "--out"),
        ([*CALIBRATE, "--link-gbit", "1"], "--link-gbit needs --prefill-metrics"),
        ([*CALIBRATE, "--prompt-tokens", "8,9"], "three lengths or more"),
        ([*CALIBRATE, "--prompt-tokens", "8,x"], "--prompt-tokens"),
    ],
)
def test_wrong_arguments_are_usage_errors(
    file: str, argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line that names what is wrong, and exit status 2."""
    status = main([file if word == "FILE" else word for word in argv])

    said = capsys.readouterr().err
    assert (status, said.count("\n")) == (2, 1)
    assert words in said


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ("{", "is no calibration"),
        ('{"about": {"a": ' + "[" * 100_000, "is no calibration"),
        ("{}", "missing required field `prefill`"),
        ({"decode": {"step_s": 1}}, "missing required field `sequence_s`"),
        ({"prefill": {"step_s": 1, "token": 0}}, "unknown field `token`"),
        ({"prefill": {"step_s": -1.0, "token_s": 0.1}}, "prefill.step_s is -1.0, and must be 0 or more"),
        ({"prefill": {"step_s": 0.0, "token_s": 0.0}}, "prefill: a step would take no time"),
        ({"prefill": {"step_s": 1, "token_s": 0, "max_num_batched_tokens": 0}}, "max_num_batched_tokens is 0"),
        ({"decode": {"step_s": 0, "sequence_s": 0}}, "decode: a step would take no time"),
        ({"link": {"gbit_s": 1}}, "link.gbit_s needs link.kv_bytes_per_token"),
        ({"schema_version": 7}, "has schema version 7"),
    ],
)
def test_a_wrong_calibration_is_a_usage_error(tmp_path: Path, changes: Any, words: str) -> None:
    """Whatever is wrong with the file is said with its name, before anything is simulated with it."""
    path = tmp_path / "c.json"
    whole = {"prefill": {"step_s": 1, "token_s": 0}, "decode": {"step_s": 1, "sequence_s": 0}}
    path.write_text(changes if isinstance(changes, str) else json.dumps(whole | changes))

    with pytest.raises(UsageError, match=rf"c\.json.*{words}"):
        read_calibration(path)


def test_a_nodes_metrics_say_how_large_it_is() -> None:
    """Tokens of its KV pool, what it has pushed and computed; the embedded labels are vLLM's."""
    text = (
        "# TYPE vllm:cache_config_info gauge\n"
        'vllm:cache_config_info{block_size="128",num_gpu_blocks="50"} 1.0\n'
        "# TYPE baton_pushed_bytes counter\n"
        'baton_pushed_bytes_total{rank="0"} 100.0\n'
        'baton_pushed_bytes_total{rank="1"} 50.0\n'
        "# TYPE vllm:prompt_tokens counter\n"
        "vllm:prompt_tokens_total 7.0\n"
    )

    assert parse_state(text) == (6400, 150.0, 7.0)


@pytest.mark.parametrize(
    "text",
    [
        "vllm:prompt_tokens_total NaN",
        "baton_pushed_bytes_total 1e300",
        f'vllm:cache_config_info{{block_size="1",num_gpu_blocks="{10**30}"}} 1.0',
        'a{b="c", ="d"} 1',
        "vllm:cache_config_info 1.0",
    ],
)
async def test_metrics_that_make_no_calibration_are_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A plan would refuse the file that was written with them."""
    monkeypatch.setattr(calibrate_command, "fetch", AsyncMock(return_value=text.encode()))

    with pytest.raises(RunError, match="http://a:1 has no metrics of a vLLM server"):
        await calibrate_command.node_state("http://a:1")
