"""Writes a run's four files."""

from pathlib import Path

import msgspec

from loadtest.errors import RunError
from loadtest.report.figures import as_plain, figures
from loadtest.report.html import html_report
from loadtest.report.markdown import markdown_report
from loadtest.report.spreadsheet import csv_report
from loadtest.result import Result, write_result


def with_figures(result: Result) -> Result:
    """Return the run with its figures beside its records, for whoever only reads the file."""
    stages = [
        msgspec.structs.replace(stage, figures=as_plain(figures(stage, result.slos_ms))) for stage in result.stages
    ]
    return msgspec.structs.replace(result, stages=stages)


def write_reports(result: Result, folder: Path) -> None:
    """Write everything into a folder, which is made if need be.

    Raises:
        RunError: it cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_result(result, folder)
        (folder / "requests.csv").write_text(csv_report(result))
        (folder / "report.md").write_text(markdown_report(result))
        (folder / "report.html").write_text(html_report(result))
    except OSError as exc:
        raise RunError(f"cannot write to {folder}: {exc.strerror}") from exc
