"""What one task of a pass does: rows of segments in, files out, and descriptions of them. Runs on the executors.

All rows of a key come to one task. Per table the task judges the rows, writes history and dead letters, makes of each
key's changes the row that the state has from now on, and writes those. It commits nothing: what it wrote counts only
once the driver has committed it, so a task may be killed, or run twice, at any line.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.model.change import SOURCE_TIME_MS_MAX, SOURCE_TIME_MS_MIN
from mainstem.model.errors import Corrupt
from mainstem.model.names import TableName
from mainstem.model.position import Lineage
from mainstem.pipeline.passes.delta_files import write_delta_files
from mainstem.pipeline.passes.fetch import whole_rows
from mainstem.pipeline.passes.files import WrittenFile, write_files
from mainstem.pipeline.passes.merge import Evidence, Merged, last_of_each, merge_rows
from mainstem.pipeline.passes.plan import (
    CHANGE,
    DEAD_LETTERS,
    DESCRIPTIONS,
    HISTORY,
    OLD_ROW,
    STATE,
    DeltaTarget,
    Part,
    PassPlan,
    TableTask,
)
from mainstem.pipeline.passes.stores import make_durable
from mainstem.pipeline.passes.values import Mask, Values, read_values
from mainstem.pipeline.passes.worker import settle
from mainstem.tables.layout import CLOCKS, HLC, KEY, LOG, POSITION, SOURCE
from mainstem.tables.types import STRING, VARIANT

HASH_BYTES = 16
_DELETE = "delete"
_TIME = pa.timestamp("us", "UTC")
_NONE: Mapping[str, str] = MappingProxyType({})
_clocks = msgspec.json.Decoder(dict[str, tuple[int, str]]).decode


def run_task(plan: PassPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The task: rows in the order in which Spark brings them, then what became of them."""
    settle()
    arrived = list(batches)
    if not arrived:
        return
    described = {
        name: _TableKernel(plan, plan.tables[name], rows).run()
        for name, rows in _by_table(pa.Table.from_batches(arrived))
        if name in plan.tables
    }
    # The files of all tables at once, and before the driver hears of any.
    make_durable(each.unsynced for files in described.values() for each in files if each.unsynced is not None)
    for name, files in described.items():
        yield _describe(name, files)
    # A worker waits for its next task with what it holds: a hundred megabytes more after a large pass.
    del arrived
    pa.default_memory_pool().release_unused()


def hash_keys(keys: Sequence[bytes]) -> bytes:
    """What an index knows a key by: 128 bits of BLAKE2 each, one behind the other."""
    blake = hashlib.blake2b
    return b"".join([blake(key, digest_size=HASH_BYTES).digest() for key in keys])


class _Described(msgspec.Struct):
    """One row of the descriptions."""

    part: str
    file: str | None = None
    rows: int = 0
    size: int = 0
    hashes: bytes | None = None
    gone: bytes | None = None
    read: int = 0
    # The location of a file that is not known to last yet. Delta's own writer has seen to its files.
    unsynced: str | None = None


