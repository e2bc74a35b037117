"""`loadtest run` against a fake server: counts and kinds exact, no assertion on speed."""

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from baton.loadtest.__main__ import main
from baton.loadtest.result import Result, read_result
from baton.loadtest.run import build
from baton.loadtest.run.arguments import parse
from baton.loadtest.run.command import run
from tests.support.cluster import until_true
from tests.support.fake_openai import FakeOpenAI, serving
from tests.support.ports import free_port


async def taken(fake: FakeOpenAI, *argv: str) -> Result:
    async with serving(fake) as url, asyncio.timeout(60):
        given = parse(["--url", url, *argv], {})
        return await run(given, build.source(given))


def written(folder: Path) -> str:
    return "".join(file.read_text() for file in folder.iterdir())


async def spawned(*argv: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "baton.loadtest", *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )


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


async def test_ctrl_c_keeps_and_reports_what_was_measured(tmp_path: Path) -> None:
    """A real process, a real signal: status 130, both forms of the report, and the request that hung is given up."""
    fake = FakeOpenAI()
    fake.faults = dict.fromkeys(range(5, 99), "hang")
    out = tmp_path / "out"
    async with serving(fake) as url:
        process = await spawned("run", "--url", url, "--requests", "99", "--max-tokens", "3", "--out", str(out))
        await until_true(lambda: len(fake.bodies) == 6, timeout_s=30)
        process.send_signal(signal.SIGINT)
        stdout, stderr = await asyncio.wait_for(process.communicate(), 30)
        await until_true(lambda: not fake.open)

    assert (process.returncode, stderr) == (130, b"")
    assert b"Successful requests:                     5 " in stdout
    assert b"Stopped by the user" in stdout
    got = read_result(out)
    assert (got.interrupted, len(got.stages[0].records), got.stages[0].unfinished) == (True, 5, 1)
    assert {file.name for file in out.iterdir()} == {"result.json", "requests.csv", "report.md", "report.html"}


async def test_the_command_reports_and_succeeds(tmp_path: Path) -> None:
    """The process's own words and status; no progress line where stderr is no terminal."""
    fake = FakeOpenAI()
    async with serving(fake) as url:
        argv = ["--requests", "3", "--max-tokens", "2", "--goodput", "ttft:60000", "--api-key", "s3cret"]
        process = await spawned("run", "--url", f"{url}/v1", "--out", str(tmp_path), *argv)
        stdout, stderr = await asyncio.wait_for(process.communicate(), 30)

    assert (process.returncode, stderr) == (0, b"")
    assert b"Request goodput (req/s):" in stdout
    assert fake.headers[0]["authorization"] == "Bearer s3cret"
    assert "s3cret" not in written(tmp_path)


async def test_a_reader_that_has_seen_enough_costs_no_file(tmp_path: Path) -> None:
    """`loadtest run … | head -1`: everything is written, and no traceback shown."""
    async with serving(FakeOpenAI()) as url:
        process = await spawned("run", "--url", url, "--requests", "2", "--out", str(tmp_path))
        assert process.stdout is not None
        process.stdout._transport.close()  # type: ignore[attr-defined]  # asyncio offers no other way
        stderr = await asyncio.wait_for(process.stderr.read(), 30) if process.stderr else b""
        await asyncio.wait_for(process.wait(), 30)

    assert stderr == b""
    assert read_result(tmp_path).stages[0].figures["completed"] == 2


@pytest.mark.parametrize(
    ("argv", "words", "sent"),
    [
        (["--requests", "3"], "no request was completed: 3 of 3 failed with status (the fake is overloaded)", 3),
        (["--warmup", "2"], "while warming up, no request was completed: 2 of 2 failed with status", 2),
    ],
)
async def test_no_completed_request_is_an_error(argv: list[str], words: str, sent: int) -> None:
    """With the commonest reason; what fails while warming up is not measured."""
    fake = FakeOpenAI()
    fake.faults = dict.fromkeys(range(9), "status")
    async with serving(fake) as url:
        process = await spawned("run", "--url", url, *argv)
        _, stderr = await asyncio.wait_for(process.communicate(), 30)

    assert process.returncode == 1
    assert stderr.decode().startswith(f"loadtest run: {words}")
    assert len(fake.bodies) == sent


def test_a_server_that_is_not_there_is_a_clear_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Status 1, one line, with the address."""
    port = free_port()

    assert main(["run", "--url", f"http://127.0.0.1:{port}"]) == 1
    assert main(["run", "--url", f"http://127.0.0.1:{port}", "--model", "m"]) == 1

    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all(f"no server at http://127.0.0.1:{port}" in line for line in lines)


@pytest.mark.parametrize(
    "argv",
    [
        ["run"],
        ["run", "--url", "nonsense"],
        ["frobnicate"],
        [],
    ],
)
def test_bad_arguments_are_status_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """One line, but for a command that is none: then the list of commands."""
    assert main(argv) == 2

    assert len(capsys.readouterr().err.splitlines()) == 1 or argv[:1] in ([], ["frobnicate"])


def test_help_is_not_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    with pytest.raises(SystemExit) as caught:
        main(["run", "--help"])

    assert caught.value.code == 0
    said: Any = capsys.readouterr().out
    assert "compare" in said
    assert "--burstiness" in said
