"""Writes a run's four files."""

import csv
import io
from pathlib import Path
from typing import Final

import msgspec

from baton.loadtest.errors import RunError, UsageError
from baton.loadtest.report.html import html_report
from baton.loadtest.report.tables import as_plain, figures
from baton.loadtest.report.text import markdown_report
from baton.loadtest.result import Result, write_result

COLUMNS: Final = (  # of the requests in CSV
    *("stage", "index", "conversation", "turn", "due_s", "queued_s", "started_s", "ended_s"),
    *("ttft_s", "tpot_s", "latency_s", "input_tokens", "output_tokens", "asked_output_tokens"),
    *("status", "error", "detail", "path"),
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
