"""Questions to a table's history: how was it then, what changed in between, who changed this and when.

Pure: each question becomes one SELECT on the history table, for the same engine and the same rights as any other query.
A clock is a hybrid logical clock, or a time, which stands for the last clock of its millisecond.
"""

import re
from datetime import UTC, datetime

from mainstem.model import Hlc, Invalid, TableName
from mainstem.model.hlc import COUNTER_MAX, HLC_MAX, pack
from mainstem.sql import duckdb_name, duckdb_text

_DECIMAL = re.compile(r"[0-9]{1,19}").fullmatch
# The value of column `name` of a change, as JSON: a pointer takes any name.
_VALUE = "json_extract(_columns, '/' || replace(replace(name, '~', '~0'), '/', '~1'))"


def read_clock(text: str) -> Hlc:
    """A clock in decimal, or a time such as 2026-11-16T05:00:00Z. Raises Invalid."""
    if _DECIMAL(text):
        if (value := int(text)) <= HLC_MAX:
            return Hlc(value)
    else:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            pass
        else:
            moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            return pack(int(moment.timestamp() * 1000), COUNTER_MAX)
    raise Invalid(f"a clock must be a number of 63 bits or a time in ISO 8601. got={text[:64]!r}", reason="clock_range")


def as_of_sql(table: TableName, clock: Hlc, key: str | None = None) -> str:
    """The rows as they were at a clock, by the merge rule: `_key`, `_hlc`, `_source` and `row`, a JSON object."""
    only = "" if key is None else f" AND _key = {duckdb_text(key)}"
    return (
        f"WITH c AS (SELECT * FROM {_history(table)} WHERE _hlc <= {int(clock)}{only}), "
        "gone AS (SELECT _key, _hlc AS gone_hlc, _source AS gone_source FROM c WHERE _op = 'delete' "
        "QUALIFY row_number() OVER (PARTITION BY _key ORDER BY _hlc DESC, _source DESC) = 1), "
        "written AS (SELECT _key, _hlc, _source, _columns, unnest(json_keys(_columns)) AS name FROM c "
        "WHERE _op <> 'delete'), "
        f"cells AS (SELECT _key, _hlc, _source, name, {_VALUE} AS value FROM written "
        "QUALIFY row_number() OVER (PARTITION BY _key, name ORDER BY _hlc DESC, _source DESC, value DESC) = 1) "
        "SELECT _key, max(_hlc) AS _hlc, arg_max(_source, _hlc) AS _source, "
        "json_group_object(name, value) AS row FROM cells LEFT JOIN gone USING (_key) "
        "WHERE gone_hlc IS NULL OR _hlc > gone_hlc OR (_hlc = gone_hlc AND _source > gone_source) "
        "GROUP BY _key ORDER BY _key"
    )


def changes_sql(table: TableName, after: Hlc, through: Hlc) -> str:
    """Every change with after < clock <= through, in the order of the clocks."""
    return (
        f"SELECT _hlc, _source, _op, _key, _columns AS columns, _position, _id FROM {_history(table)} "
        f"WHERE _hlc > {int(after)} AND _hlc <= {int(through)} ORDER BY _hlc, _source, _position"
    )


def blame_sql(table: TableName, key: str, column: str) -> str:
    """Every write to one column of one row, and every delete of the row, the newest first."""
    name = duckdb_text(column)
    value = _VALUE.replace("name", name)
    return (
        f"SELECT _hlc, _source, _op, CASE WHEN _op <> 'delete' THEN {value} END AS value, _position, _id "
        f"FROM {_history(table)} WHERE _key = {duckdb_text(key)} "
        f"AND (_op = 'delete' OR list_contains(json_keys(_columns), {name})) "
        "ORDER BY _hlc DESC, _source DESC, _position DESC"
    )


def _history(table: TableName) -> str:
    return f"{duckdb_name(table.namespace)}.{duckdb_name(table.history.table)}"
