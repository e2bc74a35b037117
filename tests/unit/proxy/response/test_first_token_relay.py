"""Whether, and when, a prefill node's stream goes to the client."""

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from baton.proxy.response import first_token_relay
from baton.proxy.response.first_token_relay import FirstTokenRelay
from baton.proxy.response.request_record import RequestRecord

COMMENT = b": it lives\n\n"
EVENT = b'data: {"a": 1}\n\n'


def relay_of(passes: Callable[[bytes], bytes] = bytes, **stream: Any) -> FirstTokenRelay:
    """Relay for a client that has nothing yet, on a stream whose part passes on what `passes` returns."""
    part = Mock(has_passed=False, is_whole=False, broken=None, take=Mock(side_effect=passes))
    known = {"part": part, "went_on": False, "why_not_relayed": "", "asked": Mock(start=None), **stream}
    return FirstTokenRelay(Mock(record=RequestRecord("r")), Mock(**known))


def plan(*, first_token: bool = True, starts_with_tokens: bool = True) -> Mock:
    return Mock(first_token=first_token, decode=Mock(starts_with_tokens=starts_with_tokens))


@pytest.mark.parametrize(
    ("stream", "planned", "said"),
    [
        ({}, plan(), "late"),
        ({"why_not_relayed": "echo"}, plan(), "echo"),
        ({"asked": Mock(start="tokens")}, plan(), "started"),
        ({}, plan(first_token=False), "nodes"),
        ({}, plan(starts_with_tokens=False), "nodes"),
        ({"why_not_relayed": "echo"}, plan(first_token=False), "echo"),
        ({"went_on": True}, plan(), ""),  # what was said of an earlier attempt stays
        ({"part": Mock(has_passed=True)}, plan(), ""),
    ],
)
def test_a_prefill_nodes_stream_is_relayed_unless_something_forbids_it(
    stream: dict[str, Any], planned: Mock, said: str
) -> None:
    """Both nodes must be able to, and the client must have nothing yet; the first reason is the one that is counted."""
    relay = relay_of(**stream)

    assert relay.begin(planned) is (said == "late")
    assert relay.stream.begin_prefill.called is (said == "late")  # type: ignore[attr-defined]
    assert relay.record.first_token == said


def test_what_passes_begins_the_clients_stream_and_goes_on_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first event is timed even if nothing of it is sent, a comment is not; the client says whether it keeps up."""
    monkeypatch.setattr(first_token_relay, "perf_counter", iter([10.0, 20.0]).__next__)
    relay, told = relay_of(passes=lambda data: data.removeprefix(COMMENT).removeprefix(EVENT)), Mock()
    relay.on_first_event = told
    client, answer = Mock(record=relay.record), Mock(headers=[(b"x-of", b"ours")])
    client.begin_stream.return_value = client.write.return_value = False
    relay.client = client

    assert relay.take(answer, COMMENT) is True
    assert relay.began_s == 0.0
    assert relay.take(answer, EVENT) is True
    assert relay.record.first_token == ""
    assert relay.take(answer, EVENT + b"token") is False
    relay.record.status = 200
    assert relay.take(answer, b"more") is False

    told.assert_called_once_with(10.0)
    assert (relay.began_s, relay.record.first_token) == (10.0, "relayed")
    client.begin_stream.assert_called_once_with(200, [(b"x-of", b"ours")], b"token")
    client.write.assert_called_once_with(b"more")


def test_a_new_attempt_is_timed_by_itself() -> None:
    relay = relay_of()
    relay.began_s, relay.on_first_event = 10.0, Mock()

    relay.begin(plan())

    assert relay.began_s == 0.0
    assert relay.on_first_event is None
