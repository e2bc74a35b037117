from baton.loadtest.mock_engine.wheel import Due, Wheel


def repeated(log: list[int], times: int, again_s: float) -> Due:
    for left in reversed(range(times)):
        log.append(len(log))
        if left:
            yield again_s


def test_a_delay_ends_with_the_first_tick_that_is_not_before_it() -> None:
    """Nothing is early; a time that is a tick is that tick."""
    wheel = Wheel(0.010)

    for at_s in (0.030, 0.0301, 0.039):
        wheel.add(repeated([], 0, 0.0), at_s)

    assert wheel.next_tick == 3
    wheel.turn(3)
    assert wheel.next_tick == 4


def test_what_repeats_does_not_drift() -> None:
    """A wheel that is turned late does not move the ticks after it, and what was missed is made good later."""
    wheel, log = Wheel(0.010), list[int]()
    wheel.add(repeated(log, 4, 0.020), 0.010)

    wheel.turn(2)
    assert (log, wheel.next_tick) == ([0], 3)
    wheel.turn(9)
    assert (len(log), wheel.next_tick) == (2, 5)


def test_a_gap_shorter_than_a_tick_takes_one_tick() -> None:
    """Work that is due again at once does not keep the wheel busy for ever."""
    wheel, log = Wheel(0.010), list[int]()
    wheel.add(repeated(log, 3, 0.0), 0.010)

    wheel.turn(1)

    assert (log, wheel.next_tick) == ([0], 2)
