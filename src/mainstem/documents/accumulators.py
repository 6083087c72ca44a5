"""Accumulators: values go in one by one, a result comes out. `$group`, windows and the expressions share them."""

import heapq
import math
from collections import deque
from decimal import Decimal
from typing import Any, Protocol

from bson.decimal128 import Decimal128
from bson.int64 import Int64

from mainstem.documents.errors import Refused
from mainstem.documents.values import (
    INT32_MAX,
    INT32_MIN,
    INT64_MAX,
    INT64_MIN,
    MISSING,
    Rank,
    is_array,
    is_document,
    is_nan,
    is_number,
    number_of,
    order_key,
    rank_of,
    type_name,
)


class State(Protocol):
    """One accumulator of one group."""

    def add(self, value: Any) -> None:
        """Take one more value."""

    def result(self) -> Any:
        """What the values come to."""


class Sum:
    """The sum of the numbers; what is no number counts nothing. Integers exactly, doubles with their rounding kept."""

    __slots__ = ("_carry", "_decimal", "_double", "_has_double", "_whole", "_wide")

    def __init__(self) -> None:
        self._whole = 0
        self._wide = False
        self._double = 0.0
        self._carry = 0.0
        self._has_double = False
        self._decimal: Decimal | None = None

    def add(self, value: Any) -> None:
        kind = type(value)
        if kind is int:
            self._whole += value
        elif kind is float:
            self._has_double = True
            total = self._double + value
            # Neumaier's sum: what one addition loses is kept beside it.
            if abs(self._double) >= abs(value):
                self._carry += (self._double - total) + value
            else:
                self._carry += (value - total) + self._double
            self._double = total
        elif kind is Int64:
            self._wide = True
            self._whole += int(value)
        elif rank_of(value) is Rank.NUMBER:
            self._other(number_of(value))

    def _other(self, value: Any) -> None:
        if isinstance(value, float):
            # A decimal's NaN.
            self._decimal = Decimal("NaN")
        elif isinstance(value, Decimal):
            self._decimal = value if self._decimal is None else self._decimal + value
        else:
            self._whole += int(value)

    def result(self) -> Any:
        if self._decimal is not None:
            from mainstem.documents.expressions.numbers import decimal_of, decimal_result

            kept = self._decimal
            return decimal_result("$sum", lambda: kept + self._whole + decimal_of(self._doubles()))
        if self._has_double:
            doubles = self._doubles()
            return float(self._whole) + doubles if self._whole else doubles
        if not INT64_MIN <= self._whole <= INT64_MAX:
            return float(self._whole)
        if self._wide or not INT32_MIN <= self._whole <= INT32_MAX:
            return Int64(self._whole)
        return self._whole

    def _doubles(self) -> float:
        # Infinities leave NaN in the carry.
        return self._double + self._carry if math.isfinite(self._double) else self._double


class Average:
    """The mean of the numbers; null without any. A double, or a decimal if there was one."""

    __slots__ = ("_count", "_sum")

    def __init__(self) -> None:
        self._sum = Sum()
        self._count = 0

    def add(self, value: Any) -> None:
        kind = type(value)
        if kind is int or kind is float or rank_of(value) is Rank.NUMBER:
            self._count += 1
            self._sum.add(value)

    def result(self) -> Any:
        return mean(self._sum.result(), self._count)


def mean(total: Any, count: int) -> Any:
    """What so many numbers with that sum come to on average; null without any."""
    if not count:
        return None
    if isinstance(total, Decimal128):
        from mainstem.documents.expressions.numbers import DECIMAL, decimal_result

        return decimal_result("$avg", lambda: DECIMAL.divide(total.to_decimal(), Decimal(count)))
    return float(total) / count


class Least:
    """The least value by the order of all values; null and missing do not count."""

    __slots__ = ("_key", "_value")

    def __init__(self) -> None:
        self._key: Any = None
        self._value: Any = None

    def add(self, value: Any) -> None:
        if value is None or value is MISSING:
            return
        key = order_key(value)
        if self._key is None or key < self._key:
            self._key, self._value = key, value

    def result(self) -> Any:
        return self._value


class Greatest:
    """The greatest value by the order of all values; null and missing do not count."""

    __slots__ = ("_key", "_value")

    def __init__(self) -> None:
        self._key: Any = None
        self._value: Any = None

    def add(self, value: Any) -> None:
        if value is None or value is MISSING:
            return
        key = order_key(value)
        if self._key is None or key > self._key:
            self._key, self._value = key, value

    def result(self) -> Any:
        return self._value


class First:
    """The first value; a missing one is null."""

    __slots__ = ("_value",)

    def __init__(self) -> None:
        self._value: Any = First

    def add(self, value: Any) -> None:
        if self._value is First:
            self._value = None if value is MISSING else value

    def result(self) -> Any:
        return None if self._value is First else self._value


class Last:
    """The last value; a missing one is null."""

    __slots__ = ("_value",)

    def __init__(self) -> None:
        self._value: Any = None

    def add(self, value: Any) -> None:
        self._value = None if value is MISSING else value

    def result(self) -> Any:
        return self._value


