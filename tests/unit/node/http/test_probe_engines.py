"""Children that do not answer: bounded, ended, and told for what they are."""

import sys

import pytest

from baton.contracts.probe import MIB, Place, Push, Receive
from baton.node.http import probe_engines
from baton.node.http.probe_engines import ProbeEngines, ProbeError

PLACE = Place(host="127.0.0.1", protocol="tcp")
PUSH = Push(session="h:1", address=4096, size_bytes=MIB, idle_s=0)


@pytest.fixture(autouse=True)
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every child hangs, and the limits on waiting are short."""
    monkeypatch.setattr(probe_engines, "COMMAND", (sys.executable, "-c", "import time; time.sleep(60)"))
    monkeypatch.setattr(probe_engines, "START_TIMEOUT_S", 0.1)
    monkeypatch.setattr(probe_engines, "PUSHING_S", 0.1)


async def test_pushes_that_do_not_end_are_a_link_that_does_not_carry() -> None:
    """Which is wrong, and not merely a probe that could not be had; the next order is not kept waiting."""
    engines = ProbeEngines(PLACE)

    for _ in range(2):
        assert (await engines.push(PUSH)).problem == "the pushes did not end within 0.2 s"


async def test_a_receiver_that_does_not_come_up_says_so() -> None:
    """It takes none of the places for receivers."""
    engines = ProbeEngines(PLACE)

    for _ in range(probe_engines.MAX_RECEIVERS + 1):
        with pytest.raises(ProbeError, match=r"no answer within 0\.1 s"):
            await engines.receive(Receive(seconds=1))
