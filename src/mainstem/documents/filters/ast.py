"""The filter as a small closed tree. Built by `parse`, read by `match`, `pushdown` and `sql`; built nowhere else.

A `Field` applies one test to the values that a path reaches and holds if any of them passes. What MongoDB spells in
several ways is one way here: `$ne` is Not(eq), `$nin` is Not(in), `$nor` is Not(Or), `$all` is And(eq, …).
"""

import enum
from typing import Any

import msgspec

from mainstem.documents.paths import Path


class Op(enum.Enum):
    """The comparisons."""

    EQ = "$eq"
    LT = "$lt"
    LTE = "$lte"
    GT = "$gt"
    GTE = "$gte"


class Compare(msgspec.Struct, frozen=True):
    """A value of the operand's own type that stands in this relation to it. Null also stands for missing."""

    op: Op
    operand: Any


class Pattern(msgspec.Struct, frozen=True):
    """Text that a regular expression finds, or the same regular expression as a value."""

    source: str
    options: str


class OneOf(msgspec.Struct, frozen=True):
    """A value equal to one of these, or text that one of the patterns finds."""

    operands: tuple[Any, ...]
    patterns: tuple[Pattern, ...]


class OfType(msgspec.Struct, frozen=True):
    """A value of one of these BSON types."""

    codes: frozenset[int]


class Exists(msgspec.Struct, frozen=True):
    """The path is there, be it null."""


class Length(msgspec.Struct, frozen=True):
    """An array of this many elements."""

    count: int


class Modulo(msgspec.Struct, frozen=True):
    """A number whose whole part leaves this remainder; the sign is the dividend's."""

    divisor: int
    remainder: int


class Bits(msgspec.Struct, frozen=True):
    """A whole number or a binary with these bits, by place from the least significant: all or any, set or clear."""

    places: tuple[int, ...]
    every: bool
    set: bool


class AnyElement(msgspec.Struct, frozen=True):
    """An array with one element that passes the whole filter.

    `as_document`: the filter's paths start inside the element. Otherwise they are empty and mean the element itself.
    """

    filter: "Node"
    as_document: bool


Test = Compare | Pattern | OneOf | OfType | Exists | Length | Modulo | Bits | AnyElement


class Field(msgspec.Struct, frozen=True):
    """Any value that the path reaches passes the test."""

    path: Path
    test: Test


class And(msgspec.Struct, frozen=True):
    """All of them; with none, everything."""

    children: tuple["Node", ...]


class Or(msgspec.Struct, frozen=True):
    """Any of them; with none, nothing."""

    children: tuple["Node", ...]


class Not(msgspec.Struct, frozen=True):
    """What the child does not match."""

    child: "Node"


class Literal(msgspec.Struct, frozen=True):
    """A constant in an expression."""

    value: Any


class Reference(msgspec.Struct, frozen=True):
    """The value of a path of the document, in an expression. The empty path is the document."""

    path: Path


class Variable(msgspec.Struct, frozen=True):
    """The value of a variable, or of a path inside it."""

    name: str
    path: Path


class Let(msgspec.Struct, frozen=True):
    """An expression with more variables. Each value sees the outer ones only."""

    names: tuple[str, ...]
    values: tuple["Expression", ...]
    body: "Expression"


class Each(msgspec.Struct, frozen=True):
    """An expression on each element of an array, which a variable names: `$map`, or `$filter` where `keeps`."""

    input: "Expression"
    name: str
    body: "Expression"
    keeps: bool
    limit: "Expression"


class Fold(msgspec.Struct, frozen=True):
    """`$reduce`: the body sees what there is so far as `value` and the next element as `this`."""

    input: "Expression"
    initial: "Expression"
    body: "Expression"


class Call(msgspec.Struct, frozen=True):
    """An operator of the expression language with its arguments.

    Arguments that have names stand in the order of the operator's parameters; one that was left out is a Literal of
    MISSING.
    """

    name: str
    arguments: tuple["Expression", ...]


class Compound(msgspec.Struct, frozen=True):
    """A document or an array that an expression builds; `names` is None for an array."""

    names: tuple[str, ...] | None
    items: tuple["Expression", ...]


Expression = Literal | Reference | Variable | Let | Each | Fold | Call | Compound


class Expr(msgspec.Struct, frozen=True):
    """The expression's value is true (not false, null, zero or missing)."""

    expression: Expression


class Schema(msgspec.Struct, frozen=True):
    """The document is valid by a JSON schema (`$jsonSchema`), which `schema` reads."""

    document: Any


Node = Field | And | Or | Not | Expr | Schema

EVERYTHING = And(())
NOTHING = Or(())
