"""Any client of a vLLM server can be one of Baton's: the same requests, the same answers, field by field."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from baton.contracts.http import DISAGGREGATED, LOCAL, PATH_HEADER
from tests.e2e.conftest import Trio
from tests.e2e.parity.allowed import ALLOWED, explained
from tests.e2e.parity.axes import AXES, cases, request
from tests.e2e.parity.compare import differences
from tests.e2e.stack import FLOAT32, STORES, Stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

EXACT_BETWEEN_NODES = (
    *(("format", "json_schema"), ("format", "regex"), ("tools", "required"), ("tools", "named")),
    *(("logprobs", "2"), ("n", "2")),
)
DOCUMENT = Path(__file__).parents[2] / "docs" / "api.md"


def test_every_case_is_answered_as_by_one_server(trio: Trio) -> None:
    """Whatever differs is on the list; each entry of the list is needed, and each route was disaggregated.

    No other test has a whole block in common with these prompts, which would show in `cached_tokens`.
    """
    problems: list[str] = []
    needed: set[str] = set()
    disaggregated: Counter[str] = Counter()
    exchanged: Counter[tuple[str, str]] = Counter()  # values in requests whose KV came from the other node
    with httpx.Client(timeout=60) as client:
        for serial, (path, case) in enumerate(cases()):
            asked = request(path, case, trio.model, serial)
            ours, plain = (client.post(f"{server.url}{path}", json=asked.body) for server in (trio.proxy, trio.plain))
            if ours.headers.get(PATH_HEADER) == DISAGGREGATED:
                disaggregated[path] += 1
                exchanged.update(case.items())
            for difference in differences(ours, plain):
                if allowed := explained(difference, path, case):
                    needed.add(allowed.name)
                else:
                    plainly = {name: value for name, value in case.items() if value != AXES[path][name][0]}
                    problems.append(f"{path} {json.dumps(plainly)}: {difference}")

    assert problems == []
    assert all(disaggregated[path] for path in AXES), disaggregated
    assert all(exchanged[value] for value in EXACT_BETWEEN_NODES), exchanged
    assert not exchanged["prompt_logprobs", "1"]  # on the decode node alone
    assert {allowed.name for allowed in ALLOWED} == needed


def test_a_conversation_goes_on_where_it_is_stored(stack: Stack, trio: Trio) -> None:
    """With two decode nodes: the first answer is disaggregated and stored, the second is made where that is."""
    second_node = stack.node("decode", *FLOAT32, env=STORES, name="other-decode")
    proxy = stack.proxy([trio.prefill], [trio.decode, second_node])
    asked: dict[str, Any] = {"model": stack.model, "max_output_tokens": 8, "temperature": 0}
    with httpx.Client(base_url=proxy.url, timeout=60) as client:
        for index in range(3):
            first = client.post("/v1/responses", json={**asked, "input": f"Who keeps ship {index}?"})
            previous = first.json()["id"]
            more = {"input": "And why?", "previous_response_id": previous}
            second = client.post("/v1/responses", json={**asked, **more})
            assert (first.status_code, first.headers[PATH_HEADER]) == (200, DISAGGREGATED), first.text
            assert (second.status_code, second.headers[PATH_HEADER]) == (200, LOCAL), second.text
            assert second.json()["previous_response_id"] == previous
            assert client.get(f"/v1/responses/{previous}").json()["id"] == previous
        unknown = client.get("/v1/responses/resp_unheard_of")

    assert unknown.status_code == 404


def test_the_documentation_lists_what_differs() -> None:
    """Name and reason, as they stand in the list."""
    text = " ".join(DOCUMENT.read_text().split())

    assert [allowed.name for allowed in ALLOWED if f"**{allowed.name}**" not in text] == []
    assert [allowed.name for allowed in ALLOWED if allowed.reason not in text] == []