class _TableKernel:
    """One table's rows in one task."""

    def __init__(self, plan: PassPlan, task: TableTask, rows: pa.Table) -> None:
        self._plan = plan
        self._task = task
        self._described: list[_Described] = []
        if task.segments:
            rows = whole_rows(rows, task.segments, plan.store)
        positions = rows["position"].to_numpy()
        evidence = rows["evidence"].to_numpy()
        is_change = evidence == CHANGE
        # Rows beyond the end of the pass are the next one's.
        wanted = ~is_change | ((positions > int(task.after)) & (positions <= int(task.last)))
        if not wanted.all():
            rows, is_change = rows.filter(pa.array(wanted)), is_change[wanted]
        self._rows = rows.combine_chunks()
        self._is_change: Mask = is_change

    def run(self) -> list[_Described]:
        """Write everything; returns what there is to commit."""
        errors = self._rows["error"].to_pylist() if self._rows["error"].null_count < len(self._rows) else None
        is_delete = pc.equal(self._rows["op"], _DELETE).to_numpy()
        judged = self._judge(errors, is_delete)
        fits: Mask = np.ones(len(self._rows), bool)
        if judged is not None:
            reasons = pa.array(judged, pa.string())
            fits = reasons.is_null().to_numpy(zero_copy_only=False)
            self._write_log(self._task.dead_letters, DEAD_LETTERS, ~fits & self._is_change, reasons)
        self._write_log(self._task.history, HISTORY, fits & self._is_change, None)
        if self._task.state is not None and self._task.columns:
            self._write_state(self._task.state, fits, is_delete)
        stands_for = self._rows["stands_for"]
        read = int(np.count_nonzero(self._is_change & stands_for.is_null().to_numpy()))
        read += int(pc.sum(stands_for, min_count=0).as_py())
        self._described.append(_Described("", read=read))
        return self._described

    def _judge(self, errors: list[str | None] | None, is_delete: Mask) -> list[str | None] | None:
        """Why rows do not fit; None where none was refused and none can be."""
        task = self._task
        if task.refusal:
            return [error or task.refusal for error in errors or [None] * len(self._rows)]
        checked = [column for column in task.columns if column.kind is None and column.type not in (STRING, VARIANT)]
        if not checked and not task.refused:
            return errors
        found = errors or [None] * len(self._rows)
        is_good = np.array([error is None for error in found], bool)
        looked_at = np.flatnonzero(is_good & ~is_delete & self._is_change)
        values = read_values(_texts(self._rows, looked_at), checked, task.seen, task.refused)
        for number, error in zip(looked_at.tolist(), values.errors, strict=True):
            found[number] = error
        return found

    def _write_log(self, part: Part | None, name: str, chosen: Mask, reasons: pa.Array | None) -> None:
        """Write changes as they came, into the history or the dead letters."""
        positions = self._rows["position"].to_numpy()
        if part is None:
            if name == DEAD_LETTERS and chosen.any():
                # There is no table for them yet: the driver makes one, and this pass is done again.
                self._described.append(_Described(name, rows=int(np.count_nonzero(chosen))))
            return
        chosen = chosen & (positions > int(part.after))
        for first, last in part.linked:
            chosen &= (positions < int(first)) | (positions > int(last))
        if not chosen.any():
            return
        numbers = pa.array(np.flatnonzero(chosen))
        columns = _history_columns(self._rows.take(numbers), self._task.lineage)
        if reasons is not None:
            columns["_reason"] = reasons.take(numbers)
        self._write(part, name, pa.table(columns))

    def _write_state(self, part: Part, fits: Mask, is_delete: Mask) -> None:
        positions = self._rows["position"].to_numpy()
        counts = fits & (~self._is_change | (positions > int(part.after)))
        if not (counts & self._is_change).any():
            return
        numbers = np.flatnonzero(counts)
        rows = self._rows.take(pa.array(numbers)) if len(numbers) < len(self._rows) else self._rows
        is_change, is_delete = self._is_change[numbers], is_delete[numbers]
        if self._task.appends:
            # As they come: no key is looked for, neither here nor in the table.
            self._write(part, STATE, self._table_of(self._every(rows)))
            return
        merged = self._merged(rows, is_change, is_delete) if self._task.merges else self._latest(rows, is_delete)
        every = rows["key"].unique()
        self._write(part, STATE, self._table_of(merged), merged.keys)
        if len(merged.keys) < len(every):
            gone = every.filter(pc.invert(pc.is_in(every, merged.keys)))
            self._described.append(_Described(STATE, gone=hash_keys(gone.cast(pa.binary()).to_pylist())))

    def _table_of(self, merged: Merged) -> pa.Table:
        """Rows as the state has them."""
        columns = dict(zip((column.stored for column in self._task.columns), merged.columns, strict=True))
        columns |= {
            KEY: merged.keys,
            HLC: merged.hlcs,
            SOURCE: merged.sources,
            POSITION: merged.positions,
            CLOCKS: merged.clocks,
        }
        return pa.table(columns)

    def _every(self, rows: pa.Table) -> Merged:
        """Every change as a row, in the order of the log."""
        chosen = rows.sort_by("position")
        every = np.arange(len(chosen))
        return self._as_rows(chosen, read_values(_texts(chosen, every), self._task.columns, self._task.seen, _NONE))

    def _as_rows(self, chosen: pa.Table, values: Values) -> Merged:
        values = self._sure(values)
        return Merged(
            keys=chosen["key"].combine_chunks(),
            columns=values.arrays,
            hlcs=chosen["hlc"].combine_chunks(),
            sources=chosen["source"].combine_chunks(),
            positions=chosen["position"].combine_chunks(),
            clocks=pa.nulls(len(chosen), pa.string()),
        )

    def _latest(self, rows: pa.Table, is_delete: Mask) -> Merged:
        """The last row of each key: for whole rows whose clocks grow with their positions."""
        codes = rows["key"].combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)
        last = last_of_each(codes, rows["position"].to_numpy())
        numbers = last[~is_delete[last]]
        chosen = rows.take(pa.array(numbers))
        every = np.arange(len(chosen))
        return self._as_rows(chosen, read_values(_texts(chosen, every), self._task.columns, self._task.seen, _NONE))

    def _merged(self, rows: pa.Table, is_change: Mask, is_delete: Mask) -> Merged:
        """Column by column, with what the table has."""
        task = self._task
        is_old = rows["evidence"].to_numpy() == OLD_ROW
        with_values = np.flatnonzero(~is_delete)
        seen = {} if is_old.any() else task.seen
        read = self._sure(read_values(_texts(rows, with_values), task.columns, seen, _NONE))
        values = _spread(read, with_values, len(rows))
        clocks = rows["clocks"].to_pylist()
        positions, hlcs = rows["position"].to_numpy(), rows["hlc"].to_numpy()
        for number, column in enumerate(task.columns):
            since = int(task.since.positions.get(column.name, 0))
            lacks = is_old & (positions <= since) if since else np.zeros(len(rows), bool)
            if column.name in task.since.clocks:
                lacks |= is_old & (hlcs <= task.since.clocks[column.name])
            for at in np.flatnonzero(is_old).tolist():
                text = clocks[at]
                if text is not None:
                    lacks[at] = column.name not in _clocks(text)
            values.present[number][lacks] = False
        return merge_rows(
            Evidence(
                keys=rows["key"].combine_chunks(),
                hlcs=hlcs,
                sources=rows["source"].to_pylist(),
                positions=positions,
                is_change=is_change,
                is_delete=is_delete,
                clocks=clocks,
                values=values,
            ),
            task.columns,
            task.since.clock_max,
        )

    def _sure(self, values: Values) -> Values:
        """Values of rows that were judged to fit. One that does not would become a null: then nothing is committed."""
        misfit = next(filter(None, values.errors), None)
        if misfit is not None:
            raise Corrupt(f"a value is not what its segment or its table says. {misfit}", place=str(self._task.table))
        return values

    def _write(self, part: Part, name: str, rows: pa.Table, keys: pa.Array | None = None) -> None:
        files: list[WrittenFile]
        if isinstance(part.target, DeltaTarget):
            files = write_delta_files(part.target, rows, self._plan.store, self._plan.now_ms)
        else:
            files = write_files(part.target, rows, self._plan.store)
        for file in files:
            hashes = None
            if keys is not None:
                hashes = hash_keys(keys.take(pa.array(file.rows)).cast(pa.binary()).to_pylist())
            text = msgspec.json.encode(file.description).decode()
            self._described.append(
                _Described(name, text, len(file.rows), file.bytes, hashes, unsynced=file.description.get("file-path"))
            )


