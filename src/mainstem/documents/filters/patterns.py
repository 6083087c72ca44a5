"""Regular expressions of the filter language, which are PCRE's, on Python's `re`.

Owns the translation of what the two spell differently, and the refusal of what `re` cannot do: a pattern is either
compiled with PCRE's meaning or an `Invalid` error, never quietly something else.
"""

import functools
import re
from typing import Any

from bson.code import Code
from bson.regex import Regex

from mainstem.documents.filters.ast import Pattern
from mainstem.model.errors import Invalid

SOURCE_LENGTH_MAX = 32_764
_FLAGS = {"i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL, "x": re.VERBOSE}
# What re reads otherwise than PCRE, or not at all.
_REFUSED = re.compile(r"\[\[:|\(\?[R0-9&|+-]|\(\*|\\[KGRXCQEpPhHvV]")
_SPECIAL = set(".^$*+?{}[]()|\\")


def pattern_of(source: Any, options: Any = None) -> Pattern:
    """Read a pattern from text, a BSON regex or a compiled Python one, and check that it compiles."""
    text, own = _parts(source)
    if options is None:
        options = own
    elif own and options != own:
        raise Invalid("options are set twice. expected=$options or the regex's own flags", reason="bad_regex")
    if not isinstance(options, str):
        raise Invalid(f"$options is text. got={type(options).__name__}", reason="bad_regex")
    # 'u' is accepted and changes nothing: text is always Unicode.
    flags = "".join(sorted(set(options) - {"u"}))
    if unknown := set(flags) - _FLAGS.keys():
        raise Invalid(f"unknown regex option. expected=i, m, s, x or u got={sorted(unknown)}", reason="bad_regex")
    pattern = Pattern(text, flags)
    compiled(pattern)
    return pattern


def _parts(source: Any) -> tuple[str, str]:
    # JavaScript code is a str to Python, and no pattern to MongoDB.
    if isinstance(source, str) and not isinstance(source, Code):
        return source, ""
    if isinstance(source, re.Pattern):
        source = Regex.from_native(source)
    if isinstance(source, Regex):
        text = source.pattern.decode() if isinstance(source.pattern, bytes) else source.pattern
        return text, "".join(letter for letter, flag in _FLAGS.items() if source.flags & flag)
    raise Invalid(f"$regex is text or a regex. got={type(source).__name__}", reason="bad_regex")


def options_of(regex: Regex[Any]) -> str:
    """A stored regex's options, in the order in which `Pattern` keeps them."""
    return "".join(sorted(_parts(regex)[1]))


@functools.lru_cache(maxsize=512)
def compiled(pattern: Pattern) -> re.Pattern[str]:
    """The pattern, ready to search with."""
    source = pattern.source
    if len(source) > SOURCE_LENGTH_MAX or "\x00" in source:
        raise Invalid(f"regex is too long or has a null character. got={len(source)} characters", reason="bad_regex")
    flags = functools.reduce(lambda left, right: left | right, (_FLAGS[letter] for letter in pattern.options), 0)
    # PCRE's \w, \d and \s are ASCII. `re` ties case folding to that, so a caseless pattern with other letters keeps
    # the folding and gives up the narrow classes.
    if "i" not in pattern.options or source.isascii():
        flags |= re.ASCII
    try:
        return re.compile(_translated(source), flags)
    except (re.error, OverflowError, RecursionError) as error:
        raise Invalid(f"regex does not compile. got={source[:100]!r} ({error})", reason="bad_regex") from None


def _translated(source: str) -> str:
    if refused := _REFUSED.search(source.replace("\\\\", "  ")):
        raise Invalid(f"regex uses what this engine lacks. got={refused.group()!r}", reason="bad_regex")
    out: list[str] = []
    at = 0
    while at < len(source):
        piece = source[at : at + 2]
        if piece[0] == "\\" and len(piece) == 2:
            out.append({r"\z": r"\Z", r"\Z": r"(?=\n?\Z)"}.get(piece, piece))
            at += 2
        elif source.startswith("(?<", at) and source[at + 3 : at + 4] not in ("=", "!"):
            out.append("(?P<")
            at += 3
        else:
            out.append(piece[0])
            at += 1
    return "".join(out)


def literal_prefix(pattern: Pattern) -> tuple[str, bool]:
    """The text that everything the pattern finds must start with, and whether that is all the pattern says.

    Empty where there is none. Only plain patterns that are anchored at the start have one.
    """
    if pattern.options not in ("", "s") or not pattern.source.startswith("^") or "|" in pattern.source:
        return "", False
    body = pattern.source[1:]
    prefix: list[str] = []
    for index, letter in enumerate(body):
        if letter in _SPECIAL:
            rest = body[index:]
            # A quantifier may take back the letter before it.
            if letter in "*?{":
                prefix = prefix[:-1]
            return "".join(prefix), rest == ".*"
        prefix.append(letter)
    return "".join(prefix), True


def literal_text(pattern: Pattern) -> str | None:
    """The text that the pattern looks for anywhere, where it is nothing but that text."""
    if pattern.options in ("", "s", "m", "ms") and not _SPECIAL & set(pattern.source):
        return pattern.source
    return None
