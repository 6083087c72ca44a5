"""The text operators. Lengths and places are counted in code points (CP) or in UTF-8's bytes, as the names say."""

import math
import re
from typing import Any

from bson.regex import Regex

from mainstem.documents.errors import Refused
from mainstem.documents.expressions.conversions import plain_text
from mainstem.documents.expressions.numbers import integer
from mainstem.documents.expressions.registry import ARGUMENTS_MAX, absent, any_absent, named, operator, wrong_type
from mainstem.documents.filters.patterns import compiled, pattern_of
from mainstem.documents.values import MISSING, Rank, is_number, number_of, rank_of

_GROUP = "string"
# What $trim takes off unless it is told: MongoDB's list of white space, and the null character.
_SPACES = "\0 \t\n\v\f\r\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"


def _text(value: Any, name: str, code: int) -> str:
    if rank_of(value) is not Rank.STRING:
        raise wrong_type(name, "text", value, code)
    return str(value)


@operator("$concat", _GROUP, 0, ARGUMENTS_MAX)
def _concat(*values: Any) -> Any:
    for value in values:
        if absent(value):
            return None
        _text(value, "$concat", 16702)
    return "".join(values)


def coerced(value: Any, name: str) -> str:
    """Text, or what MongoDB takes as text in the older operators: numbers, dates, nothing."""
    if absent(value):
        return ""
    found = plain_text(value)
    if found is None:
        raise wrong_type(name, "text", value, 16007)
    return found


@operator("$toLower", _GROUP, 1)
def _lower(value: Any) -> str:
    # Only ASCII letters change, as MongoDB documents it.
    return "".join(letter.lower() if letter.isascii() else letter for letter in coerced(value, "$toLower"))


@operator("$toUpper", _GROUP, 1)
def _upper(value: Any) -> str:
    return "".join(letter.upper() if letter.isascii() else letter for letter in coerced(value, "$toUpper"))


@operator("$strcasecmp", _GROUP, 2)
def _compare_caseless(left: Any, right: Any) -> int:
    one, other = (str(_upper(coerced(value, "$strcasecmp"))) for value in (left, right))
    return (one > other) - (one < other)


@operator("$strLenBytes", _GROUP, 1)
def _length_bytes(value: Any) -> int:
    return len(_text(value, "$strLenBytes", 34473).encode("utf-8", "surrogatepass"))


@operator("$strLenCP", _GROUP, 1)
def _length_points(value: Any) -> int:
    return len(_text(value, "$strLenCP", 34471))


@operator("$substrBytes", _GROUP, 3)
def _part_bytes(value: Any, start: Any, length: Any) -> str:
    data = coerced(value, "$substrBytes").encode()
    for code, item in ((16034, start), (16035, length)):
        if not is_number(item) or not math.isfinite(number_of(item)):
            raise wrong_type("$substrBytes", "finite numbers as start and length", item, code)
    begin, count = int(number_of(start)), int(number_of(length))
    if begin < 0:
        raise Refused(f"$substrBytes takes a start from 0 up. got={begin}", code=50752)
    end = len(data) if count < 0 else min(begin + count, len(data))
    if begin < len(data) and _continues(data[begin]):
        raise Refused("$substrBytes starts inside a character", code=28656)
    if end < len(data) and begin < end and _continues(data[end]):
        raise Refused("$substrBytes ends inside a character", code=28657)
    return data[begin:end].decode()


def _continues(byte: int) -> bool:
    return byte & 0xC0 == 0x80


operator("$substr", _GROUP, 3)(_part_bytes)


@operator("$substrCP", _GROUP, 3)
def _part_points(value: Any, start: Any, length: Any) -> str:
    text = coerced(value, "$substrCP")
    for code, item in ((34450, start), (34452, length)):
        if not is_number(item):
            raise wrong_type("$substrCP", "numbers as start and length", item, code)
    begin, count = integer(start, "$substrCP", 34451), integer(length, "$substrCP", 34453)
    if count < 0:
        raise Refused(f"$substrCP takes a length from 0 up. got={count}", code=34454)
    if begin < 0:
        raise Refused(f"$substrCP takes a start from 0 up. got={begin}", code=34455)
    return text[begin : begin + count]


@operator("$split", _GROUP, 2)
def _split(value: Any, separator: Any) -> Any:
    if any_absent(value, separator):
        return None
    text, by = _text(value, "$split", 40085), _text(separator, "$split", 40086)
    if not by:
        raise Refused("$split takes a separator of at least one character", code=40087)
    return text.split(by)


