"""How the server's log looks: text for people, JSON for machines; and the last things that went wrong, at hand."""

import json
import logging
import re
import sys
import time
from collections import deque
from typing import Any, NamedTuple

import msgspec

RECENT_MAX = 200
MESSAGE_CHARS_MAX = 2_000
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

# What every record has; the rest was given with `extra`.
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

# Where a token may stand in a line: in a URL or a cookie, in a header or a subprotocol. Libraries log such things.
_TOKENS = re.compile(r"(?i)((?:token|secret)=(?=.)|\bbearer[ .](?=[^ \"']{16}))[A-Za-z0-9_.~+/=%-]+")


def redacted(text: str) -> str:
    """The text without the tokens in it."""
    return _TOKENS.sub(r"\1***", text)


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    """What was given with `extra`."""
    return {name: value for name, value in vars(record).items() if name not in _OWN}


def _told(record: logging.LogRecord) -> str:
    """The message with what came with it: `shipping.failed error="no route" retry_s=2.0`."""
    message = record.getMessage()
    # Libraries give things with `extra` that are for their own formatters.
    if not record.name.startswith("mainstem"):
        return message
    return " ".join([message, *(f"{name}={_plain(value)}" for name, value in _extra(record).items())])


def _plain(value: Any) -> str:
    """A value in a line: in quotes where it has spaces or ends of lines."""
    text = str(value)
    return text if text.isprintable() and " " not in text else json.dumps(text, ensure_ascii=False)


class _Text(logging.Formatter):
    """A line for people."""

    def format(self, record: logging.LogRecord) -> str:
        return redacted(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 — its name there
        record.message = _told(record)
        return super().formatMessage(record)


class Recent(NamedTuple):
    """A warning or an error."""

    at_ms: int
    level: str
    logger: str
    message: str


class RecentErrors(logging.Handler):
    """Keeps the latest warnings and errors. Bounded."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.recent: deque[Recent] = deque(maxlen=RECENT_MAX)
        self.total = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Remember one."""
        self.total += 1
        message = _told(record)
        if record.exc_info and record.exc_info[1] is not None:
            message = f"{message}: {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        at_ms = round(record.created * 1000)
        self.recent.append(Recent(at_ms, record.levelname, record.name, redacted(message)[:MESSAGE_CHARS_MAX]))


class JsonLines(logging.Formatter):
    """One object per line: time, level, logger, message, what came with `extra`, and an exception's trace."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        told: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        told |= _extra(record)
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return redacted(msgspec.json.encode(told, enc_hook=repr).decode())

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 — its name there
        """UTC: logs of several machines are read together."""
        return time.strftime(datefmt or "%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))


def set_up_logging(format: str = "text", level: str = "INFO") -> RecentErrors:
    """Log to standard error in one of the forms, and keep what went wrong."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if format == "json" else _Text(TEXT))
    recent = RecentErrors()
    logging.basicConfig(level=level, handlers=[handler, recent], force=True)
    # It tells of every request, and another catalog is asked every second.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    return recent
