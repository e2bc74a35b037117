"""Who asks, and which models that is for."""

from unittest.mock import Mock

from baton.proxy.request.caller import CALLER, caller_of, check_model


def test_a_callers_key_is_asked_for_the_model() -> None:
    caller = Mock()
    check_model({CALLER: caller}, "m")

    caller.check_model.assert_called_once_with("m")
    assert caller_of({CALLER: caller}) is caller


def test_without_keys_every_model_may_be_used() -> None:
    check_model({}, "m")

    assert caller_of({}) is None
