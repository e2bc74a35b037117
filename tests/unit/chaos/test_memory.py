"""What counts as too much memory."""

import os

from tests.chaos.memory import Growth, beyond, growths, pss_bytes


def test_a_process_may_grow_as_much_as_a_plain_servers_and_a_little_more() -> None:
    """Engines are compared with the engine, API processes with the API process."""
    plain = growths({"plain": 100, "plain/engine": 1000}, {"plain": 110, "plain/engine": 1000})
    ours = growths({"p0": 100, "p0/engine": 1000, "proxy": 50}, {"p0": 114, "p0/engine": 1060, "proxy": 51})

    assert beyond(ours, plain) == ["p0/engine grew by 6.0%, a plain server's by 0.0%"]


def test_a_process_that_is_not_in_both_measurements_is_left_out() -> None:
    """It was started or ended in between."""
    assert growths({"a": 1, "b": 2}, {"a": 2}) == [Growth(process="a", before_bytes=1, after_bytes=2)]


def test_memory_that_is_made_is_seen() -> None:
    """Read from the kernel, of this very process."""
    before = pss_bytes(os.getpid())

    made = bytearray(os.urandom(1)) * (64 << 20)

    assert pss_bytes(os.getpid()) - before > 60 << 20
    assert made
