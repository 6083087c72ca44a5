"""Dates as text and back, and time zones. Owns the letters of MongoDB's date formats."""

import datetime as dt
import functools
import re
from collections.abc import Callable
from typing import Any
from zoneinfo import ZoneInfo

from mainstem.documents.errors import Refused
from mainstem.documents.values import date_ms, date_value

ISO_UTC = "%Y-%m-%dT%H:%M:%S.%LZ"
ISO_LOCAL = "%Y-%m-%dT%H:%M:%S.%L"
_OFFSET = re.compile(r"([+-])(\d{2}):?(\d{2})?")
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_ISO = re.compile(
    r"(?P<Y>\d{4})-(?P<m>\d{1,2})(?:-(?P<d>\d{1,2}))?"
    r"(?:[T ](?P<H>\d{1,2}):(?P<M>\d{1,2})(?::(?P<S>\d{1,2})(?:[.,](?P<L>\d{1,9}))?)?)?"
    r"\s*(?P<z>Z|UTC|GMT|[+-]\d{2}:?(?:\d{2})?)?"
)


@functools.lru_cache(maxsize=256)
def zone(name: str) -> dt.tzinfo:
    """A time zone by its Olson name, or by its offset from UTC."""
    if name in ("UTC", "GMT", "Z", "Etc/UTC"):
        return dt.UTC
    if found := _OFFSET.fullmatch(name):
        minutes = int(found[2]) * 60 + int(found[3] or 0)
        return dt.timezone(dt.timedelta(minutes=-minutes if found[1] == "-" else minutes))
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise Refused(f"unknown time zone. got={name!r}", code=40485) from None


def local(ms: int, where: dt.tzinfo) -> dt.datetime:
    """A moment as the clocks there show it."""
    moment = date_value(ms)
    if not isinstance(moment, dt.datetime):
        raise Refused(f"a date outside of the years 1 to 9999 has no parts here. got={ms} ms", code=15)
    return moment.astimezone(where)


def iso_year(moment: dt.datetime) -> int:
    """The year that the ISO week belongs to."""
    return moment.isocalendar().year


