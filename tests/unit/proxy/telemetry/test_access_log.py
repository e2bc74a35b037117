import json
from typing import Any

import pytest

from baton.proxy.telemetry import access_log
from baton.proxy.telemetry.access_log import AccessLog, Entry, Which

ENTRY = Entry(
    time_s=0.5,
    request_id="r1",
    tenant="",
    route="/v1/completions",
    path="disaggregated",
    reason="",
    status=200,
    broken=False,
    left=False,
    prefill="http://p:1",
    decode="http://d:1",
    attempts=1,
    wait_s=0.0,
    ttft_s=0.01234567,
    duration_s=1.5,
    sent_bytes=42,
    trace_id="",
)


def written(log_format: Any, *entries: Entry) -> list[str]:
    lines: list[bytes] = []
    log = AccessLog("all", log_format, lines.append)
    log.start()
    for entry in entries:
        log.add(entry)
    log.stop()
    assert all(line.endswith(b"\n") for line in lines)
    return [line.decode().rstrip("\n") for line in lines]


def test_a_line_of_text_leaves_out_what_is_not_known() -> None:
    [line] = written("text", ENTRY)

    assert line == (
        "INFO:baton.proxy.access:request request_id=r1 route=/v1/completions path=disaggregated status=200 broken=False left=False "
        "prefill=http://p:1 decode=http://d:1 attempts=1 wait_s=0.0 ttft_s=0.012346 duration_s=1.5 sent_bytes=42"
    )


def test_a_line_of_json_has_all_fields() -> None:
    """A log collector need not guess."""
    fields = {name: value for name, value in ENTRY._asdict().items() if name != "time_s"}
    head = {
        "time": "1970-01-01T00:00:00.500+00:00",
        "level": "info",
        "logger": "baton.proxy.access",
        "message": "request",
    }

    assert json.loads(written("json", ENTRY)[0]) == fields | head | {"ttft_s": 0.012346}


@pytest.mark.parametrize(
    ("which", "status", "broken", "wanted"),
    [
        ("off", 500, True, False),
        ("errors", 200, False, False),
        ("errors", 200, True, True),
        ("errors", 400, False, True),
        ("errors", 0, False, True),
        ("all", 200, False, True),
    ],
)
def test_which_requests_get_a_line(which: Which, status: int, broken: bool, wanted: bool) -> None:
    """A client that left before the head is a failure too."""
    assert AccessLog(which, "text").wants(status, broken=broken) is wanted


def test_lines_beyond_the_queue_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log whose pipe is not read loses lines and blocks nothing; of one that is not written nothing can be lost."""
    monkeypatch.setattr(access_log, "MOST", 2)
    log = AccessLog("all", "text", lambda _: None)
    for _ in range(5):
        log.add(ENTRY)

    assert [sample.value for family in log.collect() for sample in family.samples] == [3]
    assert AccessLog("off", "text").collect() == []
