"""What a push must be before anything of it is stored. Pure: the time is an argument."""

import re
from collections.abc import Iterable
from functools import lru_cache

from mainstem.model.errors import Denied, Invalid
from mainstem.model.hlc import DRIFT_MS_MAX, HLC_MAX, Hlc, pack, wall_ms
from mainstem.model.names import TableName, parse_table_name
from mainstem.wire.sync.identity import delta_id
from mainstem.wire.sync.messages import BadDelta, Op, RowDelta, SyncPush

NAME_LENGTH_MAX = 255
DELTAS_MAX = 10_000
PUSH_BYTES_MAX = 16 * 1024 * 1024

_CONTROL = re.compile(r"[\x00-\x1f\x7f]").search
_OPS = frozenset((Op.INSERT, Op.UPDATE, Op.DELETE))


class ClockDrift(BadDelta):
    """A delta's clock runs too far ahead of ours, which is `server_hlc`."""

    def __init__(self, message: str, *, delta_id: str, server_hlc: Hlc) -> None:
        super().__init__(message, reason="clock_drift", delta_id=delta_id)
        self.server_hlc = server_hlc


def check_push(push: SyncPush, gateway: str, now_ms: int) -> None:
    """Refuse a push that is not as the protocol has it. Raises Invalid, BadDelta or Denied."""
    check_name(push.client_id, "a client's id")
    if len(push.deltas) > DELTAS_MAX:
        raise Invalid(
            f"a push is too large. expected=at most {DELTAS_MAX} deltas got={len(push.deltas)}", reason="too_large"
        )
    for delta in push.deltas:
        if delta.client_id != push.client_id:
            raise Denied(f"a delta is someone else's. expected={push.client_id} got={delta.client_id[:64]}")
        try:
            _check_delta(delta, gateway, now_ms)
        except BadDelta:
            raise
        except Invalid as error:
            raise BadDelta(str(error), reason=error.reason, delta_id=delta.delta_id) from error


def _check_delta(delta: RowDelta, gateway: str, now_ms: int) -> None:
    if delta.op not in _OPS:
        raise Invalid(f"an operation must be 1 to 3. got={delta.op}", reason="invalid_op")
    table_name(gateway, delta.table)
    check_name(delta.row_id, "a row's id")
    _check_columns(delta)
    if delta.hlc > HLC_MAX:
        raise Invalid(f"a clock is out of range. expected=0..{HLC_MAX} got={delta.hlc}", reason="clock_range")
    ahead_ms = wall_ms(Hlc(delta.hlc)) - now_ms
    if ahead_ms > DRIFT_MS_MAX:
        raise ClockDrift(
            f"clock drift. expected=at most {DRIFT_MS_MAX} ms ahead got={ahead_ms} ms",
            delta_id=delta.delta_id,
            server_hlc=pack(now_ms, 0),
        )
    expected = delta_id(
        table=delta.table,
        row_id=delta.row_id,
        columns=delta.columns,
        hlc=delta.hlc,
        client_id=delta.client_id,
    )
    if delta.delta_id != expected:
        raise Invalid(
            f"an id is not its delta's hash. expected={expected} got={delta.delta_id[:64]!r}",
            reason="delta_id_mismatch",
        )


def _check_columns(delta: RowDelta) -> None:
    if delta.op == Op.DELETE and delta.columns:
        raise Invalid(f"a delete has no columns. got={len(delta.columns)}")
    for each in delta.columns:
        _check_known_name(each.column)
    if len(delta.columns) > 1 and len({each.column for each in delta.columns}) != len(delta.columns):
        raise Invalid("a column is written twice in one delta", reason="invalid_name")


def check_name(name: str, what: str) -> None:
    """Refuse a name that no part of the system could carry. Raises Invalid (`invalid_name`)."""
    if not 1 <= len(name) <= NAME_LENGTH_MAX:
        raise Invalid(f"{what} has a bad length. expected=1..{NAME_LENGTH_MAX} got={len(name)}", reason="invalid_name")
    if _CONTROL(name):
        raise Invalid(f"{what} has a control character. got={name[:64]!r}", reason="invalid_name")


@lru_cache(4_096)
def _check_known_name(name: str) -> None:
    check_name(name, "a column's name")


@lru_cache(4_096)
def table_name(gateway: str, table: str) -> TableName:
    """Where a gateway's table lies in the lake: the namespace is named after the gateway."""
    check_name(gateway, "a gateway's name")
    check_name(table, "a table's name")
    try:
        name = parse_table_name(f"{gateway}.{table}")
    except Invalid as error:
        raise Invalid(str(error), reason="invalid_name") from error
    if name != TableName(gateway, table):
        raise Invalid(f"a table's name has a dot. got={table!r}", reason="invalid_name")
    return name


def tables_of(gateway: str, deltas: Iterable[RowDelta]) -> frozenset[TableName]:
    """The tables that some deltas write to."""
    return frozenset([table_name(gateway, name) for name in {delta.table for delta in deltas}])
