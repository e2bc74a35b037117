"""Runs one model that takes images or sound: a pair of nodes of its own, against one plain server, token by token; and counts runs of encoders."""

import base64
import io
import json
import wave
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import numpy as np
from PIL import Image

from baton.contracts.http import DISAGGREGATED, PATH_HEADER, REASON_HEADER
from tests.e2e.client import LOGPROB_TOLERANCE
from tests.e2e.fidelity import VERIFY
from tests.e2e.stack import ANSWER_TIMEOUT_S, Server, Stack
from tests.e2e.waiting import leftovers
from tests.matrix.media_models import MEDIA_MODELS, ensure
from tests.matrix.trial import COMMON, LEAVE_AFTER_S, NODE
from tests.support.media_nodes import RUNS_FILE

CHAT: Final = "/v1/chat/completions"
CELLS: Final = ("one item", "several items", "prefix hit", "abort")
CHUNKS: Final = ("--max-num-batched-tokens", "256")  # of the prefill node: items come in several chunks
TEXT: Final = "The harbour master walked along the quay and wrote down every ship that he saw. "
ANSWER_TOKENS: Final = 24
AT_ONCE: Final = 2
SIZES: Final = ((112, 112), (84, 168), (140, 56), (168, 112))  # pixels: positions of tokens follow from them
SAMPLES_A_SECOND: Final = 16000


class Question(NamedTuple):
    """A prompt: numbers of its items, which stand before its text, and how often that is said."""

    items: Sequence[int]
    repeats: int = 6


ASKED: Final[Mapping[str, Sequence[Question]]] = {
    "one item": (Question([1]), Question([2]), Question([3], 0), Question([4], 30)),
    "several items": (Question([1, 2]), Question([2, 1]), Question([5, 6, 7], 12), Question([8, 8])),
    "prefix hit": (Question([11], 20), Question([23], 20), Question([11, 23], 20)),
    "abort": (Question([21], 20), Question([22, 23], 20)),
}


class Said(NamedTuple):
    """An answer: its tokens, the log probability of each, and how long the prompt is by `usage`."""

    tokens: Sequence[int]
    logprobs: Sequence[float]
    prompt_tokens: int
    path: str = ""
    reason: str = ""


def part_of(modality: str, number: int) -> dict[str, Any]:
    """Return one item of a message: noise that its number decides on."""
    if modality == "audio":
        noise, file = np.random.default_rng(number), io.BytesIO()
        with wave.open(file, "wb") as sound:
            sound.setnchannels(1)
            sound.setsampwidth(2)
            sound.setframerate(SAMPLES_A_SECOND)
            samples = noise.standard_normal(SAMPLES_A_SECOND * (1 + number % 3)) * 8000
            sound.writeframes(samples.astype(np.int16).tobytes())
        return {"type": "input_audio", "input_audio": {"data": _base64(file.getvalue()), "format": "wav"}}
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_base64(image_of(number))}"}}


def image_of(number: int) -> bytes:
    """Return the file of an image; every twelfth is of the same size, and every twelfth sound as long."""
    noise, file = np.random.default_rng(number), io.BytesIO()
    width, height = SIZES[number % len(SIZES)]
    squares = noise.integers(0, 255, (height // 14, width // 14, 3), dtype=np.uint8)
    Image.fromarray(squares).resize((width, height), Image.Resampling.NEAREST).save(file, "PNG")
    return file.getvalue()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def body_of(name: str, question: Question, *, address: str = "", **more: Any) -> dict[str, Any]:
    """Return the request: greedy, ids and log probabilities included; its images stand at an address if one is given."""
    items = [part_of(MEDIA_MODELS[name].modality, number) for number in question.items]
    if address:
        items = [{"type": "image_url", "image_url": {"url": address}} for _ in items]
    text = {"type": "text", "text": TEXT * question.repeats + "What is this?"}
    return {
        "model": str(ensure(name)),
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [*items, text]}],
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": True,
        "return_token_ids": True,
    } | more


def ask(server: Server, body: Mapping[str, Any], *, streamed: bool = False) -> Said:
    """Ask a server, and put a stream together."""
    more: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}} if streamed else {}
    response = server.ask(CHAT, {**body, **more})
    lines = (
        [line[6:] for line in response.text.splitlines() if line.startswith("data: {")] if streamed else [response.text]
    )
    parts = [json.loads(line) for line in lines]
    choices = sorted((choice for part in parts for choice in part["choices"]), key=lambda choice: int(choice["index"]))
    return Said(
        [token for choice in choices for token in choice.get("token_ids") or ()],
        [one["logprob"] for choice in choices for one in (choice.get("logprobs") or {}).get("content") or ()],
        next(part["usage"]["prompt_tokens"] for part in reversed(parts) if part.get("usage")),
        response.headers.get(PATH_HEADER, ""),
        response.headers.get(REASON_HEADER, ""),
    )


def difference(wanted: Said, got: Said) -> str:
    """Say how an answer differs from the reference; "" if it does not."""
    if (wanted.tokens, wanted.prompt_tokens) != (got.tokens, got.prompt_tokens):
        return f"{got.prompt_tokens} and {got.tokens}, not {wanted.prompt_tokens} and {wanted.tokens}"
    worst = max(abs(a - b) for a, b in zip(wanted.logprobs, got.logprobs, strict=True))
    return f"a logprob differs by {worst:.2e}" if worst > LOGPROB_TOLERANCE else ""


