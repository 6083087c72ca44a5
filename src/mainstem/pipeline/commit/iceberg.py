"""Commits of Iceberg tables: the files of a pass, its deletes and its marks, for all its tables in one transaction.

Manifests and metadata are made by Iceberg's own classes, which are reached through py4j; files come to them as the JSON
that the REST specification has for them. A catalog that knows no transactions is committed to table by table.
"""

import json
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError

from mainstem.model.errors import Conflict, NotFound
from mainstem.model.names import TableName
from mainstem.pipeline.commit.changes import TableChange
from mainstem.pipeline.commit.lake import (
    Lake,
    LakeTable,
    commit,
    is_a,
    is_gone,
    raise_if_gone,
)
from mainstem.pipeline.commit.marks import APPLICATION
from mainstem.pipeline.passes.stores import make_durable
from mainstem.pipeline.session.spark import join_session

log = logging.getLogger(__name__)

STAGED_AT_ONCE = 4


@dataclass(slots=True, kw_only=True)
class IcebergChange(TableChange[LakeTable]):
    """What one Iceberg table gets from a pass."""

    # Delete files that new ones replace, and the data files that lose rows.
    replaced: list[str] = field(default_factory=list)
    losing: list[str] = field(default_factory=list)
    # Whether rows may be replaced: a state. A log is only appended to.
    is_state: bool = False

    def commit(self) -> None:
        self.table.commit_staged()
        self.is_committed = True


class IcebergCommits:
    """Makes the transactions."""

    def __init__(self, lake: Lake, *, has_transactions: bool = True) -> None:
        self._lake = lake
        self._has_transactions = has_transactions
        # Manifests of several tables are written side by side: most of that time is waiting for files.
        self._threads = ThreadPoolExecutor(STAGED_AT_ONCE, "stage", join_session, (lake.spark,))

    def commit(self, changes: Sequence[IcebergChange], batch: str) -> dict[str, int]:
        """Make all changes visible at once; returns the new snapshot of each table, by its identifier.

        Raises Conflict where one of the tables has changed since its transaction began, NotFound where one was dropped.
        A logical table that did is left out, and the others are committed without it; of a catalog without
        transactions, those before it. What is visible says so.
        """
        failures = self._stage_each(changes, batch)
        standing = [change for change in changes if change.table.name.logical not in failures]
        _make_durable(standing)
        if len(standing) <= 1 or not (self._has_transactions and self._commit_those_that_stand(standing)):
            self._commit_one_by_one(standing)
        if failures:
            raise next(iter(failures.values()))
        return {change.table.identifier: self._head(change) for change in changes}

    def _stage_each(self, changes: Sequence[IcebergChange], batch: str) -> dict[TableName, Exception]:
        """Write the manifests; returns what failed, by logical table. The others go without those."""

        def stage(change: IcebergChange) -> Exception | None:
            try:
                self._stage(change, batch)
            except Exception as error:
                # The edge of one table. One that was dropped and purged has lost the manifests that were to be read.
                if isinstance(error, Py4JJavaError) and _is_dropped(change):
                    return NotFound(f"the table was dropped. table={change.table.name}")
                return error
            return None

        found = self._threads.map(stage, changes)
        return {
            change.table.name.logical: error for change, error in zip(changes, found, strict=True) if error is not None
        }

    def _commit_those_that_stand(self, changes: Sequence[IcebergChange]) -> bool:
        try:
            return self._commit_together(changes)
        except (Conflict, NotFound):
            moved = {change.table.name.logical for change in changes if _has_moved(change)}
            standing = [change for change in changes if change.table.name.logical not in moved]
            if moved and standing:
                self._commit_together(standing)
            raise

    def _commit_one_by_one(self, changes: Sequence[IcebergChange]) -> None:
        lost: dict[TableName, Conflict | NotFound] = {}
        for change in changes:
            logical = change.table.name.logical
            if logical in lost:
                continue
            try:
                change.commit()
            except (Conflict, NotFound) as error:
                lost[logical] = error
        if lost:
            raise next(iter(lost.values()))

    def _stage(self, change: IcebergChange, batch: str) -> None:
        """Write manifests. No reader sees them before the transaction is committed."""
        transaction, table = change.table.transaction, change.table
        specs = table.java.specs()
        if change.is_state and (change.files or change.deletes):
            update = transaction.newRowDelta()
            for text in change.files:
                update.addRows(self._file(text, specs))
            for text in change.deletes:
                update.addDeletes(self._file(text, specs))
            for text in change.replaced:
                update.removeDeletes(self._file(text, specs))
            start = transaction.startMetadata().currentSnapshot()
            if change.losing and start is not None:
                referenced = self._lake.jvm.java.util.ArrayList()
                for path in change.losing:
                    referenced.add(path)
                # The places are those of the snapshot that the transaction began with.
                update.validateFromSnapshot(start.snapshotId()).validateDataFilesExist(referenced)
                update.validateDeletedFiles().validateNoConflictingDeleteFiles()
        else:
            update = transaction.newFastAppend()
            for text in change.files:
                update.appendFile(self._file(text, specs))
        summary = {**change.marks.summary(), APPLICATION: self._lake.application, "mainstem.batch": batch}
        for name, value in summary.items():
            update.set(name, value)
        commit(update)

    def _commit_together(self, changes: Sequence[IcebergChange]) -> bool:
        """False where the catalog does not know how: nothing was committed then."""
        commits = self._lake.jvm.java.util.ArrayList()
        for change in changes:
            transaction = change.table.transaction
            identifier = self._lake.java_identifier(change.table.name)
            before, after = transaction.startMetadata(), transaction.currentMetadata()
            commits.add(self._lake.classes.commit_of(identifier, before, after))
        try:
            self._lake.java_catalog().commitTransaction(commits)
        except Py4JJavaError as error:
            if is_a(error, "UnsupportedOperationException"):
                return self._give_up_transactions()
            if is_a(error, "CommitFailedException", "ValidationException"):
                raise Conflict(f"commit lost a race: {error.java_exception}") from error
            raise_if_gone(error)
            raise
        except Py4JError as error:
            # The catalog's class has no such method.
            if "commitTransaction" not in str(error):
                raise
            return self._give_up_transactions()
        for change in changes:
            change.is_committed = True
        return True

    def _give_up_transactions(self) -> bool:
        log.info("the catalog has no transactions over several tables: they are committed to one by one")
        self._has_transactions = False
        return False

    def _file(self, text: str, specs: Any) -> Any:
        return self._lake.classes.file_of(self._lake.classes.read_json(text), specs)

    def _head(self, change: IcebergChange) -> int:
        return int(change.table.transaction.currentMetadata().currentSnapshot().snapshotId())


def _make_durable(changes: Sequence[IcebergChange]) -> None:
    """Have last what the commits are about to name, of all tables at once. Executors have seen to the rows' files."""
    deletes = [json.loads(text)["file-path"] for change in changes for text in change.deletes]
    make_durable([*deletes, *(str(path) for change in changes for path in change.table.staged_files())])


def _has_moved(change: IcebergChange) -> bool:
    """Whether somebody else has committed to the table since its transaction began, or has dropped it."""
    if _is_dropped(change):
        return True
    now = change.table.java.operations().current().metadataFileLocation()
    return str(now) != str(change.table.transaction.startMetadata().metadataFileLocation())


def _is_dropped(change: IcebergChange) -> bool:
    """Whether the catalog does not know the table any more. Looks, so that its operations are up to date."""
    try:
        change.table.java.operations().refresh()
    except Py4JJavaError as error:
        if is_gone(error):
            return True
        raise
    return False
