"""`mainstem catalog verify` and `rebuild`: hold states against their histories, and make a damaged state anew.

The check is one query of DuckDB's over both tables, on snapshots that belong together. A key is there if it has a
change with columns that is newer than its last delete; its row has the position of the last change of the key.
Positions of two logs cannot be compared: where several wrote a table, a row has the position of the last change of the
key in one of them, and the newest clock of all.
"""

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import rich_click as click

from mainstem.app.cli.options import asking, json_option
from mainstem.app.cli.remote import Remote
from mainstem.app.cli.views import View, show, tell
from mainstem.formats.iceberg.snapshots import current_snapshot_id
from mainstem.model.errors import Invalid
from mainstem.model.names import TableName, parse_table_name
from mainstem.sql import duckdb_name
from mainstem.tables.layout import LOG, STATE_COLUMNS
from mainstem.tables.marks import positions_of
from mainstem.wire.jobs import ENDED, JobState

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

EXAMPLES_MAX = 10
# Looks at a busy table until state and history are found at one point of the log.
LOOKS_MAX = 10
POLL_S = 0.5
FAULTS = ("doubled", "stale", "missing", "extra")

_JUDGED = """
CREATE OR REPLACE TEMP TABLE judged AS
WITH changes AS (
    SELECT _key, _position, {log} AS log, _op = 'delete' AS is_delete, {{'hlc': _hlc, 'source': _source}} AS stamp,
        coalesce(_columns, '{{}}') <> '{{}}' AS has_columns
    FROM {history}
), of_logs AS (
    SELECT _key, max(_position) AS position, max(stamp) FILTER (WHERE is_delete) AS dead,
        max(stamp) FILTER (WHERE NOT is_delete AND has_columns) AS live
    FROM changes GROUP BY _key, log
), known AS (
    SELECT _key, list(position) AS positions, max(dead) AS dead, max(live) AS live FROM of_logs GROUP BY _key
), held AS (
    SELECT _key, count(*) AS row_count, max(_position) AS position, max({{'hlc': _hlc, 'source': _source}}) AS stamp
    FROM {state} GROUP BY _key
), paired AS (
    SELECT coalesce(held._key, known._key) AS key, held.row_count AS row_count,
        known._key IS NOT NULL AS is_known,
        NOT list_contains(positions, held.position) OR (len(positions) > 1 AND stamp <> live) AS is_old,
        coalesce(live > dead, live IS NOT NULL) AS is_alive
    FROM held FULL JOIN known ON held._key = known._key
)
SELECT key, row_count IS NOT NULL AS is_there, is_known,
    coalesce(row_count > 1, false) AS doubled,
    coalesce(is_known AND is_alive AND is_old, false) AS stale,
    is_known AND is_alive AND row_count IS NULL AS missing,
    is_known AND NOT is_alive AND row_count IS NOT NULL AS extra
FROM paired
"""


class Fault(msgspec.Struct, frozen=True):
    """How many keys have it, and some of them."""

    keys: int
    examples: list[str]


class Verdict(msgspec.Struct, frozen=True):
    """What the check of one state came to."""

    table: str
    keys: int
    # Keys of the state that the history knows nothing of: nothing can be said of them but that they stand once.
    unchecked: int
    doubled: Fault = Fault(0, [])
    stale: Fault = Fault(0, [])
    missing: Fault = Fault(0, [])
    extra: Fault = Fault(0, [])
    # Why it could not be checked.
    error: str | None = None

    @property
    def is_right(self) -> bool:
        """Whether it was checked, and nothing is wrong with it."""
        return self.error is None and not any(getattr(self, fault).keys for fault in FAULTS)


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@json_option
@asking(Remote)
def verify(remote: Remote, tables: tuple[str, ...], as_json: bool) -> None:
    """Check states against their histories: all tables, or those named. Ends with 1 where something is wrong."""
    from mainstem.client import connect_duckdb

    names = [_parsed(table) for table in tables] or list(_states(remote))
    with connect_duckdb(remote.url, token=remote.token) as connection:
        verdicts = [_judged(remote, connection, name) for name in names]
    if as_json:
        click.echo(msgspec.json.encode({"tables": verdicts}).decode())
    else:
        _show(verdicts)
    if not all(verdict.is_right for verdict in verdicts):
        raise SystemExit(1)


