"""The date operators: parts of a date, dates of parts, and steps along the calendar."""

import datetime as dt
from collections.abc import Callable
from typing import Any

from bson.int64 import Int64
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from mainstem.documents.errors import Refused
from mainstem.documents.expressions.date_formats import (
    ISO_LOCAL,
    ISO_UTC,
    format_date,
    iso_year,
    local,
    parse_date,
    week_of_year,
    zone,
)
from mainstem.documents.expressions.numbers import integer
from mainstem.documents.expressions.registry import Evaluator, Scope, absent, any_absent, named, operator, wrong_type
from mainstem.documents.values import MISSING, Rank, date_ms, date_value, is_text, rank_of

_GROUP = "date"
_HOUR_MS = 3_600_000
FIXED_MS = {
    "week": 168 * _HOUR_MS,
    "day": 24 * _HOUR_MS,
    "hour": _HOUR_MS,
    "minute": 60_000,
    "second": 1_000,
    "millisecond": 1,
}
_MONTHS = {"year": 12, "quarter": 3, "month": 1}
UNITS = (*_MONTHS, *FIXED_MS)
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


def moment_ms(value: Any, name: str = "a date operator", code: int = 16006) -> int:
    """A date's milliseconds; a timestamp and an ObjectId stand for a date too."""
    if isinstance(value, Timestamp):
        return value.time * 1000
    if isinstance(value, ObjectId):
        return date_ms(value.generation_time)
    if rank_of(value) is not Rank.DATE:
        raise wrong_type(name, "a date", value, code)
    return date_ms(value)


def _zone(value: Any) -> dt.tzinfo:
    if value is MISSING:
        return dt.UTC
    if not is_text(value):
        raise wrong_type("a date operator", "text as timezone", value, 40517)
    return zone(value)


def _part(name: str, read: Callable[[dt.datetime], Any]) -> None:
    @named(name, _GROUP, "date", "timezone?")
    def part(date: Any, timezone: Any) -> Any:
        if absent(date) or timezone is None:
            return None
        return read(local(moment_ms(date, name), _zone(timezone)))


