"""A short run of what `make api-fuzz` does at length."""

from pathlib import Path

import pytest

from tests.fuzz.api_schema import run
from tests.fuzz.raw_http.stage import stage


@pytest.mark.exhaustive  # it installs schemathesis; odd fields and bodies: test_raw_http.py
@pytest.mark.timeout(400)
async def test_generated_requests_find_no_fault_of_ours(tmp_path: Path) -> None:
    """Every operation of the document is asked, in good and in bad ways."""
    async with stage(tmp_path) as made:
        found, problems, said = await run(made, tmp_path, 50, seed=3)

    assert problems == [], said[-4000:]
    assert found >= 50
