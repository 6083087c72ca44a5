"""Who may send which command to the Mongo door: one table of every command there is, tried cell by cell.

A command that is added and not entered here fails the first test.
"""

from pathlib import Path
from typing import Any

from bson.binary import Binary

from mainstem.admission import Principal, Role
from mainstem.doors.mongo import families
from mainstem.doors.mongo.calls import COMMANDS
from tests.unit.doors.mongo_world import World, opened

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "mongo.md"
UNAUTHORIZED = 13
OPEN, READER, WRITER, EVERYTHING = "open", "reader", "writer", "everything"
PRINCIPALS: dict[str, tuple[Principal | None, frozenset[str]]] = {
    "nobody": (None, frozenset({OPEN})),
    "client": (Principal(sub="cat", role=Role.CLIENT, namespaces=("hr",)), frozenset({OPEN})),
    "reader": (Principal(sub="rob", role=Role.READER, namespaces=("hr",)), frozenset({OPEN, READER})),
    "writer": (Principal(sub="ann", role=Role.WRITER, namespaces=("hr",)), frozenset({OPEN, READER, WRITER})),
    "admin of hr": (Principal(sub="eve", role=Role.ADMIN, namespaces=("hr",)), frozenset({OPEN, READER, WRITER})),
    "admin of a table": (
        Principal(sub="tab", role=Role.ADMIN, namespaces=None, tables=("pay",)),
        frozenset({OPEN, READER, WRITER}),
    ),
    "admin": (
        Principal(sub="root", role=Role.ADMIN, namespaces=None),
        frozenset({OPEN, READER, WRITER, EVERYTHING}),
    ),
}
LSID = {"id": Binary(bytes(16), 4)}
# The least that each command needs. `pay` is there, in the database `hr`.
TABLE: dict[str, dict[str, dict[str, Any]]] = {
    OPEN: {
        "hello": {}, "isMaster": {}, "ismaster": {}, "ping": {}, "buildInfo": {}, "buildinfo": {}, "logout": {},
        "saslStart": {"mechanism": "SCRAM-SHA-256", "payload": b""},
        "saslContinue": {"conversationId": 1, "payload": b""},
        "getParameter": {"getParameter": "*", "$db": "admin"}, "connectionStatus": {}, "listCommands": {},
        "whatsmyuri": {}, "atlasVersion": {}, "startSession": {},
    },
    READER: {
        "hostInfo": {"$db": "admin"}, "serverStatus": {}, "replSetGetStatus": {"$db": "admin"},
        "find": {}, "count": {}, "distinct": {"key": "a"}, "aggregate": {"pipeline": [], "cursor": {}},
        "explain": {"explain": {"find": "pay"}}, "listIndexes": {}, "listCollections": {},
        "listDatabases": {"$db": "admin"}, "collStats": {}, "collstats": {}, "dbStats": {}, "dbstats": {},
        "getMore": {"getMore": 7, "collection": "pay"}, "killCursors": {"cursors": [7]},
        "endSessions": {"endSessions": [LSID]}, "killSessions": {"killSessions": [LSID]},
        "refreshSessions": {"refreshSessions": [LSID]}, "commitTransaction": {"$db": "admin"},
        "abortTransaction": {"$db": "admin"},
    },
    WRITER: {
        "insert": {"documents": [{"a": 1}]}, "update": {"updates": [{"q": {"a": 0}, "u": {"$set": {"b": 1}}}]},
        "delete": {"deletes": [{"q": {"a": 0}, "limit": 1}]},
        "findAndModify": {"query": {"a": 0}, "remove": True}, "findandmodify": {"query": {"a": 0}, "remove": True},
        "createIndexes": {"indexes": [{"key": {"a": 1}, "name": "a_1"}]}, "dropIndexes": {"index": "*"},
        "deleteIndexes": {"index": "*"}, "create": {}, "collMod": {}, "drop": {},
        "renameCollection": {"renameCollection": "hr.pay", "to": "hr.pay", "$db": "admin"}, "dropDatabase": {},
    },
    EVERYTHING: {
        "getCmdLineOpts": {"$db": "admin"}, "currentOp": {"$db": "admin"}, "killOp": {"op": 99, "$db": "admin"},
        "getLog": {"getLog": "*", "$db": "admin"}, "fsync": {"$db": "admin"}, "usersInfo": {}, "createUser": {},
        "updateUser": {}, "dropUser": {}, "dropAllUsersFromDatabase": {}, "grantRolesToUser": {},
        "revokeRolesFromUser": {},
    },
}  # fmt: skip
# Of these a caller hears about its own alone, wherever they are asked: there is nothing to refuse.
OF_THE_CALLER = {
    "hostInfo", "serverStatus", "replSetGetStatus", "listCollections", "listDatabases", "dbStats", "dbstats", "getMore",
    "killCursors", "endSessions", "killSessions", "refreshSessions", "commitTransaction", "abortTransaction",
    # Every collection of another database is there for somebody else: to the caller it is empty.
    "dropDatabase",
}  # fmt: skip


def test_every_command_is_in_the_table() -> None:
    families.load()
    entered = [name for commands in TABLE.values() for name in commands]
    assert len(entered) == len(set(entered))
    assert set(COMMANDS) - set(entered) == set(), "a command that says nowhere who may send it"
    assert set(entered) - set(COMMANDS) == set(), "a command that is not there any more"


