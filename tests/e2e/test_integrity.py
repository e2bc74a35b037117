"""Pool, scheduler and ledger of real nodes agree; a block that is lost on purpose is found."""

import asyncio
import re
from pathlib import Path

import httpx
import pytest

from tests.e2e.client import difference
from tests.e2e.conftest import Trio
from tests.e2e.fidelity import answers, ask_all
from tests.e2e.stack import FLOAT32, Stack
from tests.e2e.targets import LEAK_FILE
from tests.e2e.waiting import GIVEN_BACK_WITHIN_S, settle

pytestmark = pytest.mark.e2e


async def checked_under_load(trio: Trio) -> list[dict[str, object]]:
    """Serve all prompts, 8 at once, and have both nodes checked again and again until they are done."""
    serving = asyncio.create_task(ask_all(trio.proxy.url, trio.model, trio.prompts[:15], at_once=8))
    found = []
    while not serving.done():
        found += [await asyncio.to_thread(server.integrity) for server in (trio.prefill, trio.decode)]
    assert not any(isinstance(answer, httpx.HTTPError) for answer in await serving)
    return found


def test_the_views_agree_under_load_and_before_idling(trio: Trio) -> None:
    """Nothing is found, and it was looked. With clients that leave at any moment: tests/chaos."""
    found = asyncio.run(checked_under_load(trio))
    for server in (trio.prefill, trio.decode):
        settle(server, GIVEN_BACK_WITHIN_S)

    print(f"{len(found)} checks under load")
    assert found
    assert [answer for answer in found if not answer["ok"]] == []
    for server in (trio.prefill, trio.decode):
        answer = server.integrity()
        assert (answer["ok"], answer["owners_known"], answer["findings"]) == (True, True, [])
        assert (answer["integrity_findings"], bool(answer["idle_checks"])) == (0, True)


def test_a_block_without_an_owner_is_reported_with_its_history(stack: Stack, trio: Trio, tmp_path: Path) -> None:
    """A reference that the connector forgets is found before the engine idles; the API and the log tell whose it was."""
    order = tmp_path / "leak"
    target, env = "tests.e2e.targets:leaking_decode_node", {LEAK_FILE: str(order)}
    decode = stack.node("decode", *FLOAT32, name="leaking", target=target, env=env)
    proxy = stack.proxy([trio.prefill], [decode])
    (first,) = answers(proxy.url, stack.model, trio.prompts[9:10])
    settle(decode, GIVEN_BACK_WITHIN_S)
    assert decode.integrity()["ok"] is True

    order.touch()
    (answer,) = answers(proxy.url, stack.model, trio.prompts[10:11])

    assert difference(trio.reference[9], first) == difference(trio.reference[10], answer) == ""
    found = decode.integrity()
    assert (found["ok"], found["settled"], found["integrity_findings"]) == (False, True, 1)
    [finding] = found["findings"]
    assert (finding["what"], finding["references"]) == ("is in use, but nobody owns it", 1)
    history = [re.sub(r"[0-9.]+ s ago|cmpl-\S+", "…", event) for event in finding["history"]]
    print(finding)
    assert history[:2] == ["… reserved for the peer of … which ended …", "… given to … which ended …"]
    assert "integrity: " in decode.tail(200)
    assert finding["blocks"][0] in decode.tail(200)
