"""Lines of the log: a constant sentence and fields, as text or as JSON. Pure but for `configure`."""

import json
import logging
import traceback
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec

LogFormat = Literal["text", "json"]
_NO_FIELDS: Final = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "color_message"))
_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/+[]{},()<>*%&?@#~")


class TextFormat(logging.Formatter):
    """`INFO:baton.proxy.nodes.health_probe:node is ready url=http://…`."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{record.levelname}:{record.name}:{record.getMessage()}{as_text(fields_of(record))}"
        stack = _stack(record)
        return f"{line}\n{stack}" if stack else line


class JsonFormat(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        stack = _stack(record)
        fields = fields_of(record) | ({"exception": stack} if stack else {})
        return as_json(record.created, record.levelname, record.name, record.getMessage(), fields).decode()


def configure(level: str, log_format: LogFormat) -> None:
    """Let everything that is logged in this process go to stderr like that."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormat() if log_format == "json" else TextFormat())
    logging.basicConfig(level=level.upper(), handlers=[handler])


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return what was given as `extra`."""
    return {name: value for name, value in vars(record).items() if name not in _NO_FIELDS}


def as_text(fields: dict[str, Any]) -> str:
    """Return fields as they follow a sentence; a value that is no plain word is quoted."""
    return "".join(f" {name}={_quoted(str(value))}" for name, value in fields.items())


def as_json(time_s: float, level: str, logger: str, message: str, fields: dict[str, Any]) -> bytes:
    """Return a line without its end; `time_s` since 1970."""
    time = datetime.fromtimestamp(time_s, UTC).isoformat(timespec="milliseconds")
    head = {"time": time, "level": level.lower(), "logger": logger, "message": message}
    return msgspec.json.encode(fields | head, enc_hook=str)


def _quoted(text: str) -> str:
    return text if text and _PLAIN.issuperset(text) else json.dumps(text)


def _stack(record: logging.LogRecord) -> str:
    if record.exc_info is None or record.exc_info[0] is None:
        return ""
    return "".join(traceback.format_exception(*record.exc_info)).rstrip()