def _by_table(rows: pa.Table) -> Iterator[tuple[TableName, pa.Table]]:
    """The rows of each table."""
    names = pc.binary_join_element_wise(rows["namespace"], rows["table"], "\x1f").combine_chunks().dictionary_encode()
    codes = names.indices.to_numpy()
    texts = names.dictionary.to_pylist()
    for code, text in enumerate(texts):
        namespace, _, table = text.partition("\x1f")
        chosen = rows if len(texts) == 1 else rows.filter(pa.array(codes == code))
        yield TableName(namespace, table), chosen


def _texts(rows: pa.Table, numbers: np.ndarray) -> list[bytes]:
    """The JSON of some rows. A row without columns is an empty object."""
    chosen = rows["columns"].cast(pa.binary())
    if len(numbers) < len(rows):
        chosen = chosen.take(pa.array(numbers))
    return [text or b"{}" for text in chosen.to_pylist()]


def _spread(values: Values, numbers: np.ndarray, count: int) -> Values:
    """The values of some rows among all of them; the others have no column."""
    places = np.full(count, -1, np.int64)
    places[numbers] = np.arange(len(numbers))
    indices = pa.array(places, mask=places < 0)
    present = []
    for mask in values.present:
        whole = np.zeros(count, bool)
        whole[numbers] = mask
        present.append(whole)
    return Values([array.take(indices) for array in values.arrays], present, [])


def _history_columns(rows: pa.Table, lineage: Lineage) -> dict[str, Any]:
    times = rows["source_time_ms"]
    in_range = pc.and_(pc.greater_equal(times, SOURCE_TIME_MS_MIN), pc.less_equal(times, SOURCE_TIME_MS_MAX))
    return {
        POSITION: rows["position"],
        HLC: rows["hlc"],
        "_op": rows["op"],
        KEY: rows["key"],
        "_columns": rows["columns"],
        "_before": rows["before"],
        SOURCE: rows["source"],
        "_batch_sequence": rows["batch_sequence"],
        "_sequence": rows["sequence"],
        "_id": rows["id"],
        "_time": _moments(rows["arrival_ms"]),
        "_source_time": _moments(pc.if_else(in_range, times, pa.scalar(None, pa.int64()))),
        "_metadata": rows["metadata"],
        LOG: _logs_of(rows["position"].to_numpy(), lineage),
    }


def _logs_of(positions: np.ndarray, lineage: Lineage) -> pa.Array:
    """Of each position, the identity under which it was issued."""
    firsts = np.array([int(span.first) for span in lineage.spans])
    numbers = np.maximum(np.searchsorted(firsts, positions, side="right") - 1, 0)
    return pa.array([span.log for span in lineage.spans], pa.string()).take(pa.array(numbers))


def _moments(times_ms: pa.ChunkedArray) -> pa.ChunkedArray:
    return times_ms.cast(pa.timestamp("ms", "UTC")).cast(_TIME)


def _describe(name: TableName, described: Sequence[_Described]) -> pa.RecordBatch:
    own = {"namespace": name.namespace, "table": name.table}
    rows = [{**own, **msgspec.structs.asdict(each), "bytes": each.size} for each in described]
    return pa.RecordBatch.from_pylist(rows, schema=DESCRIPTIONS)
