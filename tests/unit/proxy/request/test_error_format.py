import json

import pytest

from baton.proxy.errors import BadGatewayError, BadRequestError, NodeAnsweredError, OverloadedError, Refusal
from baton.proxy.request.endpoints import CHAT, COUNT_TOKENS, MESSAGES, RESPONSES
from baton.proxy.request.error_format import shape_of


def test_a_chats_error_is_openais() -> None:
    """In a stream it is an event without a name."""
    error = BadRequestError("no", param="n")

    assert json.loads(shape_of(CHAT).body(error))["error"]["param"] == "n"
    assert shape_of(CHAT).event(error) == b"data: " + error.body()


@pytest.mark.parametrize("path", [MESSAGES, COUNT_TOKENS])
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BadRequestError("no"), "invalid_request_error"),
        (OverloadedError("no", reason=Refusal.QUEUE, retry_after_s=1), "overloaded_error"),
        (BadGatewayError("no"), "api_error"),
        (NodeAnsweredError(418), "invalid_request_error"),
        (NodeAnsweredError(500), "api_error"),
    ],
)
def test_messages_have_anthropics_errors(path: str, error: BadRequestError, kind: str) -> None:
    """With Anthropic's names for kinds; the event has the name that its clients wait for."""
    body = json.loads(shape_of(path).body(error))

    assert body == {"type": "error", "error": {"type": kind, "message": error.message}}
    assert shape_of(path).event(error).startswith(b"event: error\ndata: {")


def test_what_a_node_said_stays() -> None:
    assert shape_of(MESSAGES).body(NodeAnsweredError(400, b'{"error":{}}')) == b'{"error":{}}'


def test_a_responses_error_event_is_what_openais_client_knows() -> None:
    """The type is at the top; `error` is what makes the client raise."""
    name, data = shape_of(RESPONSES).event(BadGatewayError("gone")).split(b"\n")

    told = json.loads(data.removeprefix(b"data: "))
    assert name == b"event: error"
    assert (told["type"], told["message"], told["error"]["code"]) == ("error", "gone", 502)
    assert told["sequence_number"] == 0
