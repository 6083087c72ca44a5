"""What is durable of groups: their members and their offsets. A function of the log, kept by the log's companion.

Four tables of the topics' namespace, one change per entry:

    __groups                a group: its generation or epoch, and its members or their targets
    __members               a member of a group of the newer protocol
    __offsets               how far a group is in a partition
    __transaction_offsets   the same, if the producer's transaction commits

Nothing here decides anything. `Coordinator` makes its groups of it at the start, and reads offsets from it always.
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from mainstem.feeds.groups.entries import ConsumerEntry, Entry, EpochEntry, GoneEntry, GroupEntry, Offset
from mainstem.feeds.groups.modern_values import LEAVES
from mainstem.model.batch import BatchHeader
from mainstem.model.change import Change, Operation, SourceId
from mainstem.model.errors import Corrupt

GROUPS, MEMBERS, OFFSETS, PENDING = "__groups", "__members", "__offsets", "__transaction_offsets"
_VERSION = 1

# A partition of a topic, by the topic's name.
Place = tuple[str, int]


class Kept(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What is known of a group beside its offsets, and since when."""

    entry: GroupEntry | EpochEntry
    at_ms: int


class _Stored(msgspec.Struct, array_like=True):
    version: int
    groups: list[Kept]
    members: list[ConsumerEntry]
    offsets: list[Offset]
    pending: list[tuple[int, Offset]]


_to_json = msgspec.json.Encoder().encode
_group = msgspec.json.Decoder(GroupEntry | EpochEntry)
_member = msgspec.json.Decoder(ConsumerEntry)
_stored = msgspec.msgpack.Decoder(_Stored)
_member_key = msgspec.json.Decoder(tuple[str, str])
_offset_key = msgspec.json.Decoder(tuple[str, str, int])
_pending_key = msgspec.json.Decoder(tuple[int, str, str, int])


class GroupsSection:
    """All groups and offsets, as far as they are durable. Belongs to the event loop."""

    name = "groups"
    tables = frozenset((GROUPS, MEMBERS, OFFSETS, PENDING))

    def __init__(self) -> None:
        self.groups: dict[str, Kept] = {}
        self.members: dict[str, dict[str, ConsumerEntry]] = {}
        self.offsets: dict[str, dict[Place, Offset]] = {}
        # By producer, then by group and place.
        self.pending: dict[int, dict[tuple[str, Place], Offset]] = {}
        self.offset_count = 0
        # The notes that offsets have, in bytes.
        self.note_bytes = 0
        # Hear of a group's offsets that changed.
        self.on_offsets: Callable[[str], None] = lambda group: None

    def apply(self, change: Change, header: BatchHeader) -> None:
        """A change is durable."""
        columns = None if change.operation is Operation.DELETE else change.columns or {}
        try:
            if change.table == GROUPS:
                self._apply_group(change.key, columns, header.arrival_ms)
            elif change.table == MEMBERS:
                self._apply_member(change.key, columns)
            elif change.table == OFFSETS:
                self._apply_offset(change.key, columns)
            elif change.table == PENDING:
                self._apply_pending(change.key, columns)
        except (msgspec.MsgspecError, KeyError) as error:
            message = f"an entry of a group cannot be read. table={change.table} got={error}"
            raise Corrupt(message, place=f"position {header.first}") from error

    def _apply_group(self, group: str, columns: dict[str, Any] | None, at_ms: int) -> None:
        if columns is None:
            self.groups.pop(group, None)
            self.members.pop(group, None)
            return
        self.groups[group] = Kept(_group.decode(columns["entry"]), at_ms)
        if isinstance(self.groups[group].entry, GroupEntry):
            self.members.pop(group, None)

    def _apply_member(self, key: str, columns: dict[str, Any] | None) -> None:
        group, member = _member_key.decode(key)
        if columns is None:
            self.members.get(group, {}).pop(member, None)
            return
        self.members.setdefault(group, {})[member] = _member.decode(columns["entry"])

    def _apply_offset(self, key: str, columns: dict[str, Any] | None) -> None:
        group, topic, partition = _offset_key.decode(key)
        places = self.offsets.setdefault(group, {})
        self._put(places, (topic, partition), columns)
        if not places:
            del self.offsets[group]
        self.on_offsets(group)

    def _apply_pending(self, key: str, columns: dict[str, Any] | None) -> None:
        producer, group, topic, partition = _pending_key.decode(key)
        places = self.pending.setdefault(producer, {})
        self._put(places, (group, (topic, partition)), None if columns is None else columns["offset"])
        if not places:
            del self.pending[producer]

    def _put(self, places: dict[Any, Offset], place: Any, columns: Any) -> None:
        """Keep an offset, or no longer, and count what that takes."""
        offset = None if columns is None else msgspec.convert(columns, Offset)
        had = places.pop(place, None)
        if offset is not None:
            places[place] = offset
        self.offset_count += (offset is not None) - (had is not None)
        self.note_bytes += note_bytes(offset) - note_bytes(had)

    def dump(self) -> bytes:
        """Everything applied so far."""
        stored = _Stored(
            _VERSION,
            list(self.groups.values()),
            [each for members in self.members.values() for each in members.values()],
            [each for places in self.offsets.values() for each in places.values()],
            [(producer, each) for producer, places in self.pending.items() for each in places.values()],
        )
        return msgspec.msgpack.encode(stored)

    def load(self, data: bytes) -> None:
        """Become what `dump` gave."""
        try:
            stored = _stored.decode(data)
        except msgspec.DecodeError as error:
            raise Corrupt(f"state of groups cannot be read. got={error}", place="companion") from error
        if stored.version != _VERSION:
            raise Corrupt(f"state of groups. expected=version {_VERSION} got={stored.version}", place="companion")
        self.groups = {kept.entry.group: kept for kept in stored.groups}
        self.members = {}
        for member in stored.members:
            self.members.setdefault(member.group, {})[member.member_id] = member
        self.offsets = {}
        for each in stored.offsets:
            self.offsets.setdefault(each.group, {})[each.topic, each.partition] = each
        self.pending = {}
        for producer, each in stored.pending:
            self.pending.setdefault(producer, {})[each.group, (each.topic, each.partition)] = each
        every = [*stored.offsets, *(each for _, each in stored.pending)]
        self.offset_count = len(every)
        self.note_bytes = sum(map(note_bytes, every))


