"""gsm8k's format: a question, and an answer that ends with `#### N`. Right is an answer whose last number is N. Pure."""

import math
import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from statistics import NormalDist
from typing import Final, NamedTuple

import msgspec

from baton.loadtest.errors import UsageError
from baton.loadtest.files import numbered_lines
from baton.loadtest.traffic.script import Prompt

_NUMBER: Final = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+", re.ASCII)
_MARK: Final = "####"
STOP: Final = ("Question:",)  # where a base model would go on with a question of its own


class Question(msgspec.Struct, frozen=True):
    """One line of a file."""

    question: str
    answer: str


class Score(NamedTuple):
    """How many answers were right; errors count as wrong."""

    right: int
    asked: int
    low: float  # of Wilson's interval
    high: float

    @property
    def accuracy(self) -> float:
        return self.right / self.asked


def read_questions(path: Path) -> list[Question]:
    """Read a file. Raises `UsageError`: it cannot be read, or a line is no question with a number for an answer."""
    found = []
    for number, line in numbered_lines(path):
        try:
            question = msgspec.json.decode(line, type=Question)
        except msgspec.DecodeError as exc:
            raise UsageError(f"{path}, line {number}: {exc}") from exc
        if truth(question) is None:
            raise UsageError(f"{path}, line {number}: the answer does not end with '{_MARK} N'")
        found.append(question)
    return found


def truth(question: Question) -> Decimal | None:
    _, mark, behind = question.answer.rpartition(_MARK)
    return last_number(behind) if mark else None


def last_number(text: str) -> Decimal | None:
    """Return the last number of a text; `1,000`, `$18.00` and `18.` are numbers."""
    found = _NUMBER.findall(text)
    try:
        return Decimal(found[-1].replace(",", "")) if found else None
    except InvalidOperation:
        return None


def is_right(question: Question, answer: str) -> bool:
    return last_number(answer.partition(STOP[0])[0]) == truth(question)


def prompt(shots: Sequence[Question], question: Question, *, chat: bool) -> Prompt:
    if chat:
        examples = [
            message
            for shot in shots
            for message in ({"role": "user", "content": shot.question}, {"role": "assistant", "content": shot.answer})
        ]
        return [*examples, {"role": "user", "content": question.question}]
    worked = "".join(f"Question: {shot.question}\nAnswer: {shot.answer}\n\n" for shot in shots)
    return f"{worked}Question: {question.question}\nAnswer:"


def score(right: int, asked: int) -> Score:
    """Return the score with Wilson's interval at 95 %, which holds near 0 and 1 too."""
    z = NormalDist().inv_cdf(0.975)
    share, scale = right / asked, 1 + z * z / asked
    middle = (share + z * z / (2 * asked)) / scale
    half = z * math.sqrt(share * (1 - share) / asked + z * z / (4 * asked * asked)) / scale
    return Score(right, asked, max(0.0, middle - half), min(1.0, middle + half))
