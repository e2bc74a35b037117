"""What a proxy process logs: whole lines, the access log where it is wanted, and never a prompt or a key."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.cluster import ADMIN_TOKEN, COMPLETION, until_true
from tests.support.fake_vllm import SECRET, Fabric, FakeVllm
from tests.support.otlp_receiver import receiver
from tests.support.ports import free_port
from tests.support.proxy_process import is_ready, spawn

PATIENCE_S = 60.0
MARKER = "MARKERofThisTest"


@dataclass(slots=True)
class Logging:
    """A proxy process."""

    url: str
    prefill: FakeVllm
    decode: FakeVllm
    text: str = ""  # of its stderr, once it has ended

    @property
    def objects(self) -> list[dict[str, Any]]:
        """Its lines, each of which must be JSON."""
        return [json.loads(line) for line in self.text.splitlines()]

    def access(self) -> list[dict[str, Any]]:
        """Those of the access log."""
        return [line for line in self.objects if line["logger"] == "baton.proxy.access"]


@asynccontextmanager
async def logging_proxy(tmp_path: Path, *arguments: str) -> AsyncIterator[Logging]:
    """Run a proxy; what it logged is there when the block has ended."""
    fabric = Fabric()
    nodes = [FakeVllm("prefill", fabric), FakeVllm("decode", fabric)]
    for node in nodes:
        await node.start()
    secret, token = tmp_path / "secret", tmp_path / "token"
    secret.write_bytes(SECRET.values[0])
    token.write_text(ADMIN_TOKEN)
    port = free_port()
    files = ["--secret-file", str(secret), "--admin-token-file", str(token)]
    addresses = ["--prefill", nodes[0].url, "--decode", nodes[1].url]
    process = await spawn("--port", str(port), *files, *addresses, *arguments)
    assert process.stderr is not None
    reading = asyncio.create_task(process.stderr.read())
    running = Logging(f"http://127.0.0.1:{port}", nodes[0], nodes[1])
    try:
        await until_true(lambda: is_ready(port), timeout_s=PATIENCE_S)
        yield running
        process.terminate()
        await asyncio.wait_for(process.wait(), PATIENCE_S)
    finally:
        if process.returncode is None:
            process.kill()
        running.text = (await reading).decode()
        await process.communicate()
        await asyncio.gather(*(node.stop() for node in nodes))


async def ask(running: Logging, **changes: Any) -> httpx.Response:
    """Ask for a completion."""
    async with httpx.AsyncClient(base_url=running.url, timeout=PATIENCE_S) as http:
        headers = {"x-request-id": "mine", "authorization": "Bearer k"}
        return await http.post("/v1/completions", json={**COMPLETION, **changes}, headers=headers)


async def test_the_access_log_says_what_happened_to_each_request(tmp_path: Path) -> None:
    """With nodes, times, bytes and the name of the trace."""
    with receiver() as collector:
        flags = ("--log-format", "json", "--access-log", "all", "--otlp-endpoint", collector.url, "--trace-share", "1")
        async with logging_proxy(tmp_path, *flags) as running:
            streamed = await ask(running, stream=True)
            whole = await ask(running, prompt=None)
        await until_true(lambda: len(collector.spans) >= 5, timeout_s=PATIENCE_S)

    [first, second] = running.access()
    times = {name: first.pop(name) for name in ("time", "wait_s", "ttft_s", "duration_s")}
    assert len(first.pop("tenant")) == 16
    assert first == {
        "level": "info",
        "logger": "baton.proxy.access",
        "message": "request",
        "request_id": "mine",
        "route": "/v1/completions",
        "path": "disaggregated",
        "reason": "",
        "status": 200,
        "broken": False,
        "left": False,
        "prefill": running.prefill.url,
        "decode": running.decode.url,
        "attempts": 1,
        "sent_bytes": len(streamed.content),
        "trace_id": next(span.trace_id for span in collector.spans if not span.parent_id),
    }
    assert 0 <= times["wait_s"] <= times["ttft_s"] <= times["duration_s"]
    assert (whole.status_code, second["status"], second["attempts"], second["decode"]) == (400, 400, 0, "")
    assert second["ttft_s"] is None


async def test_a_client_that_left_is_named(tmp_path: Path) -> None:
    """Before the head it has no status either."""
    async with logging_proxy(tmp_path, "--log-format", "json", "--access-log", "errors") as running:
        running.prefill.first_token_delay_s = 60.0
        asked = asyncio.create_task(ask(running))
        await until_true(lambda: running.decode.seen, timeout_s=PATIENCE_S)
        asked.cancel()
        await until_true(lambda: running.decode.seen[0].cancelled, timeout_s=PATIENCE_S)

    [line] = running.access()
    assert (line["left"], line["status"], line["decode"]) == (True, 0, running.decode.url)


async def test_errors_alone_may_be_logged(tmp_path: Path) -> None:
    """And text is text."""
    async with logging_proxy(tmp_path, "--access-log", "errors") as running:
        await ask(running)
        await ask(running, prompt=None)

    lines = [line for line in running.text.splitlines() if "baton.proxy.access" in line]
    assert len(lines) == 1
    assert lines[0].startswith("INFO:baton.proxy.access:request request_id=mine ")
    assert " status=400 " in lines[0]


async def test_by_default_there_is_no_access_log_and_fields_are_shown(tmp_path: Path) -> None:
    """The state of a node is one line, with its URL."""
    async with logging_proxy(tmp_path) as running:
        await ask(running)

    assert "baton.proxy.access" not in running.text
    assert f"url={running.decode.url}" in running.text
    assert "request_id" not in running.text


@pytest.mark.parametrize("log_format", ["text", "json"])
async def test_no_log_holds_a_prompt_or_a_key(tmp_path: Path, log_format: str) -> None:
    """At debug level, with an access log and traces, whatever happens to a request: in prompts, other fields, headers, queries."""
    headers = {"authorization": f"Bearer {MARKER}", "x-session-id": MARKER, "x-api-key": MARKER, "cookie": MARKER}
    body = {**COMPLETION, "prompt": f"{MARKER} once", "user": MARKER, "stop": MARKER}
    with receiver() as collector:
        flags = ("--log-level", "debug", "--log-format", log_format, "--access-log", "all")
        traces = ("--otlp-endpoint", f"{collector.url}/v1/traces?key={MARKER}", "--trace-share", "1")
        async with (
            logging_proxy(tmp_path, *flags, *traces) as running,
            httpx.AsyncClient(base_url=running.url, timeout=PATIENCE_S, headers=headers) as http,
        ):
            statuses = [
                (await http.post("/v1/completions", json=body)).status_code,
                (await http.post("/v1/completions", json={**body, "stream": True})).status_code,
                (await http.post("/v1/completions", content=json.dumps(body)[:-3])).status_code,
                (await http.post("/v1/completions", json={**body, "max_tokens": MARKER})).status_code,
                (await http.post("/v1/completions", json={**body, "model": MARKER})).status_code,
                (await http.post(f"/admin/nodes?key={MARKER}", json={"url": MARKER})).status_code,
                (await http.post("/tokenize", json={"prompt": MARKER})).status_code,
            ]
            for fault in ("status", "cut", "drop", "error event"):
                running.decode.fault = fault
                running.decode.error = {"error": {"message": f"not with {MARKER}", "code": 500}}
                await http.post("/v1/completions", json={**body, "stream": True})
            running.decode.fault = ""

    assert statuses[:4] == [200, 200, 400, 400]
    assert "baton.proxy.access" in running.text
    assert collector.spans
    assert MARKER not in running.text
    assert ADMIN_TOKEN not in running.text
    assert SECRET.values[0].decode() not in running.text