def note_bytes(offset: Offset | None) -> int:
    """The bytes of the note that an offset has."""
    return 0 if offset is None or not offset.metadata else len(offset.metadata.encode())


class Writer:
    """Entries as changes of their tables."""

    def __init__(self, namespace: str, source: SourceId) -> None:
        self._namespace = namespace
        self._source = source

    def entries(self, entries: Iterable[Entry]) -> list[Change]:
        """Of groups and members. Of several about the same only the last counts."""
        latest: dict[tuple[str, str], Change] = {}
        for entry in entries:
            change = self._entry(entry)
            latest.pop((change.table, change.key), None)
            latest[change.table, change.key] = change
        return list(latest.values())

    def _entry(self, entry: Entry) -> Change:
        match entry:
            case GoneEntry(group=group):
                return self._change(GROUPS, group, None)
            case GroupEntry():
                columns: dict[str, Any] = {
                    "group": entry.group,
                    "protocol": "classic",
                    "generation": entry.generation,
                    "members": len(entry.members),
                    "entry": _to_json(entry).decode(),
                }
                return self._change(GROUPS, entry.group, columns)
            case EpochEntry():
                columns = {
                    "group": entry.group,
                    "protocol": "consumer",
                    "generation": entry.epoch,
                    "members": len(entry.target),
                    "entry": _to_json(entry).decode(),
                }
                return self._change(GROUPS, entry.group, columns)
            case ConsumerEntry():
                key = _to_json([entry.group, entry.member_id]).decode()
                if entry.epoch == LEAVES:
                    return self._change(MEMBERS, key, None)
                columns = {"group": entry.group, "member": entry.member_id, "entry": _to_json(entry).decode()}
                return self._change(MEMBERS, key, columns)

    def offset(self, offset: Offset) -> Change:
        """An offset that counts."""
        columns = {name: getattr(offset, name) for name in Offset.__struct_fields__}
        return self._change(OFFSETS, _offset_text(offset), columns)

    def no_offset(self, group: str, place: Place) -> Change:
        """An offset that is no more."""
        return self._change(OFFSETS, _to_json([group, *place]).decode(), None)

    def pending(self, producer: int, offset: Offset) -> Change:
        """An offset that will count if the producer's transaction commits."""
        columns = {"producer_id": producer, "offset": {n: getattr(offset, n) for n in Offset.__struct_fields__}}
        return self._change(PENDING, _pending_text(producer, offset), columns)

    def settled(self, producer: int, offsets: Iterable[Offset], *, is_committed: bool) -> list[Change]:
        """A producer's transaction ended: its offsets count from here on, or never."""
        changes = []
        for offset in offsets:
            changes.append(self._change(PENDING, _pending_text(producer, offset), None))
            if is_committed:
                changes.append(self.offset(offset))
        return changes

    def _change(self, table: str, key: str, columns: dict[str, Any] | None) -> Change:
        return Change(
            namespace=self._namespace,
            table=table,
            key=key,
            operation=Operation.DELETE if columns is None else Operation.UPDATE,
            columns=columns,
            source=self._source,
            # The journal says which.
            batch_sequence=0,
        )


def _offset_text(offset: Offset) -> str:
    return _to_json([offset.group, offset.topic, offset.partition]).decode()


def _pending_text(producer: int, offset: Offset) -> str:
    return _to_json([producer, offset.group, offset.topic, offset.partition]).decode()
