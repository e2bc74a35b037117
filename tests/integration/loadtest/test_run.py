"""`loadtest run` against a fake server: counts and kinds exact, no assertion on speed."""

import asyncio
import gc
import os
import pty
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from baton.loadtest.__main__ import main
from baton.loadtest.compare.command import obstacles
from baton.loadtest.errors import RunError
from baton.loadtest.measures.record import STATUS, Record
from baton.loadtest.report.text import text_report
from baton.loadtest.result import Result, read_result
from baton.loadtest.run import build, command
from baton.loadtest.run.build import parse
from tests.support.cluster import until_true
from tests.support.fake_openai import FakeOpenAI, serving
from tests.support.ports import free_port
from tests.unit.loadtest.records import failed, record
from tests.unit.loadtest.results import result, stage


@pytest.fixture(autouse=True)
def no_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other tests have imported takes a second to look through before each stage."""
    monkeypatch.setattr(gc, "collect", lambda: 0)


async def taken(fake: FakeOpenAI, *argv: str) -> Result:
    async with serving(fake) as url, asyncio.timeout(60):
        given = parse(["--url", url, *argv])
        return await command.run(given, build.source(given))


async def spawned(*argv: str, stderr: int = asyncio.subprocess.PIPE) -> asyncio.subprocess.Process:
    words = [sys.executable, "-m", "baton.loadtest", *argv]
    return await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE, stderr=stderr)


async def test_what_was_done_is_what_is_counted() -> None:
    """Requests, tokens, errors, users at once; the model is the server's first."""
    fake = FakeOpenAI(ttft_s=0.02)
    fake.faults = {3: "cut", 6: "status"}
    got = await taken(fake, "--concurrency", "3", "--requests", "9", "--max-tokens", "5", "--input-tokens", "30")

    (stage,) = got.stages
    assert (len(fake.bodies), fake.most_open) == (9, 3)
    wanted: dict[str, Any] = {"completed": 7, "failed": 2, "errors": {"status 503": 1, "cut": 1}}
    wanted |= {"total_input_tokens": 210, "total_output_tokens": 35}
    assert {key: stage.figures[key] for key in wanted} == wanted
    assert all(body["model"] == "fake-model" and body["max_tokens"] == 5 for body in fake.bodies)
    assert stage.client.cpu_s > 0
    assert got.interrupted is False


async def test_a_sweep_has_a_stage_for_each_rate_and_repeats_no_prompt() -> None:
    """Else the second stage would find the first one's in the cache. What warms up is sent, and is in no figure."""
    fake = FakeOpenAI()
    got = await taken(fake, "--rates", "50,100", "--requests", "5", "--max-tokens", "2", "--warmup", "3")

    assert [stage.figures["completed"] for stage in got.stages] == [5, 5]
    assert len(fake.bodies) == len({str(body["prompt"]) for body in fake.bodies}) == 13
    assert all(record.due_s is not None for stage in got.stages for record in stage.records)


async def test_a_second_run_finds_nothing_of_the_first_in_a_cache() -> None:
    """Prompts are its own, and the two may be compared. The seed that was drawn is in the result, and repeats a run."""
    fake = FakeOpenAI()
    argv = ("--requests", "6", "--max-tokens", "4", "--length-spread", "0.5")
    first, second = await taken(fake, *argv), await taken(fake, *argv)
    prompts = [tuple(body["prompt"]) for body in fake.bodies]
    await taken(fake, *argv, "--seed", str(first.arguments["seed"]))

    assert len(set(prompts)) == 12
    assert obstacles(first, second) == []
    assert [tuple(body["prompt"]) for body in fake.bodies[12:]] == prompts[:6]
    assert text_report(first).endswith(f"\n\nSeed: {first.arguments['seed']}")


async def test_requests_that_were_still_in_line_at_the_end_are_counted() -> None:
    """None of those that were due is left out without a word."""
    fake = FakeOpenAI(ttft_s=0.6)
    got = await taken(fake, "--rate", "40", "--burstiness", "inf", "--seconds", "0.5", "--concurrency", "2")

    (stage,) = got.stages
    assert len(stage.records) <= 2
    assert (len(stage.records) + stage.unsent, stage.unfinished) == (19, 0)  # one of 20 is due as the time ends