def _index(name: str, *, in_bytes: bool) -> None:
    @operator(name, _GROUP, 2, 4)
    def index(value: Any, part: Any, start: Any = MISSING, end: Any = MISSING) -> Any:
        if absent(value):
            return None
        text, wanted = _text(value, name, 40091), _text(part, name, 40092)
        haystack, needle = (text.encode(), wanted.encode()) if in_bytes else (text, wanted)
        begin = index_bound(name, start, 0)
        stop = min(index_bound(name, end, len(haystack)), len(haystack))
        if begin > stop:
            return -1
        return haystack.find(needle, begin, stop)  # type: ignore[arg-type]


def index_bound(name: str, value: Any, default: int) -> int:
    """A place to look from or up to."""
    if value is MISSING:
        return default
    found = integer(value, f"{name} (start and end)", 40096)
    if found < 0:
        raise Refused(f"{name} takes a start and an end from 0 up. got={found}", code=40097)
    return found


_index("$indexOfBytes", in_bytes=True)
_index("$indexOfCP", in_bytes=False)


def _trim(name: str, *, left: bool, right: bool) -> None:
    @named(name, _GROUP, "input", "chars?")
    def trim(value: Any, letters: Any) -> Any:
        if absent(value) or letters is None:
            return None
        text = _text(value, name, 50699)
        cut = _SPACES if letters is MISSING else _text(letters, f"{name} (chars)", 50700)
        if left:
            text = text.lstrip(cut) if cut else text
        return text.rstrip(cut) if right and cut else text


_trim("$trim", left=True, right=True)
_trim("$ltrim", left=True, right=False)
_trim("$rtrim", left=False, right=True)


def _replacing(name: str, count: int) -> None:
    @named(name, _GROUP, "input", "find", "replacement")
    def replaced(value: Any, find: Any, replacement: Any) -> Any:
        for code, item in ((51746, value), (51745, find), (51744, replacement)):
            if not absent(item):
                _text(item, name, code)
        if any_absent(value, find, replacement):
            return None
        return value.replace(find, replacement, count)


_replacing("$replaceOne", 1)
_replacing("$replaceAll", -1)


class _Search:
    """What the three regex operators have in common: the pattern of a document, compiled once per pattern."""

    def __init__(self, name: str) -> None:
        self.name = name

    def pattern(self, regex: Any, options: Any) -> re.Pattern[str] | None:
        if absent(regex):
            return None
        if rank_of(regex) not in (Rank.STRING, Rank.REGEX):
            raise wrong_type(self.name, "text or a regex as regex", regex, 51105)
        if not absent(options) and rank_of(options) is not Rank.STRING:
            raise wrong_type(self.name, "text as options", options, 51106)
        own = isinstance(regex, Regex) and regex.flags & (re.I | re.M | re.S | re.X)
        if own and not absent(options):
            raise Refused(f"{self.name} takes options once: in the regex or beside it", code=51107)
        return compiled(pattern_of(regex, None if absent(options) else options))

    def matches(self, value: Any, regex: Any, options: Any) -> list[re.Match[str]] | None:
        pattern = self.pattern(regex, options)
        if absent(value) or pattern is None:
            return None
        text = _text(value, f"{self.name} (input)", 51104)
        if self.name == "$regexFindAll":
            return list(pattern.finditer(text))
        found = pattern.search(text)
        return [] if found is None else [found]


def _described(found: re.Match[str]) -> dict[str, Any]:
    return {"match": found.group(), "idx": found.start(), "captures": list(found.groups())}


@named("$regexMatch", _GROUP, "input", "regex", "options?")
def _regex_match(value: Any, regex: Any, options: Any) -> bool:
    return bool(_Search("$regexMatch").matches(value, regex, options))


@named("$regexFind", _GROUP, "input", "regex", "options?")
def _regex_find(value: Any, regex: Any, options: Any) -> Any:
    found = _Search("$regexFind").matches(value, regex, options)
    return _described(found[0]) if found else None


@named("$regexFindAll", _GROUP, "input", "regex", "options?")
def _regex_find_all(value: Any, regex: Any, options: Any) -> list[dict[str, Any]]:
    return [_described(found) for found in _Search("$regexFindAll").matches(value, regex, options) or ()]
