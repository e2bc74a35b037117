"""`loadtest run`, from the arguments to the exit status."""

import argparse
import asyncio
import contextlib
import csv
import gc
import io
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import uvloop

from baton.loadtest import words
from baton.loadtest.client.exchange import Exchange
from baton.loadtest.client.fetch import fetch, first_model, server_version
from baton.loadtest.client.http import Address, Client, parse_address
from baton.loadtest.errors import RunError, UsageError
from baton.loadtest.measures.record import Record
from baton.loadtest.report.html import html_report
from baton.loadtest.report.tables import as_plain, figures
from baton.loadtest.report.text import markdown_report, text_report
from baton.loadtest.result import SCHEMA_VERSION, Result, StageResult, write_result
from baton.loadtest.run import build
from baton.loadtest.run.build import parse
from baton.loadtest.run.environment import environment, now, raise_limit, shown
from baton.loadtest.run.loops import Closed, CostMeter, Loop, progress, warm_up
from baton.loadtest.run.nodes import LegWatch, differences, scrapes, token
from baton.loadtest.traffic.script import Form, Source

COLUMNS: Final = (  # of the requests in CSV
    *("stage", "index", "conversation", "turn", "due_s", "queued_s", "started_s", "ended_s"),
    *("ttft_s", "tpot_s", "latency_s", "input_tokens", "output_tokens", "asked_output_tokens"),
    *("status", "error", "detail", "path"),
)


def main(argv: Sequence[str]) -> int:
    given = parse(argv)
    dataset = build.source(given)
    if given.out:
        prepare(given.out)
    result: Result = uvloop.run(run(given, dataset))
    try:
        if given.out:
            write_reports(result, given.out)
    finally:
        print(text_report(result))
    if given.out:
        print(f"\nwritten to {given.out}")
    _refuse_nothing([record for stage in result.stages for record in stage.records])
    return words.EXIT_INTERRUPTED if result.interrupted else 0


async def run(given: argparse.Namespace, dataset: Source) -> Result:
    """Take every stage; with Ctrl-C, those that there are. Raises `RunError`: the server is not there."""
    address, began_at, bearer = parse_address(given.url), now(), token(given.secret_file)
    nodes = {url: parse_address(url.removesuffix("/metrics")) for url in given.metrics_url}
    stages = build.stages(given, dataset)
    caps = [stage.load.concurrency if isinstance(stage.load, Closed) else stage.load.cap for stage in stages]
    raise_limit(max(cap or 0 for cap in caps) or None)
    headers = dict(given.header) | ({"Authorization": f"Bearer {given.api_key}"} if given.api_key else {})
    if given.model:
        await fetch(address, "/v1/models", headers, any_status=True)
    model = given.model or await first_model(address, headers)
    version = await server_version(address, headers)
    chat, fixed = given.endpoint == "chat", given.ignore_eos
    form = Form(model=model, chat=chat, ignore_eos=fixed, temperature=given.temperature, more=given.more)
    client = Client(address, headers, given.timeout)
    session = _Session(Exchange(client, form), dataset, nodes, bearer, asyncio.Event())
    with _stopped_by_signals(session.stop):
        taken = await _stages(session, stages, given)
    client.close()
    return with_figures(
        Result(
            schema_version=SCHEMA_VERSION,
            began_at=began_at,
            interrupted=session.stop.is_set(),
            arguments={**shown(given), "model": model, "server": version},
            workload={**build.workload(given, dataset), "model": model},
            environment=environment(),
            slos_ms=given.slos_ms,
            stages=taken,
        )
    )


@dataclass(frozen=True, slots=True)
class _Session:
    exchange: Exchange
    dataset: Source
    nodes: dict[str, Address]
    bearer: str  # what they let in
    stop: asyncio.Event


