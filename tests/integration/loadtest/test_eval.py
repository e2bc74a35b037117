"""`loadtest eval` against a fake server that knows its sums, or most of them."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from baton.loadtest.__main__ import main
from tests.support.fake_openai import FakeOpenAI, serving


def questions(tmp_path: Path, n: int) -> Path:
    path = tmp_path / "questions.jsonl"
    lines = [json.dumps({"question": f"{at} + {at} ?", "answer": f"so #### {2 * at}"}) for at in range(n)]
    path.write_text("\n".join(lines) + "\n")
    return path


def adding(body: dict[str, Any]) -> str:
    """Answer right but for multiples of 4."""
    asked = body["messages"][-1]["content"] if "messages" in body else body["prompt"].rpartition("Question:")[2]
    number = int(asked.split("+")[0])
    return f" twice {number} is {2 * number + (number % 4 == 0)}."


async def evaluated(fake: FakeOpenAI, path: Path, *argv: str) -> int:
    async with serving(fake) as url, asyncio.timeout(30):
        return await asyncio.to_thread(main, ["eval", str(path), "--url", url, *argv])


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
async def test_accuracy_is_counted_exactly(tmp_path: Path, capsys: pytest.CaptureFixture[str], endpoint: str) -> None:
    """Of questions 2 to 13 those on 4, 8 and 12 are wrong; the first two are examples and not asked."""
    fake = FakeOpenAI()
    fake.words = adding
    argv = ("--shots", "2", "--endpoint", endpoint, "--json", str(tmp_path / "r.json"))
    assert await evaluated(fake, questions(tmp_path, 14), *argv) == 0

    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("accuracy: 0.7500 (9 of 12, 2-shot")
    assert "95 % interval: 0.4677 to 0.9111" in out
    found = json.loads((tmp_path / "r.json").read_text())
    assert [at + 2 for at, right in enumerate(found["right_by_question"]) if not right] == [4, 8, 12]
    assert all(body["temperature"] == 0 and "ignore_eos" not in body for body in fake.bodies)


async def test_an_error_counts_as_wrong_and_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An accuracy that leaves out what failed is none. No answer at all is status 1, with the reason."""
    fake = FakeOpenAI()
    fake.words = adding
    fake.faults = {0: "cut"}
    assert await evaluated(fake, questions(tmp_path, 4), "--shots", "1", "--concurrency", "1") == 0

    out = capsys.readouterr().out
    assert "(2 of 3," in out
    assert "errors, which count as wrong: " in out
    fake.faults = dict.fromkeys(range(99), "status")
    assert await evaluated(fake, questions(tmp_path, 3), "--shots", "0") == 1
    said = capsys.readouterr().err
    assert said == "loadtest eval: no question was answered: status the fake is overloaded\n"


def test_too_few_questions_are_bad_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2, before anything is sent."""
    for shots, words in (("3", "no question left"), ("4", "has 3 examples, and --shots asks for 4"), ("-1", "--shots")):
        argv = ["eval", str(questions(tmp_path, 3)), "--url", "http://127.0.0.1:9", "--shots", shots]
        assert main(argv) == 2
        assert words in capsys.readouterr().err