def test_the_guide_names_every_command_and_no_other() -> None:
    families.load()
    rows = GUIDE.read_text().split("\n## Commands\n", 1)[1].split("\n## ", 1)[0].splitlines()
    cells = [row.split("|")[1:3] for row in rows if row.startswith("| ")][1:]
    told = {name.strip() for names, state in cells if state.strip() != "not yet" for name in names.split(",")}
    # Some have their name in small letters as well.
    assert told | {name.lower() for name in told} >= set(COMMANDS)
    assert told <= set(COMMANDS)


async def code(world: World, name: str, more: dict[str, Any], principal: Principal | None, database: str) -> int:
    reply = await world.run({name: "pay", "$db": database, **more}, principal=principal)
    return int(reply.get("code", 0))


async def test_every_cell_of_the_table(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        for name, (principal, may) in PRINCIPALS.items():
            for asks_for, commands in TABLE.items():
                for command, more in commands.items():
                    await world.run({"insert": "pay", "documents": [{"a": 0}], "$db": "hr"})
                    found = await code(world, command, more, principal, "hr")
                    assert (found == UNAUTHORIZED) == (asks_for not in may), (name, command, found)
                    # A fault of ours would have the code 1.
                    assert found != 1, (name, command)


async def test_every_cell_in_a_database_of_others(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await world.run({"insert": "pay", "documents": [{"_id": 1}], "$db": "other"})
        await world.run({"insert": "secret", "documents": [{"_id": 1}], "$db": "hr"})
        for name in ("reader", "writer", "admin of hr"):
            principal = PRINCIPALS[name][0]
            for commands in (TABLE[READER], TABLE[WRITER]):
                for command, more in commands.items():
                    asked = more | ({"renameCollection": "other.pay"} if command == "renameCollection" else {})
                    found = await code(world, command, asked, principal, more.get("$db", "other"))
                    assert found == UNAUTHORIZED or command in OF_THE_CALLER, (name, command, found)
        table_admin = PRINCIPALS["admin of a table"][0]
        assert await code(world, "find", {"find": "secret"}, table_admin, "hr") == UNAUTHORIZED
        join = {"$lookup": {"from": "secret", "localField": "a", "foreignField": "a", "as": "x"}}
        for stages in ([join], [{"$unionWith": "secret"}], [{"$out": "secret"}], [{"$merge": {"into": "secret"}}]):
            asked = {"pipeline": stages, "cursor": {}}
            assert await code(world, "aggregate", asked, table_admin, "hr") == UNAUTHORIZED, stages
        for database, collection in (("other", "pay"), ("hr", "secret")):
            reply = await world.run({"count": collection, "$db": database})
            assert reply["n"] == 1, (database, collection)


async def test_connections_of_others_are_for_an_admin_of_everything(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        for name, (principal, may) in PRINCIPALS.items():
            asked = {"aggregate": 1, "pipeline": [{"$currentOp": {}}], "cursor": {}, "$db": "admin"}
            reply = await world.run(asked, principal=principal)
            assert (reply.get("code") == UNAUTHORIZED) == (EVERYTHING not in may), name


async def test_a_session_is_its_users(tmp_path: Path) -> None:
    """Whoever learns the number of a session neither goes on with its transaction nor ends it."""
    ann, eve = PRINCIPALS["writer"][0], PRINCIPALS["admin of hr"][0]
    begun = {"lsid": LSID, "txnNumber": 1, "autocommit": False}
    async with opened(tmp_path) as world:
        written = {"insert": "pay", "documents": [{"_id": 1}], "$db": "hr", "startTransaction": True, **begun}
        assert (await world.run(written, principal=ann))["ok"] == 1
        read = {"find": "pay", "$db": "hr", **begun}
        assert (await world.run(read, principal=eve)).get("code") == 251
        assert (await world.run({"killSessions": [LSID]}, principal=eve))["ok"] == 1
        assert (await world.run({"abortTransaction": 1, "$db": "admin", **begun}, principal=eve)).get("code") == 251
        assert (await world.run({"commitTransaction": 1, "$db": "admin", **begun}, principal=ann))["ok"] == 1
        assert (await world.run({"count": "pay", "$db": "hr"}, principal=ann))["n"] == 1


async def test_a_cursor_is_its_users(tmp_path: Path) -> None:
    ann, eve = PRINCIPALS["writer"][0], PRINCIPALS["admin of hr"][0]
    async with opened(tmp_path) as world:
        await world.run({"insert": "pay", "documents": [{"_id": n} for n in range(9)], "$db": "hr"})
        reply = await world.run({"find": "pay", "batchSize": 2, "$db": "hr"}, principal=ann)
        more = {"getMore": reply["cursor"]["id"], "collection": "pay", "$db": "hr"}
        assert (await world.run(more, principal=eve))["code"] == UNAUTHORIZED
        kill = {"killCursors": "pay", "cursors": [reply["cursor"]["id"]], "$db": "hr"}
        assert (await world.run(kill, principal=eve))["cursorsKilled"] == []
        assert len((await world.run(more, principal=ann))["cursor"]["nextBatch"]) == 7
