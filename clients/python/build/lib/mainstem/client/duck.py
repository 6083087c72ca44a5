"""DuckDB on Mainstem's tables, in one call.

The extensions come from wheels that were installed with Mainstem, so nothing is downloaded at run time.
"""

from typing import TYPE_CHECKING

from mainstem.model import Invalid

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# The Iceberg extension reads manifests with the Avro one, and asks the catalog through httpfs.
_EXTENSIONS = ("avro", "httpfs", "iceberg")


def connect_duckdb(url: str, *, warehouse: str = "lake", token: str | None = None) -> "DuckDBPyConnection":
    """A DuckDB connection in which the tables are there as `lake.<namespace>.<table>`."""
    import duckdb
    from duckdb_extensions import import_extension

    if any(quote in url + warehouse for quote in "'\""):
        raise Invalid(f"a URL or a warehouse name has no quotes. got={url!r} {warehouse!r}")
    connection = duckdb.connect()
    for name in _EXTENSIONS:
        import_extension(name, con=connection)
        connection.load_extension(name)
    authorization = "AUTHORIZATION_TYPE 'none'"
    if token is not None:
        connection.execute("CREATE SECRET mainstem (TYPE iceberg, TOKEN ?)", [token])
        authorization = "SECRET mainstem"
    connection.execute(f"ATTACH '{warehouse}' AS lake (TYPE iceberg, ENDPOINT '{url}', {authorization})")
    return connection
