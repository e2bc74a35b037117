"""Files that change while we look."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from ssl import SSLError

import pytest

from baton.proxy.http_server.file_watcher import FileWatcher
from tests.support.cluster import until_true


class Seen:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.taken: list[str] = []
        self.failures: list[bool] = []

    def replace(self, text: str) -> None:
        replacement = self.path.with_suffix(".new")
        replacement.write_text(text)
        replacement.rename(self.path)

    def read(self) -> str:
        try:
            text = self.path.read_text()
        except OSError as exc:
            raise ValueError("it is not there") from exc
        if text == "broken":
            raise ValueError("it is broken")
        return text


@pytest.fixture
def seen(tmp_path: Path) -> Seen:
    path = tmp_path / "file"
    path.write_text("first")
    return Seen(path)


def wrapped(cause: Exception) -> ValueError:
    exc = ValueError("cannot be read")
    exc.__cause__ = cause
    return exc


@asynccontextmanager
async def following(seen: Seen, read: Callable[[], str] | None = None) -> AsyncIterator[None]:
    follower = FileWatcher(
        "the file",
        [seen.path],
        read=read or seen.read,
        take=seen.taken.append,
        failed=seen.failures.append,
        look_s=0.01,
    )
    follower.start()
    try:
        yield
    finally:
        await follower.stop()
        await follower.stop()


async def test_a_file_is_taken_at_first_and_when_it_has_changed(seen: Seen) -> None:
    async with following(seen):
        await asyncio.sleep(0.1)
        before = list(seen.taken)
        seen.replace("fresh")  # of the same length
        await until_true(lambda: len(seen.taken) > 1)
        await asyncio.sleep(0.1)

    assert (before, seen.taken) == (["first"], ["first", "fresh"])


async def test_a_broken_file_changes_nothing_and_is_told_once(seen: Seen, caplog: pytest.LogCaptureFixture) -> None:
    async with following(seen):
        seen.path.write_text("broken")
        await until_true(lambda: len(seen.failures) == 1)
        seen.path.unlink()
        await until_true(lambda: len(seen.failures) == 2)
        await asyncio.sleep(0.1)
        seen.replace("second")  # it is read all the time
        await until_true(lambda: len(seen.taken) == 2)

    assert seen.failures == [True, True, False]
    assert seen.taken == ["first", "second"]
    told = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert ["it is broken" in told[0].message, "it is not there" in told[1].message] == [True, True]
    assert len(told) == 2


@pytest.mark.parametrize("error", [ValueError("it is broken"), wrapped(SSLError("no certificate"))])
async def test_a_broken_file_is_read_once(seen: Seen, error: Exception) -> None:
    """It may be long, and reading it takes the processor."""
    reads = 0

    def read() -> str:
        nonlocal reads
        reads += 1
        if seen.path.read_text() == "broken":
            raise error
        return seen.read()

    async with following(seen, read):
        seen.path.write_text("broken")
        await until_true(lambda: seen.failures == [True])
        reads_before = reads
        await asyncio.sleep(0.1)

    assert reads == reads_before


def test_a_broken_file_at_the_start_is_an_error(seen: Seen) -> None:
    """There is nothing yet that could stay."""
    seen.path.write_text("broken")

    with pytest.raises(ValueError, match="broken"):
        FileWatcher("the file", [seen.path], read=seen.read, take=seen.taken.append)


@pytest.mark.parametrize(
    "error", [OSError("too many open files"), RuntimeError("can't start new thread"), wrapped(OSError("again"))]
)
async def test_files_that_could_not_be_read_for_a_moment_are_read_again(
    seen: Seen, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """The process had no free descriptor, for instance: nothing is written a second time. Told once."""
    fails = 3

    def read() -> str:
        nonlocal fails
        if seen.path.read_text() == "second" and fails:
            fails -= 1
            raise error
        return seen.read()

    async with following(seen, read):
        seen.path.write_text("second")
        await until_true(lambda: seen.taken == ["first", "second"])
        await until_true(lambda: seen.failures == [True, False])

    assert [record.levelno for record in caplog.records].count(logging.ERROR) == 1


async def test_what_cannot_be_taken_is_told_and_the_next_one_is(seen: Seen) -> None:
    """A disk that is full, for instance: the file is followed on."""

    def take(text: str) -> None:
        if text == "too much":
            raise OSError("no space left")
        seen.taken.append(text)

    follower = FileWatcher("the file", [seen.path], read=seen.read, take=take, failed=seen.failures.append, look_s=0.01)
    follower.start()
    seen.path.write_text("too much")
    await until_true(lambda: seen.failures == [True])
    seen.path.write_text("last")
    await until_true(lambda: seen.taken == ["first", "last"])
    await follower.stop()

    assert seen.failures == [True, False]
