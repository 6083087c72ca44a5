"""Names of tables, as every door and both table formats write them."""

import re
from typing import NamedTuple

from mainstem.model.errors import Invalid

DEFAULT_NAMESPACE = "default"
HISTORY_SUFFIX = "_history"
DEAD_LETTERS_SUFFIX = "_dead_letters"
# Who sees which rows of a sync gateway. The server alone writes it, in the gateway's namespace.
RULES_TABLE = "sync_rules"
# Which collections a database of MongoDB's has, and their indexes: `<database>.system.collections`.
_DESCRIPTIONS = ("system", "collections")
NAME_LENGTH_MAX = 128
DEPTH_MAX = 8

# A part becomes a folder, a URL segment and an SQL identifier, so what would need escaping in any of them is out.
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f/\\\"'`%?#]")


class TableName(NamedTuple):
    """A namespace (its levels joined by dots) and a table."""

    namespace: str
    table: str

    def __str__(self) -> str:
        return f"{self.namespace}.{self.table}"

    @property
    def levels(self) -> tuple[str, ...]:
        """The namespace level by level."""
        return tuple(self.namespace.split("."))

    @property
    def history(self) -> "TableName":
        """Where the table's changes are kept as they came."""
        return TableName(self.namespace, self.table + HISTORY_SUFFIX)

    @property
    def dead_letters(self) -> "TableName":
        """Where the changes go that do not fit the table."""
        return TableName(self.namespace, self.table + DEAD_LETTERS_SUFFIX)

    @property
    def logical(self) -> "TableName":
        """The table that producers name, of which this one is the state, the history or the dead letters."""
        for suffix in (HISTORY_SUFFIX, DEAD_LETTERS_SUFFIX):
            if self.table.endswith(suffix):
                return TableName(self.namespace, self.table.removesuffix(suffix))
        return self


def describes_collections(name: TableName) -> bool:
    """Whether a table says which collections there are. The Mongo door alone writes it, and believes what it says."""
    return (name.levels[-1], name.logical.table) == _DESCRIPTIONS


def parse_table_name(text: str) -> TableName:
    """Read a table's name as producers write it: the last dot splits, no dot means the default namespace."""
    namespace, _, table = text.rpartition(".")
    name = TableName(namespace or DEFAULT_NAMESPACE, table)
    if text.startswith("."):
        raise Invalid(f"table name has an empty part. got={text[:NAME_LENGTH_MAX]!r}")
    parts = (*name.levels, table)
    if len(parts) > DEPTH_MAX:
        raise Invalid(f"table name is too deep. expected=at most {DEPTH_MAX} parts got={len(parts)}")
    for part in parts:
        _check_part(part)
    if table.endswith((HISTORY_SUFFIX, DEAD_LETTERS_SUFFIX)):
        raise Invalid(f"table name is reserved for Mainstem's own tables. got={table!r}")
    return name


def refuse_rules(name: TableName) -> TableName:
    """Refuse the table of a sync gateway's rules, which no door fills but the one that they are set by."""
    if name.table == RULES_TABLE:
        raise Invalid(f"table name is reserved for the rules of a sync gateway. got={str(name)!r}")
    return name


def _check_part(part: str) -> None:
    if not part or part != part.strip():
        raise Invalid(f"table name has an empty part or outer spaces. got={part[:NAME_LENGTH_MAX]!r}")
    if len(part) > NAME_LENGTH_MAX:
        raise Invalid(f"table name is too long. expected=at most {NAME_LENGTH_MAX} got={len(part)} characters")
    if forbidden := _FORBIDDEN.search(part):
        raise Invalid(f"table name has a character that is not allowed. got={forbidden.group()!r}")
