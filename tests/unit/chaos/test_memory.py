import os

from tests.chaos.memory import Growth, Held, beyond, growths, held


def holding(**anonymous: int) -> dict[str, Held]:
    """Return a measurement; PSS says something else."""
    return {name.replace("_", "/"): Held(size, 7) for name, size in anonymous.items()}


def test_a_process_may_grow_as_much_as_a_plain_servers_and_a_little_more() -> None:
    """Engines are compared with the engine, API processes with the API process."""
    plain = growths(holding(plain=100, plain_engine=1000), holding(plain=110, plain_engine=1000))
    ours = growths(holding(p0=100, p0_engine=1000, proxy=50), holding(p0=114, p0_engine=1060, proxy=51))

    assert beyond(ours, plain) == ["p0/engine grew by 6.0%, a plain server's by 0.0%"]


def test_a_process_that_is_not_in_both_measurements_is_left_out() -> None:
    """It was started or ended in between."""
    assert growths(holding(a=1, b=2), holding(a=2)) == [Growth(process="a", before=Held(1, 7), after=Held(2, 7))]


def test_memory_that_is_made_is_seen_in_both_accounts() -> None:
    """Read from the kernel, of this very process."""
    before = held(os.getpid())

    made = bytearray(os.urandom(1)) * (64 << 20)

    after = held(os.getpid())
    assert after.anonymous_bytes - before.anonymous_bytes > 60 << 20
    assert after.pss_bytes - before.pss_bytes > 60 << 20
    assert made
