from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from baton.loadtest.errors import UsageError
from baton.loadtest.evaluate import Question, is_right, last_number, prompt, read_questions, score

SHOT = Question("1 + 1?", "It is 2.\n#### 2")
ASKED = Question("2 + 2?", "It is 4.\n#### 4")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("it costs 3 times $1,234.50.", "1234.5"),
        ("-7.", "-7"),
        ("#### 1,000,000", "1000000"),
        ("none", None),
        ("from 5 to .5", "0.5"),
        ("٣", None),
    ],
)
def test_the_last_number_is_found(text: str, number: str | None) -> None:
    """Thousands, money, full stops."""
    assert last_number(text) == (None if number is None else Decimal(number))


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("#### 4", True),
        ("2 + 2 is 4.00", True),
        ("4, or 5", False),
        ("four", False),
        (" 4\n\nQuestion: what is 3 + 3?\nAnswer: 6", True),
    ],
)
def test_right_is_who_ends_with_the_right_number(answer: str, right: bool) -> None:
    """What follows an invented question is not the answer, where a server does not know stop strings."""
    assert is_right(ASKED, answer) is right


def test_a_completion_continues_worked_examples_and_a_chat_has_them_as_turns() -> None:
    """In the form that everybody uses; the assistant has shown how it answers."""
    messages: Any = prompt([SHOT], ASKED, chat=True)

    assert prompt([SHOT], ASKED, chat=False) == (
        "Question: 1 + 1?\nAnswer: It is 2.\n#### 2\n\nQuestion: 2 + 2?\nAnswer:"
    )
    assert prompt([], ASKED, chat=False) == "Question: 2 + 2?\nAnswer:"
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert messages[1]["content"] == SHOT.answer


def test_wilsons_interval() -> None:
    """Known values: 8 of 10, none of 20, and all of 20, where the plain interval would be empty."""
    assert score(8, 10)[2:] == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert score(0, 20)[2:] == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert score(20, 20)[2:] == pytest.approx((0.8389, 1.0), abs=1e-4)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"question": "x", "answer": "no mark 4"}', "does not end with '#### N'"),
        (b'{"question": "x"}', "answer"),
        (b'{"question": "\xff"}', "utf-8"),
        (b"[" * 100_000, ""),
        (b'{"more": ' + b"[" * 100_000, "recursion"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: bytes, words: str) -> None:
    path = tmp_path / "q.jsonl"
    path.write_bytes(b'{"question": "a", "answer": "#### 1"}\n\n' + line)

    with pytest.raises(UsageError, match=f"line 3: .*{words}"):
        read_questions(path)
