"""What a proxy process logs: whole lines, the access log where it is wanted, and never a prompt or a key."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx

from tests.support.cluster import ADMIN_TOKEN, COMPLETION, until_true
from tests.support.fake_vllm import SECRET
from tests.support.otlp_receiver import receiver
from tests.support.proxy_process import PATIENCE_S, ProxyProcess, proxy_process

MARKER = "MARKERofThisTest"


def access(running: ProxyProcess) -> list[dict[str, Any]]:
    """The lines of the access log; each line of the whole log must be JSON."""
    lines = [json.loads(line) for line in running.log.read_text().splitlines()]
    return [line for line in lines if line["logger"] == "baton.proxy.access"]


async def ask(running: ProxyProcess, **changes: Any) -> httpx.Response:
    async with httpx.AsyncClient(base_url=running.url, timeout=PATIENCE_S) as http:
        headers = {"x-request-id": "mine", "authorization": "Bearer k"}
        return await http.post("/v1/completions", json={**COMPLETION, **changes}, headers=headers)


async def test_the_access_log_says_what_happened_to_each_request(tmp_path: Path) -> None:
    """With nodes, times, bytes and the name of the trace."""
    with receiver() as collector:
        flags = ("--log-format", "json", "--access-log", "all", "--otlp-endpoint", collector.url, "--trace-share", "1")
        async with proxy_process(tmp_path, *flags) as running:
            streamed = await ask(running, stream=True)
            whole = await ask(running, prompt=None)
        await until_true(lambda: len(collector.spans) >= 5, timeout_s=PATIENCE_S)

    [first, second] = access(running)
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
        "prefill": running.prefill[0].url,
        "decode": running.decode[0].url,
        "attempts": 1,
        "sent_bytes": len(streamed.content),
        "trace_id": next(span.trace_id for span in collector.spans if not span.parent_id),
    }
    assert 0 <= times["wait_s"] <= times["ttft_s"] <= times["duration_s"]
    assert (whole.status_code, second["status"], second["attempts"], second["decode"]) == (400, 400, 0, "")
    assert second["ttft_s"] is None


async def test_a_client_that_left_is_named(tmp_path: Path) -> None:
    """Before the head it has no status either."""
    async with proxy_process(tmp_path, "--log-format", "json", "--access-log", "errors") as running:
        running.prefill[0].first_token_delay_s = 60.0
        asked = asyncio.create_task(ask(running))
        await until_true(lambda: running.decode[0].seen, timeout_s=PATIENCE_S)
        asked.cancel()
        await until_true(lambda: running.decode[0].seen[0].cancelled, timeout_s=PATIENCE_S)

    [line] = access(running)
    assert (line["left"], line["status"], line["decode"]) == (True, 0, running.decode[0].url)


async def test_by_default_there_is_no_access_log_and_fields_are_shown(tmp_path: Path) -> None:
    """The state of a node is one line, with its URL."""
    async with proxy_process(tmp_path) as running:
        await ask(running)

    text = running.log.read_text()
    assert "baton.proxy.access" not in text
    assert f"url={running.decode[0].url}" in text
    assert "request_id" not in text


async def test_no_log_holds_a_prompt_or_a_key(tmp_path: Path) -> None:
    """At debug level, with an access log and traces, whatever happens to a request: in prompts, other fields, headers, queries."""
    headers = {"authorization": f"Bearer {MARKER}", "x-session-id": MARKER, "x-api-key": MARKER, "cookie": MARKER}
    body = {**COMPLETION, "prompt": f"{MARKER} once", "user": MARKER, "stop": MARKER}
    with receiver() as collector:
        flags = ("--log-level", "debug", "--access-log", "all")
        traces = ("--otlp-endpoint", f"{collector.url}/v1/traces?key={MARKER}", "--trace-share", "1")
        async with (
            proxy_process(tmp_path, *flags, *traces) as running,
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
                running.decode[0].fault = fault
                running.decode[0].error = {"error": {"message": f"not with {MARKER}", "code": 500}}
                await http.post("/v1/completions", json={**body, "stream": True})
            running.decode[0].fault = ""

    assert statuses[:4] == [200, 200, 400, 400]
    text = running.log.read_text()
    assert "baton.proxy.access" in text
    assert collector.spans
    assert not any(MARKER.encode() in each for each in collector.bodies)
    assert not [secret for secret in (MARKER, ADMIN_TOKEN, SECRET.values[0].decode()) if secret in text]
