"""What one hostile client does: the bytes that it sends, piece by piece, and how it leaves. Pure, from a seed."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

CRLF: Final = b"\r\n"
_PATHS: Final = (
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/tokenize",
    "/v1/embeddings",
    "/v1/responses/resp_1",
    "/v1/responses/resp_1/cancel",
    "/v1/models",
    "/v1/models/mock",
    "/health",
    "/ready",
    "/metrics",
    "/openapi.json",
    "/admin/state",
    "/admin/nodes",
    "/nowhere",
)
_METHODS: Final = ("POST", "POST", "POST", "GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "get", "X" * 40)
_ODD_VALUES: Final[tuple[Any, ...]] = (
    None,
    True,
    -1,
    0,
    1e308,
    10**40,
    "",
    "\ud800",
    "\x00",
    [],
    {},
    [[]],
    [None],
    {"a": [1]},
    "x" * 2000,
)
_FIELDS: Final = (
    *("model", "prompt", "messages", "input", "stream", "n", "max_tokens", "temperature", "stop", "echo", "logprobs"),
    *(
        "stream_options",
        "tools",
        "priority",
        "user",
        "best_of",
        "kv_transfer_params",
        "vllm_xargs",
        "seed",
        "background",
    ),
    *("previous_response_id", "truncation", "max_output_tokens", "prompt_logprobs", "use_beam_search"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    kind: str
    pieces: tuple[bytes, ...]
    half_closes: bool = True  # says that no more will come, and waits for what the proxy does
    pause_s: float = 0.0  # between two pieces


def make(random_: random.Random) -> Script:
    kind = random_.choice(tuple(_KINDS))
    script = _KINDS[kind](random_)
    return Script(kind=kind, pieces=script.pieces, half_closes=script.half_closes, pause_s=script.pause_s)


def good(random_: random.Random, path: str = "/v1/completions", **more: Any) -> bytes:
    """Return a request that is as it should be."""
    return _request("POST", path, _body(random_, path, **more))


def _body(random_: random.Random, path: str, **more: Any) -> bytes:
    body: dict[str, Any] = {"model": "mock", "max_tokens": random_.choice((1, 2, 5)), **more}
    if "chat" in path or "messages" in path:
        body["messages"] = [{"role": "user", "content": "a prompt"}]
    else:
        body["input" if "responses" in path else "prompt"] = "a prompt"
    body["stream"] = random_.random() < 0.4
    return json.dumps(body).encode()


def _request(method: str, path: str, body: bytes, *headers: bytes, length: bytes | None = None) -> bytes:
    head = [f"{method} {path} HTTP/1.1".encode("latin-1"), b"Host: proxy", b"Content-Type: application/json", *headers]
    if length is not None or body:
        head.append(b"Content-Length: " + (length if length is not None else b"%d" % len(body)))
    return CRLF.join(head) + CRLF * 2 + body


def _one(*pieces: bytes, **more: Any) -> Script:
    return Script(kind="", pieces=pieces, **more)


def _request_line(random_: random.Random) -> Script:
    path = random_.choice(_PATHS)
    lines = (
        random_.randbytes(random_.randrange(1, 200)),
        f"POST {path}".encode(),
        f"POST {path} HTTP/9.9".encode(),
        f"POST {path} HTTP/1.1 more".encode(),
        f"POST  {path}  HTTP/1.1".encode(),
        b"POST " + b"/x" * random_.randrange(10, 50_000) + b" HTTP/1.1",
        b"POST /\x00 HTTP/1.1",
        b"POST /%ff%00/..%2f HTTP/1.1",
        b"GET http://other" + path.encode() + b" HTTP/1.1",
        b"CONNECT other:443 HTTP/1.1",
        b"OPTIONS * HTTP/1.1",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + random_.randbytes(60),  # the beginning of TLS
        f"GET {path}?{'a=b&' * random_.randrange(1, 3000)} HTTP/1.0".encode(),
    )
    return _one(random_.choice(lines) + CRLF + b"Host: proxy" + CRLF * 2)


def _method(random_: random.Random) -> Script:
    path = random_.choice(_PATHS)
    return _one(_request(random_.choice(_METHODS), path, random_.choice((b"", _body(random_, path)))))


def _headers(random_: random.Random) -> Script:
    count = random_.choice((1, 50, 5_000))
    bombs = (
        b"X-Bomb: " + b"a" * random_.choice((100, 70_000, 1_000_000)),
        CRLF.join(b"X-%d: a" % at for at in range(count)),
        b"No colon in this line",
        b": no name",
        b"X-Folded: a\r\n b",
        b"X-Null: a\x00b",
        b"X-Binary: " + random_.randbytes(50).replace(b"\n", b"").replace(b"\r", b""),
        b"Expect: 100-continue",
        b"Connection: close, upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: a\r\nSec-WebSocket-Version: 13",
        b"X-Request-Id: " + b"\xff" * 300,
        b"X-Request-Timeout-S: -1",
        b"X-Baton-Path: local\r\nX-Data-Parallel-Rank: 7",
        b"Authorization: " + b"Bearer " * 2_000,
        b"Content-Encoding: gzip\r\nAccept-Encoding: br",
    )
    path = random_.choice(_PATHS[:6])
    return _one(_request("POST", path, _body(random_, path), random_.choice(bombs)))


def _lengths(random_: random.Random) -> Script:
    body = _body(random_, "/v1/completions")
    lengths = [b"-1", b"0", b"1e3", b"99999999999999999999", b"0x10", b"", b" 5", b"+5", b"5, 5", b"104857600000"]
    lengths += [b"%d" % (len(body) + 9), b"%d" % (len(body) - 9)]
    return _one(_request("POST", "/v1/completions", body, length=random_.choice(lengths)))


def _chunks(random_: random.Random) -> Script:
    body = _body(random_, "/v1/chat/completions")
    good_chunk = b"%x\r\n%b\r\n" % (len(body), body)
    ends = b"0\r\n\r\n"
    bodies = (
        good_chunk + ends,
        good_chunk + b"0\r\nX-Trailer: a\r\n\r\n",
        good_chunk,
        b"zz\r\nab\r\n" + ends,
        b"-5\r\nab\r\n" + ends,
        b"ffffffffffffffffff\r\nab",
        b"7fffffffffffffff\r\nab",
        b"5\r\nabc\r\n" + ends,
        b"3\r\nabcdef\r\n" + ends,
        b"3;" + b"e=f;" * random_.choice((1, 20_000)) + b"\r\nabc\r\n" + ends,
        b"\r\n" * 100,
        b"".join(b"1\r\n%c\r\n" % byte for byte in body) + ends,
        good_chunk + b"0\r\n" + b"X: a\r\n" * 5_000 + b"\r\n",
        b"0" * 1_000 + b"\r\n\r\n",
    )
    codings = (
        b"chunked",
        b"chunked, chunked",
        b"gzip, chunked",
        b"chunked, gzip",
        b"identity",
        b"xchunked",
        b"CHUNKED",
    )
    coding = b"Transfer-Encoding: " + random_.choice((b"chunked", *codings))
    also = (coding + b"\r\nContent-Length: 5",) if random_.random() < 0.2 else (coding,)
    return _one(_request("POST", "/v1/chat/completions", b"", *also) + random_.choice(bodies))


def _pipeline(random_: random.Random) -> Script:
    requests = [good(random_, random_.choice(_PATHS[:4])) for _ in range(random_.randrange(2, 12))]
    requests.insert(
        random_.randrange(len(requests)), random_.choice((b"", random_.randbytes(30), b"GET /health HTTP/1.1\r\n\r\n"))
    )
    sent = b"".join(requests)
    cut = random_.randrange(len(sent))
    return _one(sent[:cut], sent[cut:], half_closes=random_.random() < 0.5)


def _cut(random_: random.Random) -> Script:
    sent = good(random_, random_.choice(_PATHS[:5]))
    return _one(sent[: random_.randrange(1, len(sent))], half_closes=random_.random() < 0.5)


def _slow(random_: random.Random) -> Script:
    sent = good(random_, random_.choice(_PATHS[:5]))
    size = random_.randrange(1, 40)
    pieces = [sent[at : at + size] for at in range(0, len(sent), size)]
    return _one(*pieces[: random_.randrange(1, len(pieces) + 1)], pause_s=0.002)


def _flipped(random_: random.Random) -> Script:
    sent = bytearray(good(random_, random_.choice(_PATHS[:5])))
    for _ in range(random_.randrange(1, 8)):
        at = random_.randrange(len(sent))
        match random_.randrange(3):
            case 0:
                sent[at] = random_.randrange(256)
            case 1:
                del sent[at : at + random_.randrange(1, 5)]
            case _:
                sent[at:at] = random_.randbytes(random_.randrange(1, 5))
        if not sent:
            break
    return _one(bytes(sent))


def _json(random_: random.Random) -> Script:
    path = random_.choice(_PATHS[:6])
    deep = random_.choice((10, 1_000, 100_000))
    texts = (
        b"[" * deep + b"]" * deep,
        b'{"model":' * deep,
        b'{"model":"mock","prompt":"\xff\xfe"}',
        b'{"model":"mock","model":"other","prompt":"a"}',
        b"\xef\xbb\xbf{}",
        '{"model":"mock","prompt":"a"}'.encode("utf-16"),
        b"nul",
        b'{"model":"mock","prompt":"a","max_tokens":1' + b"0" * 5_000 + b"}",
        b'{"model":"mock","prompt":"\\ud800","max_tokens":1}',
        b'{"model":"mock","prompt":[' + b"1," * 20_000 + b"1]}",
        random_.randbytes(200),
    )
    return _one(_request("POST", path, random_.choice(texts)))


def _fields(random_: random.Random) -> Script:
    path = random_.choice(_PATHS[:6])
    changed = {random_.choice(_FIELDS): random_.choice(_ODD_VALUES) for _ in range(random_.randrange(1, 4))}
    body = json.loads(_body(random_, path)) | changed
    return _one(_request("POST", path, json.dumps(body).encode()))


_KINDS: Final[dict[str, Callable[[random.Random], Script]]] = {
    "request line": _request_line,
    "method": _method,
    "headers": _headers,
    "lengths": _lengths,
    "chunks": _chunks,
    "pipeline": _pipeline,
    "cut": _cut,
    "slow": _slow,
    "flipped": _flipped,
    "json": _json,
    "fields": _fields,
}
