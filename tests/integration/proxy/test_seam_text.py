"""A stream that is cut at every place and gone on with, through vLLM's own detokenisers: the text is the same.

The tokens are given, so that no model has to like emoji: what is tested is where a detokeniser that starts anew, with
another one's tokens as its prompt, could lose a byte, double one, or add a space.
"""

import random
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tokenizers import Tokenizer, decoders, models
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer

from baton.deploy.embedded_model import WEIGHTS
from baton.proxy.request.endpoints import CHAT, COMPLETIONS
from baton.proxy.request.parse import ClientRequest, parse
from baton.proxy.resume import continuation, events
from baton.proxy.resume.record import TokenRecord
from baton.proxy.resume.splicer import TokenSeam

PROMPT = "Tell me: 你好"
TEXTS = [
    "plain words, and  two spaces",
    "smile 😀 now 👩‍👩‍👧 flags 🇩🇪🇯🇵 end",
    "漢字とかな交じり文、そして English",
    " leading, naïve café — “quotes” … é",  # the last é is two code points
    "\n\n\ttabs\n and 🙂\n",
]
NAME = {"id": "x-1", "created": 1, "model": "m"}


def byte_level() -> Tokenizer:
    """The embedded model's: byte-level BPE, in which an emoji is four tokens and a kanji three."""
    return Tokenizer.from_file(str(WEIGHTS / "tokenizer.json"))


def byte_fallback() -> Tokenizer:
    """Like Llama's: words begin with ▁, the first space of a text is stripped, unknown characters are bytes."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdefghijklmnopqrstuvwxyzET,.", "▁w", "▁e"]
    vocabulary = {word: at for at, word in enumerate(words)}
    merges = [("▁", "w"), ("▁", "e")]
    model = models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    made = Tokenizer(model)
    strip = decoders.Strip(content=" ", left=1, right=0)
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip])
    return made


TOKENIZERS = {"byte-level": byte_level(), "byte-fallback": byte_fallback()}


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    """Tokenise as the model's family does."""
    spaced = text if tokenizer.decoder.__class__ is decoders.ByteLevel else text.replace(" ", "▁")
    return list(tokenizer.encode(spaced, add_special_tokens=False).ids)


def groups_of(ids: Sequence[int], grouping: str) -> Iterator[list[int]]:
    """Cut ids into the chunks that a node sends."""
    at, rng = 0, random.Random(len(ids))
    while at < len(ids):
        size = {"one": 1, "three": 3, "random": rng.randint(1, 4)}[grouping]
        yield list(ids[at : at + size])
        at += size


def node(tokenizer: Tokenizer, path: str, prompt: list[int], groups: list[list[int]]) -> list[bytes]:
    """The stream of a node whose model says these tokens after this prompt."""
    wanted = SimpleNamespace(request_id="r", prompt_token_ids=prompt, sampling_params=SamplingParams(max_tokens=99))
    detokenizer = FastIncrementalDetokenizer(SimpleNamespace(_tokenizer=tokenizer), wanted)
    made: list[bytes] = []
    if path == CHAT:
        first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        head = {**NAME, "object": "chat.completion.chunk", "choices": [first]}
        made.append(events.encode({**head, "prompt_token_ids": prompt, "prompt_text": None}))
    for number, group in enumerate(groups):
        ends = number == len(groups) - 1
        detokenizer.update(group, False)
        text = detokenizer.get_next_output_text(ends, True)
        reason: dict[str, Any] = {"logprobs": None, "finish_reason": "length" if ends else None}
        if path == CHAT:
            stop = {"stop_reason": None} if ends else {}
            said = {"index": 0, "delta": {"content": text}, **reason, **stop, "token_ids": group}
            made.append(events.encode({**NAME, "object": "chat.completion.chunk", "choices": [said]}))
        else:
            told = {"stop_reason": None, "prompt_token_ids": None if number else prompt, "token_ids": group}
            said = {"index": 0, "text": text, **reason, **told}
            made.append(events.encode({**NAME, "object": "text_completion", "choices": [said]}))
    return [*made, b"data: [DONE]\n\n"]


def request_for(path: str, tokens: int, *, tells: bool) -> ClientRequest:
    """The client's request."""
    asked = {"messages": [{"role": "user", "content": "x"}]} if path == CHAT else {"prompt": "x"}
    more = {"return_token_ids": True} if tells else {}
    body = {"model": "m", **asked, "max_tokens": tokens, "temperature": 0, "stream": True, **more}
    return parse(path, "id", [], msgspec.json.encode(body))


def resumed(tokenizer: Tokenizer, request: ClientRequest, answer: list[int], stream: list[bytes], cut: int) -> bytes:
    """What the client has at the end if the stream is cut after so many events."""
    chat, tells = request.endpoint == CHAT, "return_token_ids" in request.fields
    record = TokenRecord(chat=chat, hides=not tells)
    got = b"".join(map(record.take, stream[:cut]))
    missing = continuation.closing(request, record)
    if missing is not None:
        return got + missing
    following = continuation.from_token_ids(request, record, 2)
    seam = TokenSeam(following, record, chat=chat)
    prompt = msgspec.json.decode(following.request.fields["prompt"])
    rest = [[token] for token in answer[following.given_tokens :]]
    assert msgspec.json.decode(following.request.fields["max_tokens"]) == len(rest)
    return got + b"".join(map(seam.take, node(tokenizer, COMPLETIONS, prompt, rest)))


def text_and_ids(stream: bytes) -> tuple[str, list[int]]:
    """What a client reads."""
    pieces = [events.parse(event) for event in stream.split(events.END)[:-2]]
    return "".join(piece.text for piece in pieces), [token for piece in pieces for token in piece.ids]


@pytest.mark.parametrize("tells", [False, True], ids=["hidden", "ids"])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT], ids=["completion", "chat"])
@pytest.mark.parametrize("grouping", ["one", "three", "random"])
@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("text", TEXTS)
def test_a_stream_cut_anywhere_goes_on_exactly(text: str, name: str, grouping: str, path: str, *, tells: bool) -> None:
    """After every event, also inside of a character: no byte is lost, doubled or added, and neither is a token.

    Where the nodes send token by token, the whole stream is the same, byte for byte.
    """
    tokenizer = TOKENIZERS[name]
    prompt, answer = ids_of(tokenizer, PROMPT), ids_of(tokenizer, text)
    stream = node(tokenizer, path, prompt, list(groups_of(answer, grouping)))
    request = request_for(path, len(answer), tells=tells)
    whole = b"".join(map(TokenRecord(chat=path == CHAT, hides=not tells).take, stream))
    assert text_and_ids(whole)[1] == (answer if tells else [])
    for cut in range(1, len(stream)):
        got = resumed(tokenizer, request, answer, stream, cut)

        assert got.count(b"[DONE]") == 1
        assert text_and_ids(got) == text_and_ids(whole), cut
        if grouping == "one":
            assert got == whole, cut


def test_the_texts_hold_characters_that_are_cut() -> None:
    """Otherwise the test above would prove little."""
    for tokenizer in TOKENIZERS.values():
        for text in TEXTS[1:3]:
            stream = node(tokenizer, COMPLETIONS, [5], [[token] for token in ids_of(tokenizer, text)])
            assert sum(b'"text":""' in event for event in stream) > 10