async def test_a_conversation_at_baton_is_reported_with_its_nodes_figures() -> None:
    """What the fake said is in the next turn; the path's header from each answer; `/metrics` after minus before."""
    fake = FakeOpenAI()
    fake.path = "disaggregated"
    conversation = ("--endpoint", "chat", "--dataset", "multi-turn", "--turns", "2", "--requests", "2")
    async with serving(FakeOpenAI()) as node:
        got = await taken(fake, *conversation, "--max-tokens", "2", "--metrics-url", node, "http://127.0.0.1:9")

    first, second = (body["messages"] for body in fake.bodies)
    assert second[:2] == [first[0], {"role": "assistant", "content": " wörd0 wörd1"}]
    (stage,) = got.stages
    assert stage.figures["paths"] == {"disaggregated": 2}
    assert [bool(node.note) for node in stage.nodes] == [False, True]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_ctrl_c_keeps_and_reports_what_was_measured(tmp_path: Path, number: int) -> None:
    """A real process, a real signal: status 130, both forms of the report, and the request that hung is given up.

    A terminal shows how far it is, on standard error alone.
    """
    fake = FakeOpenAI()
    fake.faults = dict.fromkeys(range(5, 99), "hang")
    out = tmp_path / "out"
    shown, (ours, theirs) = bytearray(), pty.openpty()
    asyncio.get_running_loop().add_reader(ours, lambda: shown.extend(os.read(ours, 4096)))
    async with serving(fake) as url:
        argv = ["run", "--url", url, "--requests", "99", "--max-tokens", "3", "--out", str(out)]
        process = await spawned(*argv, stderr=theirs)
        os.close(theirs)
        await until_true(lambda: b"1 user: 5/99 requests, 1 in flight, 0 failed" in shown, timeout_s=30)
        asyncio.get_running_loop().remove_reader(ours)
        process.send_signal(number)
        stdout, _ = await asyncio.wait_for(process.communicate(), 30)
        await until_true(lambda: not fake.open)
    os.close(ours)

    assert process.returncode == 130
    assert b"Successful requests:                     5 " in stdout
    assert b"Stopped by the user" in stdout
    assert b"in flight" not in stdout
    got = read_result(out)
    assert (got.interrupted, len(got.stages[0].records), got.stages[0].unfinished) == (True, 5, 1)
    assert {file.name for file in out.iterdir()} == {"result.json", "requests.csv", "report.md", "report.html"}


async def test_a_reader_that_has_seen_enough_costs_no_file(tmp_path: Path) -> None:
    """`loadtest run … | head -1`: everything is written but the key, and no traceback or progress line is shown."""
    fake = FakeOpenAI()
    async with serving(fake) as url:
        argv = ["--requests", "2", "--api-key", "s3cret", "--out", str(tmp_path)]
        process = await spawned("run", "--url", f"{url}/v1", *argv)
        assert process.stdout is not None
        process.stdout._transport.close()  # type: ignore[attr-defined]  # asyncio offers no other way
        stderr = await asyncio.wait_for(process.stderr.read(), 30) if process.stderr else b""
        await asyncio.wait_for(process.wait(), 30)

    assert stderr == b""
    assert read_result(tmp_path).stages[0].figures["completed"] == 2
    assert fake.headers[0]["authorization"] == "Bearer s3cret"
    assert not any("s3cret" in file.read_text() for file in sorted(tmp_path.glob("*")))  # noqa: ASYNC240  # small files


async def test_what_warms_up_must_be_answered() -> None:
    """It is not measured; with the commonest reason."""
    fake = FakeOpenAI()
    fake.faults = dict.fromkeys(range(9), "status")
    with pytest.raises(RunError, match=r"^while warming up, no request was completed: 2 of 2 failed with status"):
        await taken(fake, "--warmup", "2")

    assert len(fake.bodies) == 2


@pytest.mark.parametrize(
    ("records", "status", "words"),
    [
        ([record(), failed(STATUS)], 0, ""),
        (
            [failed(STATUS, detail="full")] * 3,
            1,
            "loadtest run: no request was completed: 3 of 3 failed with status (full)\n",
        ),
    ],
)
def test_a_run_succeeds_with_one_completed_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], records: list[Record], status: int, words: str
) -> None:
    """Its report is printed in any case."""

    async def measured(*_: object) -> Result:
        return result(stage(records))

    monkeypatch.setattr(command, "run", measured)
    assert main(["run", "--url", "http://a:1"]) == status
    said = capsys.readouterr()
    assert (said.err, "Successful requests:" in said.out) == (words, True)


@pytest.mark.parametrize("model", [[], ["--model", "m"]])
def test_a_server_that_is_not_there_is_a_clear_error(model: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Status 1, one line, with the address."""
    url = f"http://127.0.0.1:{free_port()}"

    assert main(["run", "--url", url, *model]) == 1
    said = capsys.readouterr().err
    assert (f"no server at {url}" in said, said.count("\n")) == (True, 1)


def test_a_command_that_there_is_not_gets_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    """With status 2, or 0 for who asks for it; a wrong argument of a command is one line."""
    assert [main(argv) for argv in (["frobnicate"], [], ["--help"])] == [2, 2, 0]
    said = capsys.readouterr()
    assert said.err.count("compare") == 2 * said.out.count("compare") > 0
    assert main(["run", "--url", "nonsense"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
