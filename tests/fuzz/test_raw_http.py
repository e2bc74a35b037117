"""A short run of what `python -m tests.fuzz.raw_http` does at length."""

from pathlib import Path

from tests.fuzz.raw_http.run import run
from tests.fuzz.raw_http.stage import stage

SCRIPTS = 600


async def test_hostile_clients_harm_no_other_client(tmp_path: Path) -> None:
    """No fault of ours, no hang, no lost descriptor, and good requests are served afterwards."""
    async with stage(tmp_path) as made:
        outcome = await run(made, SCRIPTS, seed=7)

    assert outcome.problems == []
    assert outcome.scripts == SCRIPTS
    assert {200, 400, 404, 405} <= set(outcome.statuses)
    assert len(outcome.kinds) == 11
