import pytest

from baton.proxy.tracing.traceparent import Parent, line, parent_of, state_of

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("flags", "sampled"), [("00", False), ("01", True), ("03", True), ("02", False)], ids=["no", "yes", "more", "other"]
)
def test_a_clients_span_is_understood(flags: str, sampled: bool) -> None:
    """The last bit of the flags says whether it is sampled, whatever the others are."""
    found = parent_of([(b"host", b"x"), (b"traceparent", f"00-{TRACE}-{SPAN}-{flags}".encode())])

    assert found == Parent(int(TRACE, 16), int(SPAN, 16), sampled)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
    ],
)
def test_what_is_no_span_is_none(value: str) -> None:
    """As the standard has it: a trace begins anew then."""
    assert parent_of([(b"traceparent", value.encode())]) is None


def test_a_later_version_may_say_more() -> None:
    """What we know of it is where it was."""
    found = parent_of([(b"traceparent", f"01-{TRACE}-{SPAN}-01-more".encode())])

    assert found is not None
    assert found.sampled


def test_without_the_header_there_is_no_span() -> None:
    """Most clients trace nothing."""
    assert parent_of([(b"host", b"x")]) is None


@pytest.mark.parametrize("sampled", [False, True])
def test_what_is_sent_is_understood(sampled: bool) -> None:
    """Small ids are filled up."""
    name, _, value = line(7, 9, sampled=sampled).strip().partition(b": ")

    assert parent_of([(name, value)]) == Parent(7, 9, sampled)


def test_the_state_of_other_systems_may_come_in_several_headers() -> None:
    """They are one list."""
    assert state_of([(b"tracestate", b"a=1"), (b"x", b"y"), (b"tracestate", b"b=2")]) == ["a=1", "b=2"]
