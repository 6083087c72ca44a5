"""insert, update, delete: each statement against what is there, all of a command in one batch of the log."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from mainstem.admission import Role
from mainstem.documents import (
    Node,
    apply_update,
    difference,
    matched_offset,
    matcher,
    parse_update,
    upsert_document,
)
from mainstem.doors.mongo.calls import Call, Reply, command
from mainstem.doors.mongo.commands.hello import BATCH_MAX
from mainstem.doors.mongo.commands.reads import check_collation, check_sort
from mainstem.doors.mongo.cursors import Pace, every
from mainstem.doors.mongo.errors import CommandFailed, failure, unknown_field, wrong_type
from mainstem.feeds.documents.access import choose
from mainstem.feeds.documents.checks import encode_checked, with_id
from mainstem.feeds.documents.spilling import Found
from mainstem.feeds.documents.writing import Change, Retry, Unit
from mainstem.model.errors import Invalid, MainstemError
from mainstem.wire.mongo.batches import Kind
from mainstem.wire.mongo.frames import decode_document, encode_document

# Documents, and bytes of them, that are inserted at once.
AHEAD_MIN, AHEAD_MAX = 4, 512
AHEAD_BYTES_MAX = 4 * 1024 * 1024
_ONE = {"n": 1}
_EVERY_WRITE = ("ordered", "bypassDocumentValidation", "stmtId", "stmtIds")


def unit_of(call: Call) -> Unit:
    """Where the command writes to: its transaction, or a batch of its own."""
    number = call.body.get("txnNumber")
    unit = call.unit(None if number is None or call.session is None else Retry(call.session, int(number)))
    unit.bypasses_validation = call.flag("bypassDocumentValidation")
    return unit


def answered(call: Call, unit: Unit) -> dict[int, bytes]:
    """By statement, what the command was answered before. Refuses one from before the session's newest."""
    if unit.retry is None or unit.is_transaction:
        return {}
    session = call.door.sessions.get(unit.retry.session)
    if unit.retry.number < session.number:
        raise CommandFailed(225, f"Retryable write with txnNumber {unit.retry.number} is too old for its session")
    session.number = unit.retry.number
    return call.door.documents.state.answered(unit.retry.session, unit.retry.number)


def _note(unit: Unit, numbers: Iterable[int], answer: dict[str, Any] = _ONE) -> None:
    """Keep what statements are answered, for a retry of theirs."""
    if unit.retry is not None and not unit.is_transaction:
        unit.draft.answers |= dict.fromkeys(numbers, b"" if answer == _ONE else encode_document(answer))


async def run_statements(
    call: Call,
    unit: Unit,
    statements: list[Any],
    run: Callable[[int, Any], Awaitable[dict[str, Any]]],
    ahead: Callable[[Sequence[Any]], int] | None = None,
) -> tuple[list[tuple[int, dict[str, Any]]], list[dict[str, Any]]]:
    """Run one statement after another; what each was answered, and the errors by index.

    A statement that was answered before, in an attempt whose answer was lost, is answered the same again. `ahead` does
    several at once, each of which changes one document, and says how many.
    """
    count = len(statements)
    if not 1 <= count <= BATCH_MAX:
        raise CommandFailed(16, f"Write batch sizes must be between 1 and {BATCH_MAX}. Got {count} operations.")
    ordered = call.flag("ordered", True)
    numbers = call.body.get("stmtIds")
    first = call.number("stmtId", 0) or 0
    known = answered(call, unit)
    results: list[tuple[int, dict[str, Any]]] = []
    errors: list[dict[str, Any]] = []
    through, glance = 0, AHEAD_MAX if ahead is not None and not known else 0
    pace = Pace()
    for index, statement in enumerate(statements):
        if index < through:
            continue
        await pace.give_way()
        number = numbers[index] if numbers else first + index
        if ahead is not None and glance:
            done = ahead(statements[index : index + glance])
            # Where many are refused, fewer are looked at: each look ahead is lost beyond the first of those.
            glance = min(AHEAD_MAX, glance * 2) if done == glance else max(AHEAD_MIN, done)
            through = index + done
            results += [(at, _ONE) for at in range(index, through)]
            _note(unit, numbers[index:through] if numbers else range(number, number + done))
            if unit.draft.is_full:
                await unit.flush()
            if done:
                continue
        if number in known:
            results.append((index, decode_document(known[number]) if known[number] else {"n": 1}))
            continue
        try:
            answer = await run(index, statement)
            _note(unit, [number], answer)
            results.append((index, answer))
        except MainstemError as error:
            failed = failure(error)
            if unit.is_transaction or failed.labels:
                raise failed from error
            errors.append(failed.write_error(index))
            if ordered:
                break
        if unit.draft.is_full and not unit.is_transaction:
            await unit.flush()
    if not unit.is_transaction:
        await unit.flush()
    return results, errors


