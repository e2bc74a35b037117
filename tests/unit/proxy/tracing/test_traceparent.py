import pytest

from baton.proxy.tracing.traceparent import Parent, line, parent_of, state_of

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("version", "flags", "sampled"),
    [("00", "00", False), ("00", "01", True), ("00", "03", True), ("00", "02", False), ("01", "01-more", True)],
)
def test_a_clients_span_is_understood(version: str, flags: str, sampled: bool) -> None:
    """The last bit of the flags says whether it is sampled, whatever the others are; a later version may say more."""
    found = parent_of([(b"host", b"x"), (b"traceparent", f"{version}-{TRACE}-{SPAN}-{flags}".encode())])

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
    """As the standard has it: a new trace begins then, as without the header."""
    assert parent_of([(b"traceparent", value.encode())]) is None
    assert parent_of([(b"host", b"x")]) is None


@pytest.mark.parametrize("sampled", [False, True])
def test_what_is_sent_is_understood(sampled: bool) -> None:
    name, _, value = line(7, 9, sampled=sampled).strip().partition(b": ")

    assert parent_of([(name, value)]) == Parent(7, 9, sampled)


def test_the_state_of_other_systems_may_come_in_several_headers() -> None:
    assert state_of([(b"tracestate", b"a=1"), (b"x", b"y"), (b"tracestate", b"b=2")]) == ["a=1", "b=2"]
