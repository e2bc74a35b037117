import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from baton.proxy.telemetry.log_format import JsonFormat, TextFormat


@pytest.fixture(autouse=True)
def _plain_records() -> Iterator[None]:
    """VLLM, once it is imported, gives every record of the process a field of its own."""
    theirs = logging.getLogRecordFactory()
    logging.setLogRecordFactory(logging.LogRecord)
    yield
    logging.setLogRecordFactory(theirs)


def record(message: str, *args: object, **fields: Any) -> logging.LogRecord:
    made = logging.getLogger("proxy.x").makeRecord("proxy.x", logging.INFO, "f", 1, message, args, None, extra=fields)
    made.created = 0.5
    return made


def test_text_shows_the_fields_behind_the_sentence() -> None:
    """What is no plain word is quoted, so that a value can neither look like a field nor like a line."""
    line = TextFormat().format(record("node is %s", "ready", url="http://a:1", reason="no b=1\nX", empty="", many=[1]))

    assert line == r'INFO:proxy.x:node is ready url=http://a:1 reason="no b=1\nX" empty="" many=[1]'


def test_json_is_one_object_a_line() -> None:
    """Fields stand beside time, level, logger and message, which no field can overwrite."""
    line = JsonFormat().format(record("node is ready", url="http://a:1", level="fatal", where=Path("/x")))

    assert "\n" not in line
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:00.500+00:00",
        "level": "info",
        "logger": "proxy.x",
        "message": "node is ready",
        "url": "http://a:1",
        "where": "/x",
    }


@pytest.mark.parametrize("form", [TextFormat(), JsonFormat()], ids=["text", "json"])
def test_an_exception_is_there_with_its_stack(form: logging.Formatter) -> None:
    failed = record("request failed")
    try:
        raise ZeroDivisionError("of all things")
    except ZeroDivisionError:
        failed.exc_info = sys.exc_info()

    line = form.format(failed)

    assert "ZeroDivisionError: of all things" in line
    assert "Traceback" in line
    if isinstance(form, JsonFormat):
        assert json.loads(line)["message"] == "request failed"