@click.command()
@click.argument("table")
@click.option("--force", is_flag=True, help="Go on where the history does not have all of the state.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@asking(Remote)
def rebuild(remote: Remote, table: str, force: bool, yes: bool, as_json: bool) -> None:
    """Make a table's state anew from its history. The pipeline does it; the table's ingest waits meanwhile."""
    name = _parsed(table)
    remote.table(str(name), "refs")
    if not yes:
        click.confirm(f"Put what the history says in the place of all rows of {name}?", abort=True)
    body = {"namespace": name.namespace, "table": name.table, "steps": ["rebuild"], "force": force}
    jobs = remote.ask("POST", "compaction/run", body)["jobs"]
    if not jobs:
        raise click.ClickException(f"{name} has no rows yet")
    job = jobs[0]
    while job["state"] not in ENDED:
        time.sleep(POLL_S)
        job = remote.ask("GET", f"compaction/jobs/{job['id']}")
    if job["state"] != JobState.DONE:
        raise click.ClickException(f"{name} was not rebuilt: {job.get('error') or job['state']}")
    done = job["progress"]["rebuild"]
    tell(
        f"{name} was rebuilt from {done['changesRead']:,} changes: {done['rowsBefore']:,} rows before,"
        f" {done['rowsWritten']:,} now",
        {"table": str(name), **done},
        as_json=as_json,
    )


def _parsed(table: str) -> TableName:
    try:
        return parse_table_name(table)
    except Invalid as error:
        raise click.ClickException(str(error)) from error


def _judged(remote: Remote, connection: "DuckDBPyConnection", name: TableName) -> Verdict:
    """Check one state. An error of one table is reported, and the others are checked all the same."""
    import duckdb

    try:
        return _judge(remote, connection, name)
    except (duckdb.Error, click.ClickException) as error:
        return Verdict(str(name), 0, 0, error=str(error))


def _judge(remote: Remote, connection: "DuckDBPyConnection", name: TableName) -> Verdict:
    state, history = _snapshots(remote, str(name), str(name.history))
    if state is None or history is None:
        return Verdict(str(name), 0, 0)
    there = _at(name.levels, name.history.table, history)
    names = [column for column, *_ in connection.execute(f"DESCRIBE SELECT * FROM {there}").fetchall()]
    # A history from before its rows said of which log they are.
    log = f"coalesce({LOG}, '')" if LOG in names else "''"
    connection.execute(_JUDGED.format(state=_at(name.levels, name.table, state), history=there, log=log))
    counts = "count(*) FILTER (WHERE is_there), count(*) FILTER (WHERE is_there AND NOT is_known)"
    keys, unchecked = connection.execute(f"SELECT {counts} FROM judged").fetchall()[0]
    doubled, stale, missing, extra = (_fault(connection, fault) for fault in FAULTS)
    return Verdict(str(name), keys, unchecked, doubled, stale, missing, extra)


def _fault(connection: "DuckDBPyConnection", fault: str) -> Fault:
    ((count,),) = connection.execute(f"SELECT count(*) FROM judged WHERE {fault}").fetchall()
    rows = connection.execute(f"SELECT key FROM judged WHERE {fault} ORDER BY key LIMIT {EXAMPLES_MAX}").fetchall()
    return Fault(count, [str(key) for (key,) in rows])


def _states(remote: Remote) -> Iterator[TableName]:
    """Every table that has the columns of a state, and a history beside it."""
    for levels in remote.namespaces():
        names = set(remote.names(levels, "tables"))
        for table in sorted(names):
            name = TableName(".".join(levels), table)
            if name.history.table in names and _may_be_state(remote, name):
                yield name


def _may_be_state(remote: Remote, name: TableName) -> bool:
    try:
        return _is_state(remote.table(str(name), "refs"))
    except click.ClickException:
        # Said of it where it is checked.
        return True


def _is_state(document: dict[str, Any]) -> bool:
    (schema,) = [each for each in document["schemas"] if each["schema-id"] == document["current-schema-id"]]
    return {name for name, _ in STATE_COLUMNS} <= {field["name"] for field in schema["fields"]}


def _snapshots(remote: Remote, state: str, history: str) -> tuple[int | None, int | None]:
    """The heads of both, at one point of the log. Both are committed at once, but they are asked for in turn."""
    heads: list[int | None] = []
    for _ in range(LOOKS_MAX):
        documents = [remote.table(name, "refs") for name in (state, history)]
        if not _is_state(documents[0]):
            raise click.ClickException(f"{state} is not the state of a table of ours")
        heads = [current_snapshot_id(document) for document in documents]
        marks = [_marks(document, head) for document, head in zip(documents, heads, strict=True)]
        # Somebody else's commit has none: then nothing is known of the other's place either.
        if marks[0] == marks[1] or not all(marks):
            break
    # A state that stays behind its history was put back: that is found as what it is.
    return heads[0], heads[1]


def _marks(document: dict[str, Any], head: int | None) -> dict[str, int]:
    for snapshot in document["snapshots"]:
        if snapshot["snapshot-id"] == head:
            return {str(log): int(position) for log, position in positions_of(snapshot.get("summary") or {}).items()}
    return {}


def _at(levels: Sequence[str], table: str, snapshot: int) -> str:
    return f"lake.{duckdb_name('.'.join(levels))}.{duckdb_name(table)} AT (VERSION => {snapshot})"


def _show(verdicts: Sequence[Verdict]) -> None:
    view = View("table", "keys", "unchecked", *FAULTS, title="States against their histories")
    for verdict in verdicts:
        faults = [getattr(verdict, fault).keys for fault in FAULTS]
        view.add(verdict.table, verdict.keys, verdict.unchecked, *faults)
    show(view)
    for verdict in verdicts:
        for fault in FAULTS:
            found: Fault = getattr(verdict, fault)
            if found.keys:
                click.echo(f"{verdict.table}: {fault}: {', '.join(found.examples)}")
        if verdict.error is not None:
            click.echo(f"{verdict.table}: could not be checked: {verdict.error}")
        elif not verdict.is_right:
            click.echo(f"To mend it: mainstem catalog rebuild {verdict.table}")
