"""Pages of a listing. A token says after which entry the next page starts, so it survives changes in between."""

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from mainstem.model import Invalid

PAGE_SIZE_DEFAULT = 1000
PAGE_SIZE_MAX = 10_000
# More of a number is not read: it is past the maximum by far.
_DIGITS_MAX = 18

T = TypeVar("T")


class Page(NamedTuple, Generic[T]):
    """Some entries, and the token for the next ones: None on the last page."""

    entries: list[T]
    next_token: str | None


def paginate(entries: Sequence[T], key: Callable[[T], str], token: str | None, size: str | None) -> Page[T]:
    """Cut a listing that is sorted by `key`. Without a token (not even an empty one) the client wants all of it."""
    size_max = PAGE_SIZE_DEFAULT
    if size is not None:
        if not (size.isascii() and size.isdecimal()) or int(size[:_DIGITS_MAX]) < 1:
            raise Invalid(f"pageSize is not a count. expected=1 or more got={size[:80]!r}")
        size_max = min(int(size[:_DIGITS_MAX]), PAGE_SIZE_MAX)
    if token is None:
        return Page(list(entries), None)
    after = _decode(token)
    left = [entry for entry in entries if after is None or key(entry) > after]
    page = left[:size_max]
    return Page(page, _encode(key(page[-1])) if len(left) > size_max else None)


def _encode(key: str) -> str:
    return base64.urlsafe_b64encode(key.encode()).decode()


def _decode(token: str) -> str | None:
    if not token:
        return None
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise Invalid(f"pageToken is not one of ours. got={token[:80]!r}") from error
