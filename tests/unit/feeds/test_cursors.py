"""Cursors carry their log's identity: one of another log, or of a part that was lost, never passes for ours."""

from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.admission import Dedup, Gate, Intake
from mainstem.doors.sync.http import SyncHttp
from mainstem.feeds.checkpoints import Checkpoints, HistoryTable
from mainstem.feeds.cursors import POSITION_BITS, Cursors, is_told_apart
from mainstem.feeds.pushes import Pushes
from mainstem.feeds.schemas import Schemas
from mainstem.feeds.seen import SeenDeltas
from mainstem.feeds.service import SyncService
from mainstem.feeds.shadows import Shadows
from mainstem.model.errors import Corrupt, Invalid
from mainstem.model.position import UNNAMED, Lineage, LogId, LogPosition, Span
from mainstem.runtime.clock import ManualClock
from mainstem.wire.checkpoints import DOCUMENT, VERSION, CheckpointMade
from mainstem.wire.sync import RowDelta, decode_response
from tests.harness.sync_ruled import NoTables
from tests.unit.feeds.test_feeds_pull import NAMESPACE, opened, put
from tests.unit.log.log_fixtures import event


def lineage(*spans: tuple[str, int]) -> Lineage:
    return Lineage(tuple(Span(LogId(log), LogPosition(first)) for log, first in spans))


def cursors(*spans: tuple[str, int]) -> Cursors:
    return Cursors(lambda: lineage(*spans))


BEFORE = cursors(("a", 1))
RESTORED = cursors(("a", 1), ("b", 101))
OTHER = cursors(("c", 1))
UPGRADED = cursors((UNNAMED, 1), ("a", 101))


@given(st.lists(st.integers(1, (1 << POSITION_BITS) - 1), min_size=2, max_size=2), st.integers(1, 10**6))
def test_cursors_come_back_and_grow(positions: list[int], renewed: int) -> None:
    ours = cursors(("a", 1), ("b", renewed), ("c", renewed + 10))
    low, high = sorted(LogPosition(position) for position in positions)
    assert ours.decode(ours.encode(low)) == low
    assert 0 < ours.encode(low) <= ours.encode(high) < 1 << 63
    assert (ours.encode(low) < ours.encode(high)) is (low < high)


def test_the_beginning_is_everybodys() -> None:
    for each in (BEFORE, RESTORED, OTHER, UPGRADED):
        assert each.encode(LogPosition(0)) == 0
        assert each.decode(0) == 0


def test_a_cursor_of_before_logs_had_names_can_be_read() -> None:
    assert Cursors().encode(LogPosition(41)) == 41
    assert Cursors().decode(41) == 41
    assert UPGRADED.decode(41) == 41
    assert UPGRADED.decode(100) == 100


@pytest.mark.parametrize(
    ("cursor", "ours"),
    [
        pytest.param(BEFORE.encode(LogPosition(101)), RESTORED, id="beyond what the backup had"),
        pytest.param(BEFORE.encode(LogPosition(50)), OTHER, id="of a log that was lost"),
        pytest.param(RESTORED.encode(LogPosition(150)), OTHER, id="of a second span of a lost log"),
        pytest.param(RESTORED.encode(LogPosition(150)), BEFORE, id="of a span that this copy does not have"),
        pytest.param(150, UPGRADED, id="without a name, beyond the end of the log without one"),
        pytest.param(50, OTHER, id="without a name, for a log that always had one"),
        pytest.param(1 << 63, BEFORE, id="none at all"),
    ],
)
def test_a_cursor_that_is_not_ours_expires(cursor: int, ours: Cursors) -> None:
    with pytest.raises(Invalid) as refused:
        ours.decode(cursor)
    assert refused.value.reason == "cursor_expired"


def test_a_cursor_of_what_the_backup_had_still_holds() -> None:
    assert RESTORED.decode(BEFORE.encode(LogPosition(100))) == 100


def test_logs_whose_cursors_could_be_confused_are_told() -> None:
    """Of 20,000 logs about five have the hash of one."""
    ours = LogId("0123456789abcdef")
    confused = [log for log in (LogId(f"{n:016x}") for n in range(20_000)) if not is_told_apart(ours, [log])]
    assert 0 < len(confused) < 20
    one = cursors((confused[0], 1))
    assert one.encode(LogPosition(5)) == cursors((ours, 1)).encode(LogPosition(5))
    assert is_told_apart(ours, [ours, UNNAMED])


