"""API keys, on real sockets: who gets in, what nodes see of it, and a file that changes."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from baton.proxy.auth import account, api_key_auth
from baton.proxy.http_server import file_watcher
from tests.integration.proxy.test_admission import until_waiting
from tests.integration.proxy.test_failures import assert_nothing_left
from tests.support.cluster import CHAT, COMPLETION, Cluster, cluster, until, until_true
from tests.support.fake_answers import MODEL

KEYS = {name: f"the-key-of-{name}-{'x' * 20}" for name in ("free", "narrow", "slow", "models", "old")}
ENTRIES: dict[str, dict[str, Any]] = {
    "free": {"key": KEYS["free"]},
    "narrow": {"sha256": sha256(KEYS["narrow"].encode()).hexdigest(), "requests_at_once": 1},
    "slow": {"key": KEYS["slow"], "requests_per_minute": 2},
    "models": {"key": KEYS["models"], "models": ["another"]},
    "old": {"key": KEYS["old"], "expires": "2020-01-01"},
}
BROKEN = "baton_api_keys_file_broken"
REFUSALS = 'baton_access_refusals_total{key="%s",reason="%s"}'


def write(path: Path, entries: dict[str, Any] | None = None) -> Path:
    """Put a file of keys in place."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"keys": ENTRIES if entries is None else entries}))
    return new.rename(path)


@pytest.fixture(autouse=True)
def _long_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, no minute ends during a test."""
    monkeypatch.setattr(account, "MINUTE_S", 36_000.0)


@asynccontextmanager
async def keyed(tmp_path: Path, **settings: Any) -> AsyncIterator[Cluster]:
    """Run a proxy that asks for keys."""
    async with cluster(api_keys_file=write(tmp_path / "keys"), **settings) as running:
        yield running


def bearer(name: str) -> dict[str, str]:
    """Show a key as OpenAI's clients do."""
    return {"authorization": f"Bearer {KEYS[name]}"}


async def ask(running: Cluster, name: str = "", path: str = "/v1/completions", **changes: Any) -> httpx.Response:
    body = {**(CHAT if "chat" in path else COMPLETION), **changes}
    return await running.http.post(path, json=body, headers=bearer(name) if name else {})


async def models(running: Cluster, name: str) -> list[str]:
    """What is listed for a key."""
    listed = await running.http.get("/v1/models", headers=bearer(name))
    return [entry["id"] for entry in listed.json()["data"]]


async def test_without_a_key_no_request_gets_in(tmp_path: Path) -> None:
    """401 in the API's own shape, on every route that serves; no node hears of it, nothing of the key is in the answer."""
    async with keyed(tmp_path) as running:
        got = [
            await ask(running),
            await ask(running, path="/v1/chat/completions"),
            await running.http.post("/tokenize", json={}),
            await running.http.get("/v1/responses/resp_1"),
            await running.http.get("/v1/models"),
            await running.http.get(f"/v1/models/{MODEL}"),
            await running.http.post("/v1/completions", json=COMPLETION, headers={"authorization": "Bearer guessed-it"}),
            await ask(running, "old"),
        ]
        theirs = await running.http.post("/v1/messages", json=CHAT, headers={"x-api-key": "guessed-it"})
        open_routes = [(await running.http.get(path)).status_code for path in ("/health", "/ready", "/metrics")]
        counted = [
            await running.metric(REFUSALS % each) for each in (("", "missing"), ("", "unknown"), ("old", "expired"))
        ]
        requests = await running.metric('baton_requests_total{endpoint="/v1/completions",path="",status="401"}')
        heard = running.decode[0].seen + running.prefill[0].seen

    assert [each.status_code for each in got] == [401] * 8
    assert {each.headers["www-authenticate"] for each in got} == {"Bearer"}
    assert {each.json()["error"]["code"] for each in got} == {"invalid_api_key"}
    assert {each.json()["error"]["type"] for each in got} == {"invalid_request_error"}
    assert "guessed-it" not in got[6].text
    assert (theirs.status_code, theirs.json()["type"]) == (401, "error")
    assert theirs.json()["error"]["type"] == "authentication_error"
    assert open_routes == [200] * 3
    assert (counted, requests, heard) == ([6, 2, 1], 3, [])


async def test_a_key_lets_in_and_is_not_handed_on(tmp_path: Path) -> None:
    """Neither leg carries it, nor does a passed request; other headers still reach the nodes."""
    async with keyed(tmp_path) as running:
        running.decode[0].passed["POST", "/tokenize"] = 200, b"application/json", b"{}"
        got = await running.http.post(
            "/v1/completions", json=COMPLETION, headers={**bearer("free"), "traceparent": "t"}
        )
        passed = await ask(running, "free", "/tokenize")
        both = {**bearer("free"), "x-api-key": KEYS["free"]}
        other = await running.http.post("/v1/messages", json={**CHAT, "stream": False}, headers=both)
        series = (await running.http.get("/metrics")).text
        legs = [seen.headers for node in (running.decode[0], running.prefill[0]) for seen in node.seen]
        legs.append(running.decode[0].was_passed[0][3])

    assert [each.status_code for each in (got, passed, other)] == [200] * 3
    assert len(legs) == 5
    assert legs[0]["traceparent"] == "t"
    assert not [leg for leg in legs if "authorization" in leg or "x-api-key" in leg]
    assert 'baton_key_requests_total{key="free"} 3.0' in series
    assert KEYS["free"] not in series


