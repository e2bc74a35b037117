"""`loadtest eval FILE`: exact-match accuracy over questions in gsm8k's format, so that others can repeat it."""

import argparse
import json
import math
import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final, NamedTuple

import msgspec
import uvloop

from baton.contracts.decoding import DECODE_ERRORS
from baton.loadtest import files, words
from baton.loadtest.client.exchange import Answered, Exchange
from baton.loadtest.client.fetch import first_model
from baton.loadtest.client.http import Client, parse_address
from baton.loadtest.errors import RunError, UsageError
from baton.loadtest.measures.serving import errors_by_kind
from baton.loadtest.run.environment import raise_limit
from baton.loadtest.run.loops import ask_each
from baton.loadtest.traffic.script import Ask, Form, Prompt

_NUMBER: Final = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+", re.ASCII)
_MARK: Final = "####"
STOP: Final = ("Question:",)  # where a base model would go on with a question of its own


class Question(msgspec.Struct, frozen=True):
    """One line of a file; its answer ends with `#### N`, and right is one whose last number is N."""

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
    for number, line in files.numbered_lines(path):
        try:
            question = msgspec.json.decode(line, type=Question)
        except DECODE_ERRORS as exc:
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


def parser() -> words.Parser:
    made = words.parser("eval", "Exact-match accuracy over a file in gsm8k's format.")
    add = made.add_argument
    add("file", type=Path, metavar="FILE", help="JSONL of question and answer; an answer ends with '#### N'")
    words.add_server(add)
    add("--endpoint", choices=("completions", "chat"), default="completions")
    add("--shots", type=words.count_or_none, default=5, metavar="N", help="examples before each question (%(default)s)")
    shots_file = "take the examples from this file; else FILE's first N, which are not asked"
    add("--shots-file", type=Path, metavar="FILE", help=shots_file)
    add("--limit", type=words.count, metavar="N", help="ask only so many questions")
    add("--max-tokens", type=words.count, default=256, metavar="N", help="longest answer (%(default)s)")
    add("--concurrency", type=words.count, default=16, metavar="N", help="requests in flight (%(default)s)")
    add("--timeout", type=words.above_0, default=300.0, metavar="S", help="for each request (%(default)s)")
    add("--json", type=Path, metavar="FILE", help="write accuracy, and which questions were right, there")
    return made


def main(argv: Sequence[str]) -> int:
    given = parser().parse_args(argv)
    shots, questions = chosen(given)
    answers: list[Answered] = uvloop.run(ask_all(given, shots, questions))
    records = [answer.record for answer in answers]
    if not any(record.ok for record in records):
        raise RunError(f"no question was answered: {records[0].error} {records[0].detail}".rstrip())
    right = [record.ok and is_right(asked, text) for asked, (record, text) in zip(questions, answers, strict=True)]
    found, errors = score(sum(right), len(right)), errors_by_kind(records)
    print(_words(found, errors, len(shots)))
    if given.json:
        _write(given.json, found, errors, right, given)
    return 0


def chosen(given: argparse.Namespace) -> tuple[list[Question], list[Question]]:
    """Return the worked examples and the questions to be asked. Raises `UsageError`: there are not enough."""
    questions = read_questions(given.file)
    examples = read_questions(given.shots_file) if given.shots_file else questions
    if len(examples) < given.shots:
        raise UsageError(
            f"{given.shots_file or given.file} has {len(examples)} examples, and --shots asks for {given.shots}"
        )
    asked = questions if given.shots_file else questions[given.shots :]
    if not asked:
        raise UsageError(f"{given.file} has no question left to ask")
    return examples[: given.shots], asked[: given.limit]


async def ask_all(
    given: argparse.Namespace, shots: Sequence[Question], questions: Sequence[Question]
) -> list[Answered]:
    address = parse_address(given.url)
    raise_limit(given.concurrency)
    headers = {"Authorization": f"Bearer {given.api_key}"} if given.api_key else {}
    model = given.model or await first_model(address, headers)
    chat = given.endpoint == "chat"
    form = Form(model=model, chat=chat, ignore_eos=False, more={} if chat else {"stop": list(STOP)})
    client = Client(address, headers, given.timeout)
    asks = (Ask(prompt=prompt(shots, question, chat=chat), output_tokens=given.max_tokens) for question in questions)
    answers = await ask_each(Exchange(client, form), enumerate(asks), min(given.concurrency, len(questions)))
    client.close()
    return [answers[index] for index in range(len(questions))]


def _words(found: Score, errors: dict[str, int], shots: int) -> str:
    lines = [
        f"accuracy: {found.accuracy:.4f} ({found.right} of {found.asked}, {shots}-shot, exact match on the last number)",
        f"95 % interval: {found.low:.4f} to {found.high:.4f} (Wilson)",
    ]
    if errors:
        named = ", ".join(f"{kind} {n}" for kind, n in errors.items())
        lines.append(f"errors, which count as wrong: {named}")
    return "\n".join(lines)


def _write(file: Path, found: Score, errors: dict[str, int], right: Sequence[bool], given: argparse.Namespace) -> None:
    value: dict[str, Any] = {
        "schema_version": 1,
        "accuracy": found.accuracy,
        **found._asdict(),
        "errors": errors,
        "shots": given.shots,
        "endpoint": given.endpoint,
        "max_tokens": given.max_tokens,
        "right_by_question": list(right),
    }
    files.write(file, json.dumps(value) + "\n")
