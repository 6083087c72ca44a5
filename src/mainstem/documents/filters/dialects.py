"""What DuckDB and Spark spell differently, as questions; `duckdb_dialect` and `spark_dialect` answer them.

Nested columns are reached through nodes: DuckDB's JSON type, Spark's Variant. A node that is SQL NULL is missing;
JSON's null is a node of its own. Every method returns SQL text for an expression that `node` names.
"""

from typing import Any, NamedTuple, Protocol

from mainstem.documents.columns import Column
from mainstem.documents.filters.predicate import Relation

EXACT_INTEGER_MAX = 1 << 53


class Sql(NamedTuple):
    """Text with `?` placeholders, and their values in order."""

    text: str
    parameters: tuple[Any, ...] = ()


class NumberBounds(NamedTuple):
    """A comparison with a number, moved onto integers and onto doubles; None where no value of that sort passes."""

    integer: tuple[Relation, int] | bool
    double: tuple[Relation, float] | None


class Dialect(Protocol):
    """An engine's syntax."""

    name: str

    def identifier(self, name: str) -> str:
        """A column's name, quoted."""

    def constant(self, value: Any, column: Column) -> Sql:
        """A constant of the column's type."""

    def is_nan(self, expression: str) -> str:
        """Whether a double is NaN."""

    def starts_with(self, text: str, prefix: Sql) -> Sql:
        """Whether a text starts with another."""

    def contains(self, text: str, part: Sql) -> Sql:
        """Whether a text holds another."""

    def truncated(self, double: str) -> str:
        """The whole part of a double that fits 64 bits."""

    def text_constant(self, value: str) -> Sql:
        """A constant text."""

    def node(self, column: str) -> str:
        """The JSON text of a column as a node."""

    def child(self, node: str, name: str) -> str | None:
        """The named child of an object; None where the engine cannot say such a name."""

    def straight(self, column: str, path: tuple[str, ...]) -> tuple[str, str] | None:
        """What JSON text has at a path of names, and a condition: no array is on the way to it, nor is it one.

        None where the engine gains nothing by asking for it first.
        """

    def sieve(self, column: str, path: tuple[str, ...], relation: str, value: float | str) -> Sql | None:
        """A cheap condition that lets through all whose value at a path may relate so; None where there is none."""

    def item(self, node: str, index: int) -> str:
        """One element of an array."""

    def elements(self, node: str) -> str:
        """The list of the elements of a node that is an array."""

    def element_count(self, node: str) -> str:
        """How many elements an array has."""

    def keys_are(self, node: str, names: tuple[str, ...]) -> Sql | None:
        """Whether an object has exactly these names in this order; None where the engine does not keep the order."""

    def is_marked(self, node: str) -> str:
        """Whether an object is a value that extended JSON wraps; never NULL."""

    def is_array(self, node: str) -> str:
        """Whether a node is an array."""

    def is_object(self, node: str) -> str:
        """Whether a node is an object."""

    def is_null(self, node: str) -> str:
        """Whether a node is JSON's null."""

    def is_string(self, node: str) -> str:
        """Whether a node is a text."""

    def is_boolean(self, node: str, value: bool) -> str:
        """Whether a node is this boolean."""

    def any_boolean(self, node: str) -> str:
        """Whether a node is a boolean."""

    def is_number(self, node: str) -> str:
        """Whether a node is a number."""

    def is_number_of(self, node: str, code: str) -> str | None:
        """Whether a node is an `int`, `long` or `double`; None where the engine does not tell them apart."""

    def text(self, node: str) -> str:
        """A node's text, where it is one."""

    def compare_number(self, node: str, bounds: NumberBounds) -> Sql | None:
        """Whether a number passes; None where the engine cannot say so exactly."""

    def modulo(self, node: str, divisor: int, remainder: int) -> Sql | None:
        """Whether a number's whole part leaves the remainder; None where the engine cannot say so exactly."""

    def list_of(self, *nodes: str) -> str:
        """A list of nodes."""

    def no_nodes(self) -> str:
        """The empty list of nodes."""

    def appended(self, nodes: str, node: str) -> str:
        """A list with one more node."""

    def joined(self, nodes: str, more: str) -> str:
        """Two lists as one."""

    def flattened(self, lists: str) -> str:
        """A list of lists as one list."""

    def mapped(self, nodes: str, variable: str, expression: str) -> str:
        """A list with an expression applied to each node."""

    def kept(self, nodes: str, variable: str, condition: str) -> str:
        """The nodes of a list that pass."""

    def any(self, nodes: str, variable: str, condition: str) -> str:
        """Whether any node of a list passes."""
