"""What workers count together."""

import os
from pathlib import Path

import pytest

from baton.proxy.auth.counts import counts_of
from baton.proxy.workers.slot import WorkerSlot


def slot(directory: Path, number: int) -> WorkerSlot:
    return WorkerSlot(number=number, workers=3, directory=directory)


def test_workers_see_each_others_requests(tmp_path: Path) -> None:
    """Of the same key, and of no other; one that died leaves none behind, and what the minute has seen stays."""
    first, second = (counts_of(slot(tmp_path, number))("a") for number in (0, 2))
    other = counts_of(slot(tmp_path, 1))("b")
    first.add(2)
    second.add(1)
    first.until_s = 12.5

    assert (first.inside, second.inside, other.inside) == (3, 3, 0)
    assert (first.own, second.own) == (2, 1)
    assert (second.until_s, other.until_s) == (12.5, 0.0)
    successor = counts_of(slot(tmp_path, 0))("a")
    assert (successor.inside, successor.own, successor.until_s) == (1, 0, 12.5)


def test_what_is_shared_keeps_no_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reading of the file of keys may add some."""
    opened, really = list[int](), os.open

    def opening(path: Path, flags: int, mode: int) -> int:
        opened.append(really(path, flags, mode))
        return opened[-1]

    monkeypatch.setattr(os, "open", opening)
    counts = counts_of(slot(tmp_path, 0))("a")
    counts.add(1)

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])
    assert counts.own == len(opened) == 1


def test_alone_nothing_is_shared() -> None:
    make = counts_of(None)
    first, second = make("a"), make("b")
    first.add(1)

    assert (first.inside, second.inside) == (1, 0)