def _reply(n: int, errors: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    reply: dict[str, Any] = {"n": n, **more}
    if errors:
        reply["writeErrors"] = errors
    return reply


@command("insert", "documents", *_EVERY_WRITE, role=Role.WRITER, in_transaction=True, writes=True)
async def insert(call: Call) -> Reply:
    """New documents."""
    name = call.collection()
    call.may_write(name)
    unit = unit_of(call)
    await call.door.documents.open(call.database, name)

    async def run(_: int, document: Any) -> dict[str, Any]:
        raw = document if isinstance(document, bytes) else encode_document(_document(document))
        values = decode_document(raw)
        raw, values = with_id(raw, values, unit.writer.new_id)

        def action() -> None:
            unit.insert(unit.ensure_collection(call.database, name), raw, values)

        await unit.attempt(action)
        return {"n": 1}

    def ahead(documents: Sequence[Any]) -> int:
        collection = unit.find_collection(call.database, name)
        return 0 if collection is None else unit.insert_free(collection, _readable(documents, unit))

    results, errors = await run_statements(call, unit, call.documents("documents"), run, ahead)
    return _reply(len(results), errors)


def _readable(documents: Sequence[Any], unit: Unit) -> list[tuple[bytes, dict[str, Any]]]:
    """Documents from the first one on, up to one that is refused, or so many bytes."""
    found: list[tuple[bytes, dict[str, Any]]] = []
    size = 0
    try:
        for document in documents:
            if size > AHEAD_BYTES_MAX:
                break
            raw = document if isinstance(document, bytes) else encode_document(_document(document))
            found.append(with_id(raw, decode_document(raw), unit.writer.new_id))
            size += len(raw)
    except (Invalid, CommandFailed):
        # The one that is refused is looked at by itself.
        pass
    return found


def _document(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise wrong_type("insert", "documents", value, "object")
    return value


_UPDATE = frozenset({"q", "u", "upsert", "multi", "collation", "arrayFilters", "hint", "sort", "sampleId"})


@command("update", "updates", "let", *_EVERY_WRITE, role=Role.WRITER, in_transaction=True, writes=True)
async def update(call: Call) -> Reply:
    """Changed documents."""
    name = call.collection()
    call.may_write(name)
    unit = unit_of(call)
    await call.door.documents.open(call.database, name)

    async def run(_: int, source: Any) -> dict[str, Any]:
        statement = _statement(call, source, _UPDATE)
        multi = bool(statement.get("multi"))
        if multi and unit.retry is not None and not unit.is_transaction:
            raise CommandFailed(72, "Cannot use retryable writes with multi: true updates")
        return await run_update(call, unit, name, statement, multi=multi)

    results, errors = await run_statements(call, unit, call.documents("updates"), run)
    upserted = [{"index": index, "_id": answer["upserted"]} for index, answer in results if "upserted" in answer]
    more = {"upserted": upserted} if upserted else {}
    return _reply(
        sum(answer.get("n", 0) for _, answer in results),
        errors,
        nModified=sum(answer.get("nModified", 0) for _, answer in results),
        **more,
    )


def _statement(call: Call, source: Any, fields: frozenset[str]) -> Mapping[str, Any]:
    statement = decode_document(source) if isinstance(source, bytes) else source
    if not isinstance(statement, Mapping):
        raise wrong_type(call.name, "statements", statement, "object")
    for each in statement:
        if each not in fields:
            raise unknown_field(f"{call.name}.{call.name}s", each)
    if not isinstance(statement.get("q"), Mapping):
        raise CommandFailed(40414, f"BSON field '{call.name}.{call.name}s.q' is missing but a required field")
    check_collation(statement.get("collation"))
    return statement


async def run_update(call: Call, unit: Unit, name: str, statement: Mapping[str, Any], *, multi: bool) -> dict[str, Any]:
    """One statement of an update."""
    node = call.parsed(statement["q"])
    passes = matcher(node)
    sort = check_sort(statement.get("sort") or {})
    compute = changer(call, node, statement.get("u"), statement.get("arrayFilters") or (), multi=multi)
    collection = unit.find_collection(call.database, name)
    matched = modified = 0
    if collection is not None:
        found_all = unit.view.query(collection, node, sort=sort, hint=statement.get("hint"))
        if multi and choose(collection, node, sort, statement.get("hint")).index is not None:
            # A document that moves within the index must not be found twice: the ids first, then the documents.
            keys = [each.key async for each in every(found_all, call.deadline_s)]
            found_all = iter([Found(key, b"", None) for key in keys])
        async for found in every(found_all, call.deadline_s):
            changed = await unit.attempt(lambda found=found: unit.change(collection, found, passes, compute))  # type: ignore[misc]
            if changed is None:
                continue
            matched += 1
            modified += changed[1] is not None
            if not multi:
                break
            if unit.draft.is_full and not unit.is_transaction:
                await unit.flush()
    if matched or not statement.get("upsert"):
        return {"n": matched, "nModified": modified}
    values = await upsert(call, unit, name, node, statement)
    return {"n": 1, "nModified": 0, "upserted": values["_id"]}


def changer(
    call: Call, node: Node, update: Any, array_filters: Any, *, multi: bool
) -> Callable[[dict[str, Any]], Change | None]:
    """What an update makes of a document; None where it leaves it as it is."""
    is_replacement = isinstance(update, Mapping) and not any(key.startswith("$") for key in update)
    if update is None:
        raise CommandFailed(40414, "BSON field 'update.updates.u' is missing but a required field")
    if multi and is_replacement:
        raise CommandFailed(9, "multi update is not supported for replacement-style update")
    now_ms = call.door.clock.now_ms()
    has_position = not is_replacement and isinstance(update, Mapping) and ".$" in str(update)
    scope = call.scope()
    parsed = parse_update(update, array_filters, frozenset(scope))

    def compute(values: dict[str, Any]) -> Change | None:
        offset = matched_offset(node, values) if has_position else None
        updated = apply_update(parsed, values, now_ms=now_ms, offset=offset, scope=scope)
        if not updated.modified:
            return None
        document = encode_checked(updated.document)
        if is_replacement:
            return Change(document, updated.document, Kind.REPLACE, None)
        described = difference(values, updated.document).description()
        return Change(document, updated.document, Kind.UPDATE, encode_document(described))

    return compute


async def upsert(call: Call, unit: Unit, name: str, node: Node, statement: Mapping[str, Any]) -> dict[str, Any]:
    """The document that an update makes where none matched."""
    now_ms = call.door.clock.now_ms()
    document = upsert_document(
        node,
        statement["u"],
        now_ms=now_ms,
        new_id=unit.writer.new_id(),
        array_filters=statement.get("arrayFilters") or (),
        scope=call.scope(),
    )
    raw, values = with_id(encode_checked(document), document, unit.writer.new_id)

    def action() -> None:
        unit.insert(unit.ensure_collection(call.database, name), raw, values)

    await unit.attempt(action)
    return values


@command("delete", "deletes", "let", *_EVERY_WRITE, role=Role.WRITER, in_transaction=True, writes=True)
async def delete(call: Call) -> Reply:
    """Documents that go."""
    name = call.collection()
    call.may_write(name)
    unit = unit_of(call)
    await call.door.documents.open(call.database, name)

    async def run(_: int, source: Any) -> dict[str, Any]:
        statement = _statement(call, source, frozenset({"q", "limit", "collation", "hint"}))
        limit = statement.get("limit")
        if limit not in (0, 1):
            raise CommandFailed(9, f"The limit field in delete objects must be 0 or 1. Got {limit}")
        if not limit and unit.retry is not None and not unit.is_transaction:
            raise CommandFailed(72, "Cannot use retryable writes with limit=0")
        node = call.parsed(statement["q"])
        passes = matcher(node)
        collection = unit.find_collection(call.database, name)
        deleted = 0
        if collection is not None:
            found_all = unit.view.query(collection, node, hint=statement.get("hint"))
            async for found in every(found_all, call.deadline_s):
                gone = await unit.attempt(lambda found=found: unit.remove(collection, found, passes))  # type: ignore[misc]
                deleted += gone is not None
                if limit and deleted:
                    break
                if unit.draft.is_full and not unit.is_transaction:
                    await unit.flush()
        return {"n": deleted}

    results, errors = await run_statements(call, unit, call.documents("deletes"), run)
    return _reply(sum(answer.get("n", 0) for _, answer in results), errors)
