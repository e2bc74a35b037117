"""What a worker hears when it asks another one."""

import asyncio
import logging
from pathlib import Path

import pytest

from baton.proxy.workers import channel
from baton.proxy.workers.channel import Channel, NoAnswerError, ask
from tests.support.cluster import until_true


async def answer(word: str) -> bytes:
    """Answer one word, another one with nothing, a third one never."""
    if word == "slow":
        await asyncio.sleep(3600)
    return b"" if word == "nothing" else b"it said " + word.encode()


async def test_a_worker_is_asked_a_word_and_answers(tmp_path: Path) -> None:
    """In place of one that died and left its socket; again and again, until it listens no more."""
    path = tmp_path / "socket"
    path.touch()
    answering = Channel(path, answer)
    await answering.start()
    got = [await ask(path, word) for word in ("one", "two")]
    await answering.stop()
    await answering.stop()

    assert got == [b"it said one", b"it said two"]
    with pytest.raises(NoAnswerError):
        await ask(path, "one")


@pytest.mark.parametrize("word", ["nothing", "slow"])
async def test_a_worker_that_does_not_answer_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, word: str
) -> None:
    """Nor does it wait itself: the connection is closed, and the log says so."""
    monkeypatch.setattr(channel, "TIMEOUT_S", 0.5 if word == "slow" else 20.0)
    answering = Channel(tmp_path / "socket", answer)
    await answering.start()
    with pytest.raises(NoAnswerError):
        await ask(tmp_path / "socket", word)
    await until_true(lambda: len(asyncio.all_tasks()) == 1)
    await answering.stop()

    warnings = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    assert warnings == ["another worker could not be answered"] * (word == "slow")