@dataclass(frozen=True, slots=True)
class MediaPair:
    """Two nodes and a proxy with one model, and what one plain server answers."""

    name: str
    stack: Stack
    prefill: Server
    decode: Server
    proxy: Server
    expected: Mapping[str, Sequence[Said]]
    runs: Mapping[str, Path]  # by role: one line a run of the encoder

    def run(self, cell: str) -> list[str]:
        """Serve the prompts of a cell, whole and streamed; returns what was wrong."""
        asked, problems = ASKED[cell], []
        if cell == "prefix hit":
            for node in (self.prefill, self.decode):
                ask(node, body_of(self.name, asked[0], max_tokens=1))
        if cell == "abort":
            self._leave_early()
            problems += leftovers(self.prefill, self.decode)
        is_repeatable = MEDIA_MODELS[self.name].is_repeatable
        before, encoded, relayed = self._endings(), self.encoder_runs("decode"), self._relayed()
        for streamed in (False, True):
            with ThreadPoolExecutor(AT_ONCE) as pool:
                found = list(
                    pool.map(lambda one, how=streamed: ask(self.proxy, body_of(self.name, one), streamed=how), asked)
                )
            for question, wanted, got in zip(asked, self.expected[cell], found, strict=True):
                why = difference(wanted, got) if is_repeatable else ""
                if why := why or ("" if got.path == DISAGGREGATED else f"served as {got.path}: {got.reason}"):
                    problems.append(f"{question}, streamed {streamed}: {why}")
        seen = {name: total - before[name] for name, total in self._endings().items()}
        if not 0 < seen["verified"] == seen["loaded"] or seen["failed"] or seen["mismatched"] or seen["unverifiable"]:
            problems.append(f"the decode node counts {seen}")
        if ran := self.encoder_runs("decode") - encoded:
            problems.append(f"the decode node's encoder ran {ran} times")
        if is_repeatable and self._relayed() == relayed:
            problems.append("no first token came from the prefill node")
        return problems + leftovers(self.prefill, self.decode)

    def looks(self) -> bool:
        """Whether other items give other tokens: the first two prompts that have been cached differ in nothing else."""
        one, other, *_ = self.expected["prefix hit"]
        return one.tokens != other.tokens

    def encoder_runs(self, role: str) -> int:
        file = self.runs[role]
        return len(file.read_text().splitlines()) if file.exists() else 0

    def _leave_early(self) -> None:
        """Have clients leave, with items of their own: vLLM answers the next request with an item that has got lost on its way with a 500, once."""
        for number, after_s in enumerate(LEAVE_AFTER_S):
            body = body_of(self.name, Question([90 + number, 94 + number], 20), stream=True)
            with suppress(httpx.TimeoutException):
                httpx.post(self.proxy.url + CHAT, json=body, timeout=httpx.Timeout(after_s, connect=ANSWER_TIMEOUT_S))

    def _relayed(self) -> float:
        return self.proxy.metrics().get('baton_first_tokens_total{source="relayed"}', 0.0)

    def _endings(self) -> dict[str, int]:
        totals: dict[str, int] = self.decode.transfers()["worker"]["totals"]
        return {name: totals[name] for name in ("loaded", "verified", "failed", "mismatched", "unverifiable")}


def plain_of(stack: Stack, name: str, *flags: str) -> Server:
    """Start a plain server with a model."""
    target = "tests.support.media_nodes:plain"
    return stack.plain(*COMMON, *MEDIA_MODELS[name].flags, *flags, model=str(ensure(name)), target=target)


def node_of(stack: Stack, role: str, name: str, *flags: str, runs: Path) -> Server:
    """Start a node with a model; it appends to `runs` a line for each run of its encoder."""
    return stack.node(
        role,
        *(*NODE, *VERIFY, *MEDIA_MODELS[name].flags, *flags),
        model=str(ensure(name)),
        target="tests.support.media_nodes:node",
        kwargs={"role": role},
        env={RUNS_FILE: str(runs)},
    )


@contextmanager
def pair_of(stack: Stack, name: str, cells: Sequence[str] = CELLS) -> Iterator[MediaPair]:
    """Start a plain server with a model and ask it; then a pair of nodes and a proxy. They are stopped at the end."""
    runs = {role: stack.folder / f"runs-{name}-{role}" for role in ("prefill", "decode")}
    with stack.stopping():
        plain = plain_of(stack, name)
        plain.wait_ready()  # the first server of a class of models has vLLM inspect it, in a process of its own
        prefill = node_of(stack, "prefill", name, *CHUNKS, runs=runs["prefill"])
        decode = node_of(stack, "decode", name, runs=runs["decode"])
        expected = {cell: [ask(plain, body_of(name, question)) for question in ASKED[cell]] for cell in cells}
        stack.stop(plain)
        proxy = stack.proxy([prefill], [decode])
        yield MediaPair(name, stack, prefill, decode, proxy, expected, runs)
