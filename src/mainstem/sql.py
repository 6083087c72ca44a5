"""How names and texts are written in SQL: one pair of functions per dialect, for every module that builds a statement.

Values that a statement can take as parameters are not written at all; these are for the places where it cannot.
"""


def duckdb_name(name: str) -> str:
    """An identifier in DuckDB's SQL, which is the standard's."""
    return '"' + name.replace('"', '""') + '"'


def duckdb_text(text: str) -> str:
    """A string in DuckDB's SQL, which is the standard's."""
    return "'" + text.replace("'", "''") + "'"


def spark_name(name: str) -> str:
    """An identifier in Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"


def spark_text(text: str) -> str:
    """A string in Spark's SQL, where a backslash escapes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