def _offset_minutes(moment: dt.datetime) -> int:
    offset = moment.utcoffset() or dt.timedelta()
    return int(offset.total_seconds() // 60)


def _offset_text(moment: dt.datetime) -> str:
    minutes = _offset_minutes(moment)
    sign = "-" if minutes < 0 else "+"
    return f"{sign}{abs(minutes) // 60:02}{abs(minutes) % 60:02}"


_LETTERS: dict[str, Callable[[dt.datetime], str]] = {
    "Y": lambda moment: f"{moment.year:04}",
    "m": lambda moment: f"{moment.month:02}",
    "d": lambda moment: f"{moment.day:02}",
    "H": lambda moment: f"{moment.hour:02}",
    "M": lambda moment: f"{moment.minute:02}",
    "S": lambda moment: f"{moment.second:02}",
    "L": lambda moment: f"{moment.microsecond // 1000:03}",
    "j": lambda moment: f"{moment.timetuple().tm_yday:03}",
    "w": lambda moment: str(moment.isoweekday() % 7 + 1),
    "u": lambda moment: str(moment.isoweekday()),
    "U": lambda moment: f"{week_of_year(moment):02}",
    "V": lambda moment: f"{moment.isocalendar().week:02}",
    "G": lambda moment: f"{iso_year(moment):04}",
    "z": _offset_text,
    "Z": lambda moment: f"{_offset_minutes(moment):+04}",
    "b": lambda moment: _MONTHS[moment.month - 1][:3],
    "B": lambda moment: _MONTHS[moment.month - 1],
    "%": lambda moment: "%",
}


def week_of_year(moment: dt.datetime) -> int:
    """Weeks begin on Sunday; the days before the first Sunday are week 0."""
    return (moment.timetuple().tm_yday + 6 - moment.isoweekday() % 7) // 7


@functools.lru_cache(maxsize=256)
def _pieces(format_: str, code: int) -> tuple[tuple[str, bool], ...]:
    """A format as plain text and letters."""
    pieces: list[tuple[str, bool]] = []
    at = 0
    while at < len(format_):
        if format_[at] != "%":
            pieces.append((format_[at], False))
            at += 1
            continue
        letter = format_[at + 1 : at + 2]
        if letter not in _LETTERS:
            raise Refused(f"unknown letter in a date's format. got=%{letter}", code=code)
        pieces.append((letter, True))
        at += 2
    return tuple(pieces)


def format_date(value: Any, format_: str, where: dt.tzinfo) -> str:
    """A date as text."""
    moment = local(date_ms(value), where)
    return "".join(_LETTERS[text](moment) if is_letter else text for text, is_letter in _pieces(format_, 18536))


def _unreadable(text: str) -> Refused:
    return Refused(f"the text is no date. got={text[:60]!r}", code=241)


_FIELDS = {
    "Y": r"(?P<Y>\d{4})", "m": r"(?P<m>\d{1,2})", "d": r"(?P<d>\d{1,2})", "H": r"(?P<H>\d{1,2})",
    "M": r"(?P<M>\d{1,2})", "S": r"(?P<S>\d{1,2})", "L": r"(?P<L>\d{1,3})", "j": r"(?P<j>\d{1,3})",
    "G": r"(?P<G>\d{4})", "V": r"(?P<V>\d{1,2})", "u": r"(?P<u>[1-7])", "z": r"(?P<z>Z|[+-]\d{2}:?(?:\d{2})?)",
    "Z": r"(?P<Z>[+-]\d{1,3})", "b": r"(?P<b>[A-Za-z]{3})", "B": r"(?P<B>[A-Za-z]+)", "%": "%",
}  # fmt: skip


@functools.lru_cache(maxsize=256)
def _reader(format_: str) -> re.Pattern[str]:
    parts = []
    for text, is_letter in _pieces(format_, 18536):
        if is_letter and text not in _FIELDS:
            raise Refused(f"a date cannot be read by this letter. got=%{text}", code=18536)
        parts.append(_FIELDS[text] if is_letter else re.escape(text))
    try:
        return re.compile("".join(parts))
    except re.error:
        raise Refused(f"a date's format names a part once. got={format_!r}", code=18536) from None


def parse_date(text: str, format_: str | None, where: dt.tzinfo | None) -> int:
    """The moment, in milliseconds, that a text names. Without a format it is ISO 8601, date or date and time."""
    found = (_ISO if format_ is None else _reader(format_)).fullmatch(text.strip() if format_ is None else text)
    if found is None:
        raise _unreadable(text)
    parts = {name: value for name, value in found.groupdict().items() if value is not None}
    if where is not None and ("z" in parts or "Z" in parts):
        raise Refused(f"the time zone is given twice: in the text and beside it. got={text[:60]!r}", code=241)
    try:
        return _moment(parts, where)
    except (ValueError, OverflowError):
        raise _unreadable(text) from None


def _month(parts: dict[str, str]) -> int:
    word = parts.get("b") or parts.get("B")
    if word is None:
        return int(parts.get("m", 1))
    length = 3 if "b" in parts else None
    return [name[:length].lower() for name in _MONTHS].index(word.lower()) + 1


def _moment(parts: dict[str, str], where: dt.tzinfo | None) -> int:
    if "G" in parts:
        day = dt.date.fromisocalendar(int(parts["G"]), int(parts.get("V", 1)), int(parts.get("u", 1)))
    elif "j" in parts:
        day = dt.date(int(parts["Y"]), 1, 1) + dt.timedelta(days=int(parts["j"]) - 1)
    elif "Y" not in parts:
        raise ValueError
    else:
        day = dt.date(int(parts["Y"]), _month(parts), int(parts.get("d", 1)))
    hour = int(parts.get("H", 0))
    zone_of = where or dt.UTC
    if "z" in parts:
        zone_of = zone(parts["z"])
    elif "Z" in parts:
        zone_of = dt.timezone(dt.timedelta(minutes=int(parts["Z"])))
    moment = dt.datetime(
        day.year, day.month, day.day, hour % 24, int(parts.get("M", 0)), int(parts.get("S", 0)), tzinfo=zone_of
    )
    if hour > 24:
        raise ValueError
    ms = date_ms(moment) + (86_400_000 if hour == 24 else 0)
    return ms + int(parts.get("L", "0").ljust(3, "0")[:3])