class Push:
    """All values, in order, without the missing ones."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: list[Any] = []

    def add(self, value: Any) -> None:
        if value is not MISSING:
            self._items.append(value)

    def result(self) -> Any:
        return self._items


class AddToSet:
    """Each value once. MongoDB promises no order; here it is that of arrival."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: dict[Any, Any] = {}

    def add(self, value: Any) -> None:
        if value is not MISSING:
            self._items.setdefault(order_key(value), value)

    def result(self) -> Any:
        return list(self._items.values())


class Merge:
    """Documents over one another: later fields win. Null and missing add nothing."""

    __slots__ = ("_fields",)

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}

    def add(self, value: Any) -> None:
        if value is None or value is MISSING:
            return
        if not is_document(value):
            raise Refused(f"$mergeObjects takes documents. got={type_name(value)}", code=40400)
        self._fields.update(value)

    def result(self) -> Any:
        return self._fields


class Deviation:
    """The standard deviation of the numbers (Welford's way), of all of them or of a sample."""

    __slots__ = ("_count", "_mean", "_sample", "_squares")

    def __init__(self, *, sample: bool) -> None:
        self._sample = sample
        self._count = 0
        self._mean = 0.0
        self._squares = 0.0

    def add(self, value: Any) -> None:
        if value is MISSING or not is_number(value):
            return
        number = float(number_of(value))
        self._count += 1
        delta = number - self._mean
        self._mean += delta / self._count
        self._squares += delta * (number - self._mean)

    def result(self) -> Any:
        count = self._count - 1 if self._sample else self._count
        return math.sqrt(self._squares / count) if count > 0 else None


class FirstN:
    """The first values."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._items: list[Any] = []

    def add(self, value: Any) -> None:
        if len(self._items) < self._count:
            self._items.append(None if value is MISSING else value)

    def result(self) -> Any:
        return self._items


class LastN:
    """The last values."""

    def __init__(self, count: int) -> None:
        self._items: deque[Any] = deque(maxlen=count)

    def add(self, value: Any) -> None:
        self._items.append(None if value is MISSING else value)

    def result(self) -> Any:
        return list(self._items)


class ExtremeN:
    """The least or the greatest values, in that order; null and missing do not count."""

    def __init__(self, count: int, *, greatest: bool) -> None:
        self._count = count
        self._greatest = greatest
        self._items: list[Any] = []

    def add(self, value: Any) -> None:
        if value is None or value is MISSING:
            return
        self._items.append(value)
        if len(self._items) >= 2 * self._count + 64:
            self._items = self._chosen()

    def _chosen(self) -> list[Any]:
        choose = heapq.nlargest if self._greatest else heapq.nsmallest
        return choose(self._count, self._items, key=order_key)

    def result(self) -> Any:
        return self._chosen()


class Ranked:
    """`$top`, `$bottom` and their N: outputs by the sort key that comes with each. Values are pairs of both."""

    def __init__(self, count: int, *, bottom: bool, single: bool) -> None:
        self._count = count
        self._bottom = bottom
        self._single = single
        self._items: list[tuple[Any, Any]] = []

    def add(self, value: Any) -> None:
        self._items.append(value)
        if len(self._items) >= 2 * self._count + 64:
            self._items = self._chosen()

    def _chosen(self) -> list[tuple[Any, Any]]:
        ordered = sorted(self._items, key=lambda item: item[0])
        return ordered[-self._count :] if self._bottom else ordered[: self._count]

    def result(self) -> Any:
        chosen = [None if output is MISSING else output for _, output in self._chosen()]
        if self._single:
            return chosen[0] if chosen else None
        return chosen


class Percentile:
    """Values at shares of the sorted numbers: the value that as many are at or below. NaN counts as the least."""

    def __init__(self, points: list[float], *, several: bool) -> None:
        self._points = points
        self._several = several
        self._numbers: list[float] = []

    def add(self, value: Any) -> None:
        if value is not MISSING and is_number(value) and not is_nan(number_of(value)):
            self._numbers.append(float(number_of(value)))

    def result(self) -> Any:
        ordered = sorted(self._numbers)
        found = [ordered[max(math.ceil(point * len(ordered)) - 1, 0)] if ordered else None for point in self._points]
        return found if self._several else found[0]


def check_points(points: Any, method: Any) -> list[float]:
    """The shares that `$percentile` is asked for, each from 0 to 1."""
    if method != "approximate":
        raise Refused(f"a percentile's method is 'approximate'. got={method!r}", code=2)
    if not is_array(points) or not points:
        raise Refused("$percentile takes an array of numbers from 0 to 1 as p", code=7750301)
    for point in points:
        if not is_number(point) or not 0 <= number_of(point) <= 1:
            raise Refused(f"$percentile takes numbers from 0 to 1 as p. got={point!r}", code=7750303)
    return [float(number_of(point)) for point in points]
