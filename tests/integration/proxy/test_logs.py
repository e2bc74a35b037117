"""What a proxy process logs: whole lines, the access log where it is wanted, and never a prompt or a key."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx

from tests.support.cluster import ADMIN_TOKEN, COMPLETION, until_true
from tests.support.fake_vllm import SECRET
from tests.support.otlp_receiver import receiver
from tests.support.proxy_process import PATIENCE_S, proxy_process

MARKER = "MARKERofThisTest"
PATH = "/v1/completions"


async def test_the_log_says_what_happened_to_each_request_and_holds_no_prompt_or_key(tmp_path: Path) -> None:
    """Nodes, times, bytes and the name of the trace; at debug level, and in traces too, whatever happens to a request nothing of prompts, other fields, headers and queries."""
    headers = {"authorization": f"Bearer {MARKER}", "x-session-id": MARKER, "x-api-key": MARKER, "cookie": MARKER}
    body: dict[str, Any] = {**COMPLETION, "prompt": f"{MARKER} once", "user": MARKER, "stop": MARKER}
    with receiver() as collector:
        flags = ("--log-format", "json", "--log-level", "debug", "--access-log", "all")
        traces = ("--otlp-endpoint", f"{collector.url}/v1/traces?key={MARKER}", "--trace-share", "1")
        async with (
            proxy_process(tmp_path, *flags, *traces) as running,
            httpx.AsyncClient(base_url=running.url, timeout=PATIENCE_S, headers=headers) as http,
        ):
            decode = running.decode[0]

            async def ask(name: str, path: str = PATH, **more: Any) -> httpx.Response:
                return await http.post(path, headers={"x-request-id": name}, **more)

            streamed = await ask("streamed", json={**body, "stream": True})
            refused = await ask("refused", json={**body, "prompt": None})
            await ask("whole", json=body)
            await ask("cut-short", content=json.dumps(body)[:-3])
            await ask("no-number", json={**body, "max_tokens": MARKER})
            await ask("no-such-model", json={**body, "model": MARKER})
            await ask("an-order", f"/admin/nodes?key={MARKER}", json={"url": MARKER})
            await ask("passed", "/tokenize", json={"prompt": MARKER})
            decode.fault, seen = "hang", len(decode.seen)
            leaving = asyncio.create_task(ask("leaving", json=body))
            await until_true(lambda: len(decode.seen) > seen, timeout_s=PATIENCE_S)
            leaving.cancel()
            await until_true(lambda: decode.seen[-1].cancelled, timeout_s=PATIENCE_S)
            decode.error = {"error": {"message": f"not with {MARKER}", "code": 500}}
            for fault in ("status", "cut", "drop", "error event"):
                decode.fault = fault
                await ask("failing", json={**body, "stream": True})
        await until_true(lambda: len(collector.spans) >= 5, timeout_s=PATIENCE_S)

    text = running.log.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    access = {line["request_id"]: line for line in lines if line["logger"] == "baton.proxy.access"}
    first = access["streamed"]
    times = {name: first.pop(name) for name in ("time", "wait_s", "ttft_s", "duration_s")}
    assert len(first.pop("tenant")) == 16
    assert first.pop("trace_id") in {span.trace_id for span in collector.spans if not span.parent_id}
    assert first == {
        "level": "info",
        "logger": "baton.proxy.access",
        "message": "request",
        "request_id": "streamed",
        "route": PATH,
        "path": "disaggregated",
        "reason": "",
        "status": 200,
        "broken": False,
        "left": False,
        "prefill": running.prefill[0].url,
        "decode": decode.url,
        "attempts": 1,
        "sent_bytes": len(streamed.content),
    }
    assert 0 <= times["wait_s"] <= times["ttft_s"] <= times["duration_s"]
    second, left = access["refused"], access["leaving"]
    assert (refused.status_code, second["status"], second["attempts"], second["decode"]) == (400, 400, 0, "")
    assert second["ttft_s"] is None
    assert (left["left"], left["status"], left["decode"]) == (True, 0, decode.url)  # before the head it has no status
    statuses = [access[name]["status"] for name in ("whole", "cut-short", "no-number", "no-such-model")]
    assert statuses == [200, 400, 400, 404]
    assert not any(MARKER.encode() in each for each in collector.bodies)
    assert not [secret for secret in (MARKER, ADMIN_TOKEN, SECRET.values[0].decode()) if secret in text]
