"""`loadtest calibrate` against a server that computes one prompt after the other, and a plan made from that."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from baton.loadtest.__main__ import main
from baton.loadtest.client.exchange import Exchange
from baton.loadtest.client.http import Client, parse_address
from baton.loadtest.plan.calibrate_command import Pair, calibrate, parser
from baton.loadtest.plan.calibration import read_calibration, write_calibration
from baton.loadtest.traffic.script import Form
from tests.support.fake_openai import FakeOpenAI, serving


class OneAfterTheOther(FakeOpenAI):
    """Computes prompts in line: 5 ms, and 0.1 ms for each token."""

    def __init__(self) -> None:
        super().__init__(itl_s=0.003)
        self.line = asyncio.Lock()

    async def _answer(self, scope: Any, body: dict[str, Any], fault: Any, send: Any) -> None:
        async with self.line:
            await asyncio.sleep(0.005 + 1e-4 * len(body["prompt"]))
        await super()._answer(scope, body, fault, send)


async def test_a_second_calibration_finds_nothing_of_the_first_in_a_cache() -> None:
    """Of the same nodes, asked again."""
    fake = FakeOpenAI()
    argv = ["--out", "c.json", "--prompt-tokens", "20,40,80", "--samples", "1"]
    async with serving(fake) as url, asyncio.timeout(60):
        for _ in range(2):
            client = Client(parse_address(url), {}, 30)
            asking = Exchange(client, Form(model="fake-model", chat=False))
            await Pair(asking, parser().parse_args(["--url", url, *argv])).prefill()
            client.close()

    prompts = [tuple(body["prompt"]) for body in fake.bodies]
    assert len(set(prompts)) == len(prompts)


@pytest.mark.exhaustive
async def test_a_calibration_can_be_planned_with(tmp_path: Path) -> None:
    """Every kind of coefficient is there, no prompt was sent twice, and the file is one that `plan` reads."""
    fake, file = OneAfterTheOther(), tmp_path / "c.json"
    argv = ["--prompt-tokens", "200,400,800", "--users", "1,4", "--answer-tokens", "20"]
    argv += ["--samples", "2", "--rounds", "2"]
    async with serving(fake) as url, asyncio.timeout(60):
        given = parser().parse_args(["--url", url, "--out", str(file), *argv])
        found = await calibrate(given)
    write_calibration(found, file)

    assert read_calibration(file) == found
    assert found.about["seed"] == given.seed
    assert found.prefill.token_s > 0
    assert found.decode.step_s > 0
    assert found.fits["prefill"].rows >= 5
    assert found.fits["decode"].rows == 2 * 3 * 2 * (1 + 4)  # rounds, kinds of run, two requests of each user
    prompts = [tuple(body["prompt"]) for body in fake.bodies]
    assert len(set(prompts)) == len(prompts)
    load = ["--rate", "4", "--requests", "40", "--input-tokens", "300", "--max-tokens", "6"]
    assert main(["plan", str(file), *load, "--nodes", "1:1,2:1"]) == 0


async def test_a_failed_answer_ends_a_calibration(tmp_path: Path, capsys: Any) -> None:
    """A figure of what was left would be wrong."""
    fake = FakeOpenAI()
    fake.faults = {5: "status"}
    async with serving(fake) as url, asyncio.timeout(60):
        status = await asyncio.to_thread(main, ["calibrate", "--url", url, "--out", str(tmp_path / "c.json")])

    assert status == 1
    assert "failed: status (the fake is overloaded)" in capsys.readouterr().err
    assert not (tmp_path / "c.json").exists()
