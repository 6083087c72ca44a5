"""The log's forms, and what is kept of it."""

import json
import logging

import pytest

from mainstem.runtime.logs import RECENT_MAX, JsonLines, RecentErrors, set_up_logging


def record(message: str, level: int = logging.INFO, **extra: object) -> logging.LogRecord:
    return logging.getLogger("mainstem.x").makeRecord("mainstem.x", level, __file__, 1, message, (), None, extra=extra)


def test_a_line_is_one_object_with_everything_that_came_with_it() -> None:
    line = JsonLines().format(record("two\nlines", source="db", position=7, odd={1, 2}))
    assert "\n" not in line
    told = json.loads(line)
    assert (told["message"], told["level"], told["logger"]) == ("two\nlines", "info", "mainstem.x")
    assert (told["source"], told["position"]) == ("db", 7)
    assert told["time"].startswith("20")


def test_what_json_cannot_hold_is_told_as_text() -> None:
    assert "object" in json.loads(JsonLines().format(record("m", thing=object())))["thing"]


def test_an_exception_comes_with_its_trace() -> None:
    try:
        raise ValueError("why")
    except ValueError:
        failed = logging.LogRecord(
            "x", logging.ERROR, __file__, 1, "it failed", (), exc_info=__import__("sys").exc_info()
        )
    assert "ValueError: why" in json.loads(JsonLines().format(failed))["exception"]
    recent = RecentErrors()
    recent.handle(failed)
    assert recent.recent[-1].message == "it failed: ValueError: why"


def test_the_latest_are_kept_and_all_are_counted() -> None:
    recent = RecentErrors()
    for number in range(RECENT_MAX + 10):
        recent.handle(record(str(number), logging.WARNING))
    assert (len(recent.recent), recent.total) == (RECENT_MAX, RECENT_MAX + 10)
    assert recent.recent[-1].message == str(RECENT_MAX + 9)


def test_both_forms_can_be_set_up(capsys: pytest.CaptureFixture[str]) -> None:
    before = logging.getLogger().handlers[:]
    try:
        recent = set_up_logging("json", "INFO")
        logging.getLogger("mainstem.y").warning("look %s", "here", extra={"table": "t"})
        told = json.loads(capsys.readouterr().err.splitlines()[-1])
        assert (told["message"], told["table"]) == ("look here", "t")
        assert recent.total == 1
    finally:
        logging.getLogger().handlers[:] = before


def test_people_are_told_what_came_with_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    """In the log's text form, and in the last errors that the console shows."""
    before = logging.getLogger().handlers[:]
    try:
        recent = set_up_logging("text", "INFO")
        extra = {"error": "no route\nto token=abcdef0123", "retry_s": 2.0, "file": "a.parquet"}
        logging.getLogger("mainstem.y").error("shipping.failed", extra=extra)
        line = capsys.readouterr().err.splitlines()[-1]
        told = 'shipping.failed error="no route\\nto token=***" retry_s=2.0 file=a.parquet'
        assert line.endswith(f"ERROR mainstem.y: {told}")
        assert recent.recent[-1].message == told
        # What libraries give with theirs is for their own forms.
        # Not by the name of a library's own logger: a server of an earlier test may have set that up.
        logging.getLogger("library").warning("started", extra={"color_message": "\x1b[36mstarted"})
        assert capsys.readouterr().err.splitlines()[-1].endswith("WARNING library: started")
    finally:
        logging.getLogger().handlers[:] = before
