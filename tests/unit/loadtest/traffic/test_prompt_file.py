import json
from pathlib import Path
from typing import Any

import pytest

from baton.loadtest.errors import UsageError
from baton.loadtest.traffic.recorded import read_prompts

BODY = {"model": "theirs", "prompt": "p", "max_tokens": 7, "stream": False, "top_p": 0.5}


def written(tmp_path: Path, *lines: Any) -> Path:
    """A file with a line for each value."""
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_lines_are_texts_ids_and_bodies(tmp_path: Path) -> None:
    """A body's own length wins; what is ours to decide is left out. After the last line the first comes again."""
    source = read_prompts(written(tmp_path, "a text", [1, 2], {"prompt": "x"}, BODY), chat=False, output_tokens=9)
    asks = [next(source.script(index)) for index in range(4)]

    assert next(source.script(4)) == asks[0]
    assert [ask.prompt for ask in asks] == ["a text", [1, 2], "x", "p"]
    assert [ask.output_tokens for ask in asks] == [9, 9, 9, 7]
    assert [ask.input_tokens for ask in asks] == [0, 2, 0, 0]
    assert asks[3].more == {"top_p": 0.5}


def test_a_batch_files_body_is_unwrapped(tmp_path: Path) -> None:
    """OpenAI's batch format puts it there."""
    messages = [{"role": "user", "content": "hi"}]
    asks = read_prompts(
        written(tmp_path, {"custom_id": "1", "body": {"messages": messages}}, "hello"), chat=True, output_tokens=1
    ).asks

    assert [ask.prompt for ask in asks] == [messages, [{"role": "user", "content": "hello"}]]
    assert asks[0].more == {}


@pytest.mark.parametrize(
    ("line", "chat", "words"),
    [
        ({"messages": [{"role": "user", "content": "x"}]}, False, "messages need --endpoint chat"),
        ([1, 2], True, "token ids need --endpoint completions"),
        ({"messages": "x"}, True, "no list of messages"),
        ({"question": "x"}, True, "neither a prompt"),
        ({"prompt": "x", "max_tokens": -1}, False, "max_tokens is -1"),
        ([True], False, "neither a prompt"),
    ],
)
def test_a_line_that_cannot_be_asked_is_named(tmp_path: Path, line: Any, chat: bool, words: str) -> None:
    """By its number in the file."""
    with pytest.raises(UsageError, match=f"line 2: .*{words}"):
        read_prompts(written(tmp_path, "ok", line), chat=chat, output_tokens=1)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'"ok"\n\n{"prompt"\n', "line 3: "),
        (b'"ok"\n"\xff"\n', "line 2: "),
        (b"[" * 100_000, "line 1: "),
        (b"", "has no prompts"),
        (None, "No such file"),
    ],
)
def test_a_file_without_prompts_is_refused(tmp_path: Path, content: bytes | None, words: str) -> None:
    """It is empty, not there, or a line is no JSON; blank lines count."""
    path = tmp_path / "prompts.jsonl"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(UsageError, match=words):
        read_prompts(path, chat=False, output_tokens=1)
