"""The requests as CSV, a line each."""

import csv
import io
from typing import Final

from baton.loadtest.result import Result

COLUMNS: Final = (
    *(
        "stage",
        "index",
        "conversation",
        "turn",
        "due_s",
        "queued_s",
        "started_s",
        "ended_s",
        "ttft_s",
        "tpot_s",
        "latency_s",
    ),
    *("input_tokens", "output_tokens", "asked_output_tokens", "status", "error", "detail", "path"),
)


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
