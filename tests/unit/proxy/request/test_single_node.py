import json
from typing import Any

import pytest

from baton.proxy.planning.reasons import LABELS
from baton.proxy.request.endpoints import CHAT, RESPONSES
from baton.proxy.request.parse import ClientRequest, parse
from baton.proxy.request.single_node import (
    BACKGROUND,
    PREVIOUS,
    TOOLS,
    TRUNCATION,
    previous_of,
    reason_alone,
    wants_logprobs,
)


def asked(**fields: Any) -> ClientRequest:
    return parse(RESPONSES, "id", [], json.dumps({"model": "m", "input": "a", **fields}).encode())


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, None),
        ({"store": True, "background": False, "previous_response_id": None, "truncation": "disabled"}, None),
        ({"tools": [{"type": "function", "name": "f"}]}, None),
        ({"tools": []}, None),
        ({"background": True}, BACKGROUND),
        ({"truncation": "auto"}, TRUNCATION),
        ({"previous_response_id": "resp_1"}, PREVIOUS),
        ({"tools": [{"type": "code_interpreter"}]}, TOOLS),
        ({"tools": ["odd"]}, TOOLS),
    ],
)
def test_what_one_node_has_to_serve(fields: dict[str, Any], reason: str | None) -> None:
    """State that is on a node, prompts that are made there, and prompts that two nodes would cut differently."""
    assert reason_alone(asked(**fields)) == reason
    assert reason is None or LABELS[reason]


def test_odd_values_and_other_routes_name_no_answer() -> None:
    """They are the nodes' to judge; a chat with such a field is a chat."""
    chat = parse(CHAT, "id", [], b'{"model":"m","messages":[],"background":true,"previous_response_id":"a"}')

    assert previous_of(asked(previous_response_id=7)) is None
    assert reason_alone(asked(tools="odd")) is None
    assert (reason_alone(chat), previous_of(chat)) == (None, None)


@pytest.mark.parametrize(
    ("include", "wanted"),
    [(None, False), (["a"], False), ([7, "message.output_text.logprobs"], True), ([7], False), ("logprobs", False)],
)
def test_a_response_has_log_probabilities_if_it_includes_some(include: Any, wanted: bool) -> None:
    assert wants_logprobs(asked(include=include)) is wanted