def test_a_checkpoint_of_another_log_is_not_sent(tmp_path: Path) -> None:
    for position, log in [(50, "a"), (150, "a"), (7, "c")]:
        folder = tmp_path / "g" / f"{position:020d}"
        folder.mkdir(parents=True)
        made = CheckpointMade(namespace="g", position=position, rows=0, version=VERSION, log=log)
        (folder / DOCUMENT).write_bytes(msgspec.json.encode(made))
    newest = Checkpoints(tmp_path, NoTables(), lambda: LogPosition(200), RESTORED).newest("g")
    assert newest is not None and newest.position == 50
    lost = Checkpoints(tmp_path, NoTables(), lambda: LogPosition(200), OTHER).newest("g")
    assert lost is not None and lost.position == 7


class SomeTables:
    """Those of `bad` cannot be read."""

    async def histories(self, namespace: str) -> dict[str, HistoryTable]:
        if namespace == "bad":
            raise Corrupt("a property is not as it was written", place="mainstem.unlogged")
        return {"notes": HistoryTable(None, {}, {})}


async def test_a_gateway_whose_tables_are_broken_keeps_no_other_from_its_checkpoint(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, SomeTables(), lambda: LogPosition(200), RESTORED)
    for gateway in ("a", "bad", "z"):
        checkpoints.want(gateway)
    for _ in range(2):
        assert [order.namespace for order in await checkpoints.orders()] == ["a", "z"]
        checkpoints.want("bad")


async def test_the_door_sends_whoever_has_a_foreign_cursor_back_to_the_beginning(tmp_path: Path) -> None:
    """Without identities, position 2 of the lost log would be taken for ours, and two rows be skipped in silence."""
    clock = ManualClock(1_764_000_000_000)
    async with opened(tmp_path) as (feeds, tap, _):
        pushes = Pushes(Intake(Gate(Dedup(clock)), tap), feeds, Schemas(tmp_path / "schemas.json"), clock)
        checkpoints = Checkpoints(tmp_path / "checkpoints", NoTables(), lambda: feeds.newest, OTHER)
        shadows = Shadows(tmp_path / "ruled.json", feeds)
        schemas = Schemas(tmp_path / "schemas.json")
        service = SyncService(pushes, feeds, shadows, schemas, checkpoints, clock, cursors=OTHER)
        await put(tap, [event(1), event(2), event(3)])
        flusher: Any = None
        transport = httpx.ASGITransport(SyncHttp(service, flusher).serve)
        headers = {"accept": "application/x-protobuf"}
        async with httpx.AsyncClient(transport=transport, base_url="http://here", headers=headers) as client:
            foreign = BEFORE.encode(LogPosition(2))
            refused = await client.get(f"/sync/{NAMESPACE}/pull", params={"since": foreign})
            assert (refused.status_code, refused.json()["reason"]) == (410, "cursor_expired")
            first = await client.get(f"/sync/{NAMESPACE}/pull", params={"since": 0, "limit": 2})
            page = decode_response(first.content)
            assert page.has_more and page.server_hlc == OTHER.encode(LogPosition(2)) > 1 << POSITION_BITS
            rest = await client.get(f"/sync/{NAMESPACE}/pull", params={"since": page.server_hlc})
            assert [delta.row_id for delta in decode_response(rest.content).deltas] == ["key-3"]


async def test_the_index_of_deltas_is_made_again_for_another_log(tmp_path: Path) -> None:
    """It would call deltas known that this log never had, and itself complete up to where this log has yet to come."""
    delta = RowDelta(op=1, table="t", row_id="r", hlc=1, client_id="ada", delta_id="d")
    seen = SeenDeltas(tmp_path / "seen.db", BEFORE)
    seen.record("g", "ada", [delta])
    seen.advance(LogPosition(150))
    await seen.store()
    seen.close()
    for ours, stored, unseen in [(BEFORE, 150, []), (RESTORED, 0, [0]), (BEFORE, 0, [0])]:
        seen = SeenDeltas(tmp_path / "seen.db", ours)
        assert (seen.stored, await seen.unseen("g", "ada", [delta])) == (stored, unseen)
        seen.close()
