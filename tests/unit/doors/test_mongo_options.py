"""Options that would change a result are kept to or refused by name; none is ignored."""

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from bson.int64 import Int64
from bson.timestamp import Timestamp

from mainstem.admission import Principal, Role
from mainstem.admission.scram import derive, to_text
from mainstem.admission.users import Users, UserSettings
from mainstem.doors.mongo.ttl import delete_expired
from tests.unit.doors.mongo_world import opened

SNAPSHOT = {"level": "snapshot"}


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ({"find": "c", "readConcern": SNAPSHOT}, 72),
        ({"find": "c", "readConcern": {"level": "local", "atClusterTime": Timestamp(1, 1)}}, 40415),
        ({"find": "c", "readConcern": 5}, 14),
        ({"find": "c", "apiVersion": "2"}, 322),
        ({"find": "c", "hint": "nope_1"}, 2),
        ({"find": "c", "collation": {"locale": "de"}}, 238),
        ({"find": "c", "tailable": True}, 238),
        ({"find": "c", "unheardOf": 1}, 40415),
        ({"count": "c", "hint": "nope_1"}, 2),
        ({"distinct": "c", "key": "a", "hint": "nope_1"}, 2),
        ({"aggregate": "c", "pipeline": [], "cursor": {}, "hint": "nope_1"}, 2),
        ({"aggregate": "c", "pipeline": [{"$group": {"_id": 1, "n": {"$sum": 1}}}], "cursor": {}, "hint": "nope_1"}, 2),
        ({"insert": "c", "documents": [{}], "writeConcern": {"w": 2}}, 100),
        ({"insert": "c", "documents": [{}], "writeConcern": {"w": "elsewhere"}}, 79),
        ({"insert": "c", "documents": [{}], "writeConcern": {"unheardOf": 1}}, 40415),
        ({"create": "new", "capped": True, "size": 1}, 238),
        ({"create": "new", "viewOn": "c", "pipeline": []}, 238),
        ({"create": "new", "expireAfterSeconds": 5}, 238),
        ({"create": "new", "validationAction": "errorAndLog"}, 238),
        ({"create": "new", "validationLevel": "moderate"}, 238),
        ({"usersInfo": 1, "showCredentials": True}, 238),
        ({"insert": "c", "documents": [{}], "let": {"a": 1}}, 40415),
        ({"mapReduce": "c"}, 59),
    ],
)
async def test_what_cannot_be_kept_to_is_refused(tmp_path: Path, command: dict[str, Any], code: int) -> None:
    async with opened(tmp_path) as world:
        await world.run({"insert": "c", "documents": [{"_id": 1, "a": 1}]})
        reply = await world.run(command)
        assert (reply["ok"], reply["code"]) == (0.0, code), reply
        assert (await world.run({"count": "c"}))["n"] == 1


@pytest.mark.parametrize("option", [{"c": {"x": 1}}, {"upsertSupplied": True}, {"unheardOf": 1}])
async def test_statements_with_unknown_options_change_nothing(tmp_path: Path, option: dict[str, Any]) -> None:
    async with opened(tmp_path) as world:
        await world.run({"insert": "c", "documents": [{"_id": 1}]})
        statement = {"q": {}, "u": {"$set": {"a": 1}}, **option}
        reply = await world.run({"update": "c", "updates": [statement]})
        assert (reply["n"], reply["writeErrors"][0]["code"]) == (0, 40415)
        assert await world.documents_of("c") == [{"_id": 1}]


async def test_a_ttl_index_gets_another_time(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await world.run({"insert": "c", "documents": [{"_id": 1, "at": dt.datetime(2020, 1, 1)}]})
        ttl = {"key": {"at": 1}, "name": "at_1", "expireAfterSeconds": 1 << 30}
        both = {"key": {"a": 1, "b": 1}, "name": "both"}
        await world.run({"createIndexes": "c", "indexes": [ttl, both]})
        for index, code in (
            ({"name": "at_1"}, 72),
            ({"name": "nope", "expireAfterSeconds": 1}, 27),
            ({"name": "at_1", "hidden": True}, 238),
            ({"name": "at_1", "expireAfterSeconds": -1}, 67),
            ({"keyPattern": {"a": 1, "b": 1}, "expireAfterSeconds": 1}, 67),
        ):
            assert (await world.run({"collMod": "c", "index": index}))["code"] == code, index
        assert await delete_expired(world.documents) == 0
        changed = await world.run({"collMod": "c", "index": {"keyPattern": {"at": 1}, "expireAfterSeconds": 60}})
        assert (changed["expireAfterSeconds_old"], changed["expireAfterSeconds_new"]) == (1 << 30, 60)
        listed = (await world.run({"listIndexes": "c"}))["cursor"]["firstBatch"]
        assert [each.get("expireAfterSeconds") for each in listed] == [None, 60, None]
        assert await delete_expired(world.documents) == 1
    async with opened(tmp_path) as world:
        listed = (await world.run({"listIndexes": "c"}))["cursor"]["firstBatch"]
        assert [each.get("expireAfterSeconds") for each in listed] == [None, 60, None]


async def test_users_are_those_of_the_configuration(tmp_path: Path) -> None:
    credentials = (to_text(derive("secret", iterations=4096)),)
    async with opened(tmp_path) as world:
        world.door.users = Users(
            {
                "ann": UserSettings(credentials, Role.WRITER, ("shop", "log")),
                "ben": UserSettings(credentials, Role.READER),
                "eve": UserSettings(credentials, Role.ADMIN),
            }
        )
        found = (await world.run({"usersInfo": 1}))["users"]
        assert {each["_id"]: [(role["role"], role["db"]) for role in each["roles"]] for each in found} == {
            "admin.ann": [("readWrite", "shop"), ("readWrite", "log")],
            "admin.ben": [("readAnyDatabase", "admin")],
            "admin.eve": [("root", "admin")],
        }
        for wanted in ("ben", {"user": "ben", "db": "admin"}, [{"user": "ben", "db": "admin"}, "nobody"]):
            assert [each["user"] for each in (await world.run({"usersInfo": wanted}))["users"]] == ["ben"]


async def test_nobody_ends_the_cursor_of_another(tmp_path: Path) -> None:
    ann, ben = (Principal(sub=sub, role=Role.READER, namespaces=None) for sub in ("ann", "ben"))
    async with opened(tmp_path) as world:
        await world.run({"insert": "c", "documents": [{"_id": each} for each in range(5)]})
        cursor = (await world.run({"find": "c", "batchSize": 2}, principal=ann))["cursor"]["id"]
        kill = {"killCursors": "c", "cursors": [cursor]}
        assert (await world.run(kill, principal=ben))["cursorsNotFound"] == [Int64(cursor)]
        more = await world.run({"getMore": cursor, "collection": "c", "batchSize": 1}, principal=ann)
        assert more["cursor"]["nextBatch"] == [{"_id": 2}]
        assert (await world.run(kill, principal=ann))["cursorsKilled"] == [Int64(cursor)]
        assert (await world.run({"getMore": cursor, "collection": "c"}, principal=ann))["code"] == 43
