"""Topics by regular expression, for members that subscribe so. RE2 does the matching: its time grows with the text
alone, so no member's expression can hold the server."""

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from mainstem.feeds.groups.modern import ModernGroup
from mainstem.feeds.groups.modern_values import Topics
from mainstem.feeds.groups.reasons import Reason, Refused

REGEX_CHARS_MAX = 1_000
_CACHED_MAX = 256


class Matches:
    """Remembers what expressions stand for, as long as the topics are the same."""

    def __init__(self) -> None:
        self._topics: Topics = {}
        self._known: dict[str, frozenset[str]] = {}

    def of(self, group: ModernGroup, topics: Topics, regex: str | None = None) -> Mapping[str, frozenset[str]]:
        """The names that each expression of a group's members stands for, and one more. Raises Refused for that one
        where it cannot be read."""
        if topics is not self._topics or len(self._known) > _CACHED_MAX:
            self._topics, self._known = topics, {}
        wanted = {each.regex for each in group.members.values() if each.regex}
        if regex:
            wanted.add(regex)
        return {each: self._match(each) for each in wanted}

    def _match(self, regex: str) -> frozenset[str]:
        known = self._known.get(regex)
        if known is None:
            known = self._known[regex] = match(regex, self._topics)
        return known


def match(regex: str, topics: Topics) -> frozenset[str]:
    """The names that an expression stands for as a whole."""
    if len(regex) > REGEX_CHARS_MAX:
        raise Refused(Reason.INVALID_REGEX, f"expression. expected=at most {REGEX_CHARS_MAX} characters")
    names = list(topics)
    try:
        found = pc.match_substring_regex(pa.array(names, pa.string()), f"^(?:{regex})$").to_pylist()
    except pa.ArrowException as error:
        raise Refused(Reason.INVALID_REGEX, f"expression. expected=RE2's syntax got={error}") from error
    return frozenset(name for name, is_match in zip(names, found, strict=True) if is_match)