async def test_requests_at_once_are_counted_until_their_last_byte(tmp_path: Path) -> None:
    """A stream holds its place; one that ends, and one whose client leaves, gives it back."""
    async with keyed(tmp_path) as running:
        running.hold()
        first = asyncio.create_task(ask(running, "narrow", stream=True))
        await until_true(lambda: running.decode[0].seen)
        second = await ask(running, "narrow")
        other = asyncio.create_task(ask(running, "free"))
        await until_true(lambda: len(running.decode[0].seen) == 2)
        first.cancel()
        await until_true(lambda: running.decode[0].seen[0].cancelled)
        third = asyncio.create_task(ask(running, "narrow"))
        await until_true(lambda: len(running.decode[0].seen) == 3)
        running.release()
        ended = [await third, await other, await ask(running, "narrow")]
        refused = await running.metric(REFUSALS % ("narrow", "at_once"))
        await assert_nothing_left(running)

    assert second.status_code == 429
    assert second.headers["retry-after"] == "1"
    assert second.json()["error"]["code"] == "rate_limit_exceeded"
    assert [each.status_code for each in ended] == [200] * 3
    assert refused == 1


async def test_a_key_sees_and_uses_its_own_models_only(tmp_path: Path) -> None:
    """What it may not use does not exist for it; a request must say which model it is for."""
    async with keyed(tmp_path) as running:
        for node in (running.prefill[0], running.decode[0]):
            node.change(served_models=[MODEL, "another"])
        await until(lambda: models(running, "free"), lambda listed: listed == [MODEL, "another"])
        got = [
            await ask(running, "models"),
            await ask(running, "models", model=None),
            await ask(running, "models", "/tokenize"),
        ]
        listed = await models(running, "models")
        one = await running.http.get(f"/v1/models/{MODEL}", headers=bearer("models"))
        refused = await running.metric(REFUSALS % ("models", "model"))
        heard = running.decode[0].seen + running.decode[0].was_passed
        own = await ask(running, "models", model="another")

    assert own.status_code == 200
    assert [each.status_code for each in (*got, one)] == [404] * 4
    assert f"'{MODEL}' does not exist, or" in got[0].json()["error"]["message"]
    assert "must name one" in got[1].json()["error"]["message"]
    assert {(each.json()["error"]["code"], each.json()["error"]["param"]) for each in got} == {
        ("model_not_found", "model")
    }
    assert listed == ["another"]
    assert (refused, heard) == (3, [])


async def test_the_name_of_a_key_is_the_tenant(tmp_path: Path) -> None:
    """However many clients share a key, and whichever of two keys of one name they have."""
    entries = {"a": {"sha256": [sha256(KEYS[name].encode()).hexdigest() for name in ("free", "slow")]}}
    async with cluster(
        api_keys_file=write(tmp_path / "keys", entries), max_requests=1, max_waiting_per_tenant=1
    ) as running:
        running.hold()
        asked = [asyncio.create_task(ask(running, "free"))]
        await until_true(lambda: running.decode[0].seen)
        asked.append(asyncio.create_task(ask(running, "free")))
        await until_waiting(running, 1)
        third = await ask(running, "slow")
        running.release()
        got = await asyncio.gather(*asked)

    assert third.status_code == 429
    assert [each.status_code for each in got] == [200, 200]


async def test_a_new_file_counts_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Keys come and go; what was counted of a key that stays is kept; a broken file keeps the old keys, loudly."""
    monkeypatch.setattr(file_watcher.FileWatcher.__init__, "__kwdefaults__", {"failed": lambda _: None, "look_s": 0.02})
    caplog.set_level(logging.INFO, api_key_auth.logger.name)
    async with keyed(tmp_path) as running:
        path = tmp_path / "keys"
        spent = [(await ask(running, "slow")).status_code for _ in range(3)]
        write(path, {"slow": ENTRIES["slow"], "new": {"key": "a key that is not one"}})
        await running.until_metric(BROKEN, 1)
        during = (await ask(running, "free")).status_code
        write(path, {"slow": ENTRIES["slow"], "new": {"key": KEYS["old"]}})
        await until(lambda: ask(running, "old"), lambda got: got.status_code == 200)
        after = [(await ask(running, name)).status_code for name in ("free", "slow")]
        mended = await running.metric(BROKEN)
        write(path, {})
        await until_true(lambda: len([each for each in caplog.records if each.message == "API keys read"]) >= 3)
        without_keys = (await ask(running, "old")).status_code

    assert (spent, during, after, mended, without_keys) == ([200, 200, 429], 200, [401, 429], 0, 401)
    errors = [each.message for each in caplog.records if each.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "what was read last stays" in errors[0]
    told = [vars(each) for each in caplog.records if each.message == "API keys read"]
    assert (told[1]["added"], sorted(told[1]["removed"])) == (["new"], ["free", "models", "narrow", "old"])
    assert not [each for each in caplog.records if any(key in str(vars(each)) for key in KEYS.values())]