async def _stages(session: _Session, stages: Sequence[build.Stage], given: argparse.Namespace) -> list[StageResult]:
    if given.warmup:
        await _warm_up(session, given.warmup, given.concurrency or 1)
    taken, scripts = [], 0
    for stage in stages:
        if session.stop.is_set():
            break
        loop = Loop(session.exchange, session.dataset, stage.limits, scripts)
        taken.append(await _measure(session, stage, loop))
        scripts += loop.taken.scripts
    return taken


async def _warm_up(session: _Session, requests: int, at_once: int) -> None:
    warming = asyncio.create_task(warm_up(session.exchange, session.dataset, requests, at_once))
    stopping = asyncio.create_task(session.stop.wait())
    try:
        await asyncio.wait({warming, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        warming.cancel()
        stopping.cancel()
        await asyncio.wait({warming, stopping})
    if not warming.cancelled():
        _refuse_nothing(warming.result(), "while warming up, ")


async def _measure(session: _Session, stage: build.Stage, loop: Loop) -> StageResult:
    before = await scrapes(session.nodes)
    gc.collect()
    gc.freeze()  # what is there by now stays; the collector need not look at it while we measure
    legs, meter = LegWatch(session.nodes.values(), session.bearer), CostMeter()
    async with legs.watching(), meter.measuring(), progress(stage.label, loop, stage.limits):
        taken = await loop.run(stage.load, session.stop)
    gc.unfreeze()
    assert meter.cost is not None
    records = sorted(taken.records, key=lambda record: record.index)
    return StageResult(
        label=stage.label,
        load=stage.description,
        duration_s=taken.duration_s,
        unfinished=taken.in_flight + taken.in_line,
        unsent=taken.unsent,
        records=records,
        client=meter.cost,
        nodes=differences(before, await scrapes(session.nodes)),
        legs=legs.legs((record.transfer_id for record in records), time.time() - time.perf_counter() + loop.began_s),
        legs_note=legs.note,
    )


@contextlib.contextmanager
def _stopped_by_signals(stop: asyncio.Event) -> Iterator[None]:
    """Let Ctrl-C (or SIGTERM) end the measurement; the second one ends the process."""
    loop, signals = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)

    def first() -> None:
        stop.set()
        for each in signals:
            loop.remove_signal_handler(each)

    for each in signals:
        loop.add_signal_handler(each, first)
    try:
        yield
    finally:
        for each in signals:
            loop.remove_signal_handler(each)


def _refuse_nothing(records: Sequence[Record], when: str = "") -> None:
    if any(record.ok for record in records):
        return
    if not records:
        raise RunError(f"{when}no request was completed")
    (kind, detail), n = Counter((record.error, record.detail) for record in records).most_common(1)[0]
    raise RunError(
        f"{when}no request was completed: {n} of {len(records)} failed with {kind}" + (f" ({detail})" * bool(detail))
    )


def with_figures(result: Result) -> Result:
    """Return the run with its figures beside its records, for a reader of the file alone."""
    stages = [
        msgspec.structs.replace(stage, figures=as_plain(figures(stage, result.slos_ms))) for stage in result.stages
    ]
    return msgspec.structs.replace(result, stages=stages)


def prepare(folder: Path) -> None:
    """Make a folder, before anything is measured for it. Raises `UsageError`: that cannot be done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise UsageError(f"--out {folder}: {exc.strerror}") from exc


def write_reports(result: Result, folder: Path) -> None:
    """Write everything into a folder. Raises `RunError`: it cannot be written to."""
    try:
        write_result(result, folder)
        (folder / "requests.csv").write_text(csv_report(result))
        (folder / "report.md").write_text(markdown_report(result))
        (folder / "report.html").write_text(html_report(result))
    except OSError as exc:
        raise RunError(f"cannot write to {folder}: {exc.strerror}") from exc


def csv_report(result: Result) -> str:
    """Return all records; single gaps are in `result.json`."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for stage in result.stages:
        for record in stage.records:
            values = (getattr(record, name) for name in COLUMNS[1:])
            writer.writerow([stage.label, *(f"{value:.6f}" if isinstance(value, float) else value for value in values)])
    return text.getvalue()