_part("$year", lambda moment: moment.year)
_part("$month", lambda moment: moment.month)
_part("$dayOfMonth", lambda moment: moment.day)
_part("$hour", lambda moment: moment.hour)
_part("$minute", lambda moment: moment.minute)
_part("$second", lambda moment: moment.second)
_part("$millisecond", lambda moment: moment.microsecond // 1000)
_part("$dayOfYear", lambda moment: moment.timetuple().tm_yday)
_part("$dayOfWeek", lambda moment: moment.isoweekday() % 7 + 1)
_part("$week", week_of_year)
_part("$isoDayOfWeek", lambda moment: moment.isoweekday())
_part("$isoWeek", lambda moment: moment.isocalendar().week)
_part("$isoWeekYear", lambda moment: Int64(iso_year(moment)))


@named("$dateToParts", _GROUP, "date", "timezone?", "iso8601?")
def _to_parts(date: Any, timezone: Any, iso: Any) -> Any:
    if absent(date) or timezone is None or iso is None:
        return None
    if iso is not MISSING and not isinstance(iso, bool):
        raise wrong_type("$dateToParts", "a boolean as iso8601", iso, 40521)
    moment = local(moment_ms(date, "$dateToParts"), _zone(timezone))
    if iso is True:
        week = moment.isocalendar()
        day = {"isoWeekYear": week.year, "isoWeek": week.week, "isoDayOfWeek": week.weekday}
    else:
        day = {"year": moment.year, "month": moment.month, "day": moment.day}
    clock = {"hour": moment.hour, "minute": moment.minute, "second": moment.second}
    return {**day, **clock, "millisecond": moment.microsecond // 1000}


@named(
    "$dateFromParts", _GROUP, "year?", "month?", "day?", "isoWeekYear?", "isoWeek?", "isoDayOfWeek?", "hour?",
    "minute?", "second?", "millisecond?", "timezone?",
)  # fmt: skip
def _from_parts(*values: Any) -> Any:
    *numbers, timezone = values
    if any(value is None for value in values):
        return None
    year, month, day, iso_of, iso_week, iso_day, *clock = (
        None if value is MISSING else integer(value, "$dateFromParts", 40515, 64) for value in numbers
    )
    if (year is None) == (iso_of is None):
        raise Refused("$dateFromParts takes year or isoWeekYear", code=40516)
    where = _zone(timezone)
    hour, minute, second, ms = (value or 0 for value in clock)
    try:
        if year is not None:
            if not 1 <= year <= 9999:
                raise Refused(f"$dateFromParts takes a year of 1..9999. got={year}", code=40523)
            months = year * 12 + (1 if month is None else month) - 1
            start = dt.datetime(months // 12, months % 12 + 1, 1, tzinfo=where)
            days = (1 if day is None else day) - 1
        else:
            start = dt.datetime.fromisocalendar(iso_of or 1, 1, 1).replace(tzinfo=where)
            days = ((1 if iso_week is None else iso_week) - 1) * 7 + (1 if iso_day is None else iso_day) - 1
        # Along the clock on the wall, then to UTC.
        wall = start.replace(tzinfo=None) + dt.timedelta(
            days=days, hours=hour, minutes=minute, seconds=second, milliseconds=ms
        )
        return date_value(date_ms(wall.replace(tzinfo=where)))
    except (ValueError, OverflowError):
        raise Refused("$dateFromParts leaves the range of dates", code=40523) from None


@named("$dateToString", _GROUP, "date", "format?", "timezone?", "onNull?", lazy=True)
def _to_string(date: Evaluator, format_: Evaluator, timezone: Evaluator, on_null: Evaluator) -> Evaluator:
    def run(document: Any, scope: Scope) -> Any:
        value, form, where = date(document, scope), format_(document, scope), timezone(document, scope)
        if absent(value):
            instead = on_null(document, scope)
            return None if instead is MISSING else instead
        if form is None or where is None:
            return None
        if form is not MISSING and not is_text(form):
            raise wrong_type("$dateToString", "text as format", form, 18533)
        in_zone = _zone(where)
        chosen = form if form is not MISSING else ISO_UTC if in_zone is dt.UTC else ISO_LOCAL
        return format_date(date_value(moment_ms(value, "$dateToString")), chosen, in_zone)

    return run


@named("$dateFromString", _GROUP, "dateString", "format?", "timezone?", "onError?", "onNull?", lazy=True)
def _from_string(
    text: Evaluator, format_: Evaluator, timezone: Evaluator, on_error: Evaluator, on_null: Evaluator
) -> Evaluator:
    def run(document: Any, scope: Scope) -> Any:
        value, form, where = text(document, scope), format_(document, scope), timezone(document, scope)
        if absent(value):
            instead = on_null(document, scope)
            return None if instead is MISSING else instead
        if form is None or where is None:
            return None
        try:
            if not isinstance(value, str):
                raise wrong_type("$dateFromString", "text as dateString", value, 241)
            in_zone = None if where is MISSING else _zone(where)
            return date_value(parse_date(value, None if form is MISSING else str(form), in_zone))
        except Refused as error:
            instead = on_error(document, scope)
            if error.code != 241 or instead is MISSING:
                raise
            return instead

    return run


def unit_of(value: Any, name: str, code: int = 9) -> str:
    """A unit of time by its name."""
    if value not in UNITS:
        raise Refused(f"{name} takes a unit of time. expected={', '.join(UNITS)} got={value!r}", code=code)
    return str(value)


def _first_day(value: Any, name: str) -> int:
    """The day on which weeks start, 0 for Monday."""
    if absent(value):
        return 6
    for at, day in enumerate(_DAYS):
        if isinstance(value, str) and value.lower() in (day, day[:3]):
            return at
    raise Refused(f"{name} takes a day's name as startOfWeek. got={value!r}", code=9)


def add_units(ms: int, unit: str, amount: int, where: dt.tzinfo = dt.UTC) -> int:
    """A moment that many units later; months end at their last day, and days keep the time on the wall's clock."""
    try:
        if unit in FIXED_MS and unit not in ("day", "week"):
            return ms + amount * FIXED_MS[unit]
        moment = local(ms, where)
        wall = moment.replace(tzinfo=None)
        if unit in FIXED_MS:
            wall += dt.timedelta(days=amount * (7 if unit == "week" else 1))
        else:
            months = wall.year * 12 + wall.month - 1 + amount * _MONTHS[unit]
            year, month = months // 12, months % 12 + 1
            wall = wall.replace(year=year, month=month, day=min(wall.day, _month_length(year, month)))
        return date_ms(wall.replace(tzinfo=where))
    except (OverflowError, ValueError):
        raise Refused(f"a step leaves the range of dates. got={amount} {unit}", code=5166406) from None


def _month_length(year: int, month: int) -> int:
    following = dt.date(year + month // 12, month % 12 + 1, 1) if (year, month) != (9999, 12) else None
    return 31 if following is None else (following - dt.timedelta(days=1)).day


def _stepping(name: str, sign: int) -> None:
    @named(name, _GROUP, "startDate", "unit", "amount", "timezone?")
    def step(date: Any, unit: Any, amount: Any, timezone: Any) -> Any:
        if any_absent(date, unit, amount) or timezone is None:
            return None
        ms = moment_ms(date, name, 5166403)
        count = integer(amount, f"{name} (amount)", 5166405, 64)
        return date_value(add_units(ms, unit_of(unit, name, 5166404), sign * count, _zone(timezone)))


_stepping("$dateAdd", 1)
_stepping("$dateSubtract", -1)


@named("$dateDiff", _GROUP, "startDate", "endDate", "unit", "timezone?", "startOfWeek?")
def _difference(start: Any, end: Any, unit: Any, timezone: Any, first_day: Any) -> Any:
    if any_absent(start, end, unit) or timezone is None:
        return None
    one, other = moment_ms(start, "$dateDiff", 5166307), moment_ms(end, "$dateDiff", 5166307)
    where, kind = _zone(timezone), unit_of(unit, "$dateDiff")
    if kind in ("hour", "minute", "second", "millisecond"):
        length = FIXED_MS[kind]
        offset = int((local(one, where).utcoffset() or dt.timedelta()).total_seconds() * 1000)
        return Int64((other + offset) // length - (one + offset) // length)
    here, there = local(one, where), local(other, where)
    if kind in _MONTHS:
        months = _MONTHS[kind]
        return Int64((there.year * 12 + there.month - 1) // months - (here.year * 12 + here.month - 1) // months)
    days = (here.toordinal(), there.toordinal())
    if kind == "day":
        return Int64(days[1] - days[0])
    shift = _first_day(first_day, "$dateDiff") + 1  # ordinal 1 is a Monday
    return Int64((days[1] - shift) // 7 - (days[0] - shift) // 7)


def truncate(ms: int, unit: str, size: int, where: dt.tzinfo, first_day: int = 6) -> int:
    """The start of the bin that a moment is in. Bins are counted from the start of the year 2000."""
    if unit in ("hour", "minute", "second", "millisecond"):
        step = FIXED_MS[unit] * size
        origin = date_ms(dt.datetime(2000, 1, 1, tzinfo=where))
        return origin + (ms - origin) // step * step
    moment = local(ms, where)
    if unit in _MONTHS:
        step = _MONTHS[unit] * size
        months = 2000 * 12 + (moment.year * 12 + moment.month - 1 - 2000 * 12) // step * step
        start = dt.datetime(months // 12, months % 12 + 1, 1, tzinfo=where)
    else:
        origin = dt.date(2000, 1, 1).toordinal()
        step = size
        if unit == "week":
            step = 7 * size
            origin += (first_day - dt.date(2000, 1, 1).weekday()) % 7
        day = origin + (moment.toordinal() - origin) // step * step
        start = dt.datetime.combine(dt.date.fromordinal(day), dt.time(), tzinfo=where)
    return date_ms(start)


@named("$dateTrunc", _GROUP, "date", "unit", "binSize?", "timezone?", "startOfWeek?")
def _truncated(date: Any, unit: Any, size: Any, timezone: Any, first_day: Any) -> Any:
    if any_absent(date, unit) or size is None or timezone is None or first_day is None:
        return None
    ms = moment_ms(date, "$dateTrunc", 5439012)
    count = 1 if size is MISSING else integer(size, "$dateTrunc (binSize)", 5439017, 64)
    if count < 1:
        raise Refused(f"$dateTrunc takes a binSize above 0. got={count}", code=5439018)
    kind = unit_of(unit, "$dateTrunc")
    try:
        return date_value(truncate(ms, kind, count, _zone(timezone), _first_day(first_day, "$dateTrunc")))
    except (ValueError, OverflowError):
        raise Refused("$dateTrunc leaves the range of dates", code=15) from None


@operator("$tsSecond", "timestamp", 1)
def _seconds(value: Any) -> Any:
    if absent(value):
        return None
    if not isinstance(value, Timestamp):
        raise wrong_type("$tsSecond", "a timestamp", value, 5687301)
    return Int64(value.time)


@operator("$tsIncrement", "timestamp", 1)
def _increment(value: Any) -> Any:
    if absent(value):
        return None
    if not isinstance(value, Timestamp):
        raise wrong_type("$tsIncrement", "a timestamp", value, 5687302)
    return Int64(value.inc)
