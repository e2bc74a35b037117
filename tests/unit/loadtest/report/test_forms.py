import csv
import re
from pathlib import Path

import pytest

from baton.loadtest.errors import RunError, UsageError
from baton.loadtest.measures.record import STATUS
from baton.loadtest.report.text import markdown_report, text_report
from baton.loadtest.result import read_result
from baton.loadtest.run.command import prepare, with_figures, write_reports
from tests.unit.loadtest.records import failed, record
from tests.unit.loadtest.results import NODE, result, stage

VLLM_ROWS = [
    *("Successful requests:", "Failed requests:", "Maximum request concurrency:", "Benchmark duration (s):"),
    *("Total input tokens:", "Total generated tokens:", "Request throughput (req/s):"),
    *("Output token throughput (tok/s):", "Peak output token throughput (tok/s):", "Peak concurrent requests:"),
    *("Total token throughput (tok/s):", "Mean TTFT (ms):", "Median TTFT (ms):", "P99 TTFT (ms):"),
    *("Mean TPOT (ms):", "Median TPOT (ms):", "P99 TPOT (ms):", "Mean ITL (ms):", "Median ITL (ms):", "P99 ITL (ms):"),
    *("Mean E2EL (ms):", "Median E2EL (ms):", "P99 E2EL (ms):"),
]


def test_the_first_table_has_vllms_rows_in_vllms_form() -> None:
    """Scripts look for these names, padded to 40, between two rules of 50. Rows that concern other loads are left out.

    A rate is there where there is one, goodput where there are SLOs, queueing where there is a line.
    """
    lines = text_report(result()).splitlines()
    rows = [line[:40].rstrip() for line in lines[1 : lines.index("=" * 50)] if not line.startswith("-")]

    assert lines[0] == "============ Serving Benchmark Result ============"
    assert rows == VLLM_ROWS
    assert "Mean TTFT (ms):                          100.00    " in lines
    assert "-----Time per Output Token (excl. 1st token)------" in lines
    opened = stage(load={"loop": "open", "rate_per_s": 3.0, "concurrency": 7})
    text = text_report(result(opened, slos_ms={"ttft": 100.0}))
    assert "Request rate configured (RPS):           3.00" in text
    assert "Request goodput (req/s):                 5.00" in text
    assert "P99 Client Queue Time (ms):" in text


def test_errors_paths_and_nodes_have_tables_where_there_are_any() -> None:
    """With shares, and an example of what was said; the stable stage has its bounds."""
    records = [record(path="local"), record(path="disaggregated"), failed(STATUS, status=503, detail="full")]
    text = text_report(result(stage(records, nodes=[NODE], unfinished=4, unsent=5)))

    assert "status 503" in text
    assert "full" in text
    assert "33.3%" in text
    assert "disaggregated" in text
    assert "250.00 (N 3)" in text
    assert "committed 3" in text
    assert "requests given up when stopped" in text
    assert re.search(r"requests due and never sent +5$", text, re.MULTILINE)
    assert "from when concurrency first reached its maximum (2) until it first left it" in text_report(result())
    assert "InputTokens (tokens)" in text
    assert not any(word in text_report(result()) for word in ("Errors", "Baton", "Nodes"))


def test_an_interrupted_sweep_says_so_and_has_a_table_of_all_stages() -> None:
    """In every form for people. Cells of Markdown stay cells: an error's words may have a bar or a line's end in them."""
    wrong = stage([record(), failed(STATUS, status=500, detail="a|b\nc")], label="2/s", unsent=7)
    stopped = result(stage(label="1/s"), wrong, interrupted=True)

    for text, sweep in ((text_report(stopped), "Sweep:"), (markdown_report(stopped), "### Sweep")):
        assert "Stopped by the user" in text
        assert sweep in text
        assert "## 2/s" in text
        assert re.search(r"2/s[ |]+1[ |]+1[ |]+7[ |]", text)
    assert "a\\|b c" in markdown_report(stopped)


def test_the_files_hold_every_record_and_its_figures(tmp_path: Path) -> None:
    """JSON, which can be read again and has the names of vLLM's results, and CSV, a line each."""
    taken = with_figures(result(stage([record(1 / 3, index=0), failed(STATUS, status=503, index=1, detail="full")])))
    folder = tmp_path / "new" / "folder"
    prepare(folder)
    write_reports(taken, folder)

    again = read_result(folder)
    assert again == read_result(folder / "result.json")
    assert again.stages[0].records[1] == taken.stages[0].records[1]
    assert again.stages[0].records[0].started_s == 0.333333
    with (folder / "requests.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["stage"], row["status"], row["error"], row["ttft_s"]) for row in rows] == [
        ("2 users", "200", "", "0.100000"),
        ("2 users", "503", "status", ""),
    ]
    assert (folder / "report.md").read_text().startswith("# Load test of m, 2026")
    found = again.stages[0].figures
    assert (found["completed"], found["request_throughput"], found["request_goodput"]) == (1, 0.5, None)
    assert (found["mean_ttft_ms"], found["p99_itl_ms"]) == (100.0, 20.0)
    assert found["stable_stage"]["rows"]["TTFT"]["n"] == found["stable_stage"]["requests"]


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """One that cannot be made is known before anything is measured."""
    (tmp_path / "file").write_text("")

    with pytest.raises(UsageError, match="File exists"):
        prepare(tmp_path / "file")
    with pytest.raises(RunError, match="cannot write to"):
        write_reports(result(), tmp_path / "file")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"no json", "is no result of a load test"),
        (b'{"schema_version": 1}', "is no result of a load test"),
        (b'{"schema_version": 1, "began_at": "\xff"}', "is no result of a load test"),
        (b'{"more": ' + b"[" * 100_000, "is no result of a load test"),
        (b'{"schema_version": 99}', "version 99"),
        (None, "cannot read"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, content: bytes | None, words: str) -> None:
    """Another version is named."""
    if content:
        (tmp_path / "result.json").write_bytes(content)

    with pytest.raises(UsageError, match=words):
        read_result(tmp_path)
