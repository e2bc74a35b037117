"""What fake nodes tell a dashboard, and how a test looks at the page."""

import asyncio
import json
import time
from typing import Any, Final

from baton.contracts.http import TIMELINE_PATH, TRANSFERS_PATH
from tests.support.browser import Scheme, Tab
from tests.support.cluster import ADMIN_TOKEN
from tests.support.fake_vllm import FakeVllm

TOKEN_NAME: Final = "baton-admin-token"
PATIENCE_S: Final = 20.0
LAYERS: Final = 28


def tell_transfers(node: FakeVllm, *, quarantined: int = 0, failures: list[dict[str, Any]] | None = None) -> None:
    answers = {TRANSFERS_PATH: brief(node.role, quarantined, failures or []), TIMELINE_PATH: timeline(node.role)}
    for path, answer in answers.items():
        node.passed["GET", path] = (200, b"application/json", json.dumps(answer).encode())


def brief(role: str, quarantined: int, failures: list[dict[str, Any]]) -> dict[str, Any]:
    exposed, hidden = {"counts": [3, 1], "sum": 0.02}, {"counts": [0, 4], "sum": 3.8}
    return {
        "scheduler": {
            "num_blocks": 8000,
            "free_blocks": 5200,
            "reserved_blocks": 120,
            "histograms": {"exposed_transfer_s": exposed} if role == "decode" else {},
        },
        "worker": {
            "quarantined_blocks": quarantined,
            "open_transfers": 2,
            "sessions": [{"state": "open"}],
            "totals": {"bytes": 93_000_000},
            "histograms": {"hidden_share": hidden} if role == "prefill" else {},
            "failures": failures,
        },
        "refused": {},
    }


def timeline(role: str, chunks: int = 3) -> dict[str, Any]:
    """What a node says of any transfer: a prompt in chunks, each layer pushed as it is written."""
    written, pushes, now_s, end_s = [], [], 0.0, 0.0
    for _ in range(chunks):
        now_s += 0.004
        for layer in range(LAYERS):
            now_s += 0.0021
            end_s = max(now_s, end_s - 0.004) + 0.0026
            written.append([now_s, layer])
            pushes.append([end_s - 0.0026, end_s, layer, layer, 12])
    marks = {"scheduled": 0.0, "reserved": 0.003, "last_layer": now_s, "last_push": end_s, "commit": end_s + 0.0006}
    theirs = {"arrived": 0.0, "reserve_sent": 0.002, "commit_received": end_s + 0.0016, "first_step": end_s + 0.006}
    about = {"transfer_id": "x", "timings_s": marks, "pushing_s": 0.19, "hidden_share": 0.96}
    if role == "prefill":
        flow = {"open": False, "layers": LAYERS, "tokens": 1500, "cached_tokens": 0, "lost": 0, "rank": 0}
        flows = [{**flow, **about, "written": written, "pushes": pushes}]
        return {"flows": flows, "open": [], "ended": [{**about, "state": "committed", "bytes_pushed": 88_000_000}]}
    record = {"state": "loaded", "reason": "", "prefill": {"timings_s": marks}, "exposed_transfer_s": 0.005}
    return {"flows": [], "open": [], "ended": [{**about, **record, "timings_s": theirs}]}


async def show(
    tab: Tab, url: str, *, token: str = ADMIN_TOKEN, width: int = 1360, height: int = 1000, scheme: Scheme = "light"
) -> None:
    """Open the page, signed in unless the token is empty."""
    if token:
        signs_in = f"sessionStorage.setItem({TOKEN_NAME!r}, {json.dumps(token)})"
        await tab.call("Page.addScriptToEvaluateOnNewDocument", source=signs_in)
    await tab.open(f"{url}/dashboard", width=width, height=height, scheme=scheme)
    await until(tab, "document.getElementById('live').dataset.state === 'live'")


async def until(tab: Tab, script: str, timeout_s: float = PATIENCE_S) -> Any:
    """Wait until an expression holds in the page; return what it gives."""
    give_up_s = time.monotonic() + timeout_s
    while not (found := await tab.evaluate(script)):
        if time.monotonic() > give_up_s:
            shown = await tab.evaluate("document.body.innerText")
            raise AssertionError(f"{script} did not come true; the page shows:\n{shown[:3000]}")
        await asyncio.sleep(0.05)
    return found


async def press(tab: Tab, key: str, code: str = "") -> None:
    words = {"key": key, "code": code or key}
    text = {"text": key} if len(key) == 1 else {}
    number = {"Enter": 13, "Tab": 9, "Escape": 27}.get(key)
    more: dict[str, Any] = {"windowsVirtualKeyCode": number} if number else {}
    await tab.call(
        "Input.dispatchKeyEvent", type="keyDown", **words, **text, **more, **({"text": "\r"} if key == "Enter" else {})
    )
    await tab.call("Input.dispatchKeyEvent", type="keyUp", **words, **more)
