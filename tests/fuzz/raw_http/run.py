"""Throws scripts at the proxy, several at a time, and judges what comes back."""

import asyncio
import random
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from tests.fuzz.raw_http.scripts import Script, good, make
from tests.fuzz.raw_http.stage import Stage

AT_ONCE: Final = 16
HANG_S: Final = 20.0  # a script that has been sent whole, or half-closed, is answered or closed by then
IDLE_S: Final = 1.0  # so long a client waits that leaves without a word
SETTLE_S: Final = 30.0
LOOK_S: Final = 0.2
SLACK: Final = 4  # descriptors
_STATUS: Final = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
_ALLOWED_5XX: Final = frozenset((501, 503))  # not implemented by the engine; come again


@dataclass(slots=True)
class Outcome:
    scripts: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    closed: int = 0  # without an answer
    problems: list[str] = field(default_factory=list)


async def run(stage: Stage, scripts: int, seed: int) -> Outcome:
    """Throw so many scripts; the proxy has to serve good requests afterwards, with no descriptor lost."""
    outcome, random_ = Outcome(), random.Random(seed)
    await _must_serve(stage, random_, outcome)
    before = stage.descriptors()
    pending = iter([make(random_) for _ in range(scripts)])

    async def client() -> None:
        for script in pending:
            if not stage.alive:
                return
            await _throw(stage, script, outcome)

    await asyncio.gather(*(client() for _ in range(AT_ONCE)))
    if not stage.alive:
        outcome.problems.append(f"the proxy ended with {stage.process.returncode}")
        return outcome
    await _must_serve(stage, random_, outcome)
    await _must_settle(stage, before, outcome)
    outcome.problems += stage.faults()
    return outcome


async def _throw(stage: Stage, script: Script, outcome: Outcome) -> None:
    outcome.scripts += 1
    outcome.kinds[script.kind] += 1
    said = b""
    try:
        async with asyncio.timeout(HANG_S):
            said = await _say(stage.port, script)
    except TimeoutError:
        outcome.problems.append(f"{script.kind}: no answer and no end within {HANG_S:g} s: {_shown(script)}")
    except OSError:
        pass  # reset, which is an end
    statuses = [int(status) for status in _STATUS.findall(said)]
    outcome.statuses.update(statuses)
    outcome.closed += not statuses
    outcome.problems += [
        f"{script.kind}: {status}: {_shown(script)}"
        for status in statuses
        if status >= 500 and status not in _ALLOWED_5XX
    ]


async def _say(port: int, script: Script) -> bytes:
    """Send a script and return what came back until the connection's end, or until the client loses its patience."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    said = bytearray()
    reading = asyncio.create_task(_collect(reader, said))
    try:
        with suppress(OSError):
            for piece in script.pieces:
                writer.write(piece)
                await writer.drain()
                if script.pause_s:
                    await asyncio.sleep(script.pause_s)
            if script.half_closes:
                writer.write_eof()
        if script.half_closes:
            await reading
        else:
            await asyncio.wait((reading,), timeout=IDLE_S)
    finally:
        reading.cancel()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    return bytes(said)


async def _collect(reader: asyncio.StreamReader, said: bytearray) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            said += data


async def _must_serve(stage: Stage, random_: random.Random, outcome: Outcome) -> None:
    for path in ("/v1/completions", "/v1/chat/completions"):
        request = good(random_, path).replace(b"Host: proxy", b"Host: proxy\r\nConnection: close")
        try:
            async with asyncio.timeout(HANG_S):
                said = await _say(stage.port, Script(kind="good", pieces=(request,), half_closes=False))
        except (TimeoutError, OSError) as exc:
            outcome.problems.append(f"a good request was not served: {exc!r}")
        else:
            if not said.startswith(b"HTTP/1.1 200 "):
                outcome.problems.append(f"a good request was answered with {said[:200]!r}")


async def _must_settle(stage: Stage, before: int, outcome: Outcome) -> None:
    """Descriptors come back: of clients at once, of nodes when they have idled."""
    for _ in range(round(SETTLE_S / LOOK_S)):
        if stage.descriptors() <= before + SLACK:
            return
        await asyncio.sleep(LOOK_S)
    outcome.problems.append(f"{stage.descriptors()} descriptors are open, {before} were at the start")


def _shown(script: Script) -> str:
    return repr(b"".join(script.pieces)[:300])
