"""Quarantine as pictures show it."""

from tests.chaos.quarantine import Quarantine


def test_time_beyond_the_share_is_counted_apart() -> None:
    """Ten of a hundred are allowed; eleven are not."""
    quarantine = Quarantine(max_share=0.1)
    for at, blocks in enumerate([10, 10, 11, 12, 10, 0]):
        quarantine.note("d0", blocks, 100, float(at))

    assert (quarantine.any.longest_s, quarantine.beyond.longest_s) == (4.0, 1.0)


def test_what_was_is_forgotten() -> None:
    """The next fault begins anew."""
    quarantine = Quarantine(max_share=0.1)
    quarantine.note("d0", 50, 100, 1.0)
    quarantine.note("d0", 50, 100, 3.0)

    quarantine.forget()

    assert (quarantine.most_blocks, quarantine.any.longest_s, quarantine.beyond.longest_s) == (0, 0.0, 0.0)
