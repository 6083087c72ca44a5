"""Users that commands make: what roles amount to, what is refused by name, and what lasts."""

import asyncio
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mainstem.admission import Principal, Role, Users, UserSettings
from mainstem.admission.auth import Unauthenticated
from mainstem.admission.scram import Mechanism, derive, to_text
from mainstem.doors.mongo.connection import Connection
from mainstem.model.errors import Corrupt
from mainstem.wire.mongo.frames import Request
from tests.unit.doors.mongo_world import World, opened

DECLARED = {"root": UserSettings((to_text(derive("secret", iterations=4096)),), Role.ADMIN)}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with opened(tmp_path) as world:
        world.door.users = Users(DECLARED, tmp_path / "users.json")
        yield world


async def make(world: World, name: str, roles: list[Any], **more: Any) -> dict[str, Any]:
    return await world.run({"createUser": name, "pwd": "secret", "roles": roles, **more})


async def told(world: World, wanted: Any) -> list[dict[str, Any]]:
    return list((await world.run({"usersInfo": wanted}))["users"])


@pytest.mark.parametrize(
    ("roles", "role", "namespaces"),
    [
        (["read"], Role.READER, ("db",)),
        (["readWrite", {"role": "read", "db": "db"}], Role.WRITER, ("db",)),
        ([{"role": "dbOwner", "db": "a"}, {"role": "readWrite", "db": "b"}], Role.WRITER, ("a", "b")),
        ([{"role": "readAnyDatabase", "db": "admin"}, "read"], Role.READER, None),
        ([{"role": "readWriteAnyDatabase", "db": "admin"}, "read"], Role.WRITER, None),
        ([{"role": "root", "db": "admin"}, "read"], Role.ADMIN, None),
        ([], Role.CLIENT, ()),
    ],
)
async def test_roles_become_one_role_and_databases(
    world: World, roles: list[Any], role: Role, namespaces: tuple[str, ...] | None
) -> None:
    assert (await make(world, "ann", roles))["ok"] == 1
    principal = await world.door.users.check("ann", "secret")
    assert (principal.role, principal.namespaces) == (role, namespaces)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ({"createUser": "ann", "pwd": "x", "roles": []}, 51003),
        ({"createUser": "ann", "pwd": "x", "roles": [], "$db": "other"}, 51003),
        ({"createUser": "root", "pwd": "x", "roles": []}, 20),
        ({"createUser": "ben", "roles": []}, 2),
        ({"createUser": "ben", "pwd": ""}, 40414),
        ({"createUser": "ben", "pwd": "", "roles": []}, 2),
        ({"createUser": "", "pwd": "x", "roles": []}, 2),
        # A soft hyphen, which is nothing in a login.
        ({"createUser": "\u00ad", "pwd": "x", "roles": []}, 2),
        ({"createUser": "ben", "pwd": "x", "roles": [{"role": "read", "db": "*"}]}, 2),
        ({"createUser": "ben", "pwd": "x", "roles": ["backup"]}, 31),
        ({"createUser": "ben", "pwd": "x", "roles": ["root"]}, 31),
        ({"createUser": "ben", "pwd": "x", "roles": ["readWrite", {"role": "read", "db": "other"}]}, 238),
        ({"createUser": "ben", "pwd": "x", "roles": [], "mechanisms": ["SCRAM-SHA-1"]}, 2),
        ({"createUser": "ben", "pwd": "x", "roles": [], "digestPassword": False}, 2),
        ({"createUser": "ben", "pwd": "x", "roles": [], "authenticationRestrictions": [{"clientSource": ["::"]}]}, 238),
        ({"createUser": "ben", "pwd": "x", "roles": [], "$db": "$external"}, 238),
        ({"createUser": "ben", "pwd": "x", "roles": [], "password": "y"}, 40415),
        ({"updateUser": "ann"}, 2),
        ({"updateUser": "ben", "pwd": "x"}, 11),
        ({"updateUser": "ann", "pwd": "x", "$db": "other"}, 11),
        ({"updateUser": "root", "pwd": "x"}, 20),
        ({"dropUser": "ben"}, 11),
        ({"dropUser": "root"}, 20),
        ({"grantRolesToUser": "ann", "roles": ["nothing"]}, 31),
        ({"revokeRolesFromUser": "ben", "roles": ["read"]}, 11),
    ],
)
async def test_what_cannot_be_is_refused_and_changes_nothing(world: World, command: dict[str, Any], code: int) -> None:
    await make(world, "ann", ["readWrite"])
    before = await told(world, {"forAllDBs": True})
    reply = await world.run(command)
    assert reply["code"] == code, reply
    assert await told(world, {"forAllDBs": True}) == before


async def test_users_are_told_changed_and_removed(world: World) -> None:
    await make(world, "ann", ["read"], customData={"n": 1})
    await make(world, "ben", ["read"], **{"$db": "other"})
    assert await told(world, "ann") == [
        {
            "_id": "db.ann", "user": "ann", "db": "db", "customData": {"n": 1},
            "roles": [{"role": "read", "db": "db"}], "mechanisms": ["SCRAM-SHA-256"],
        }
    ]  # fmt: skip
    assert [each["user"] for each in await told(world, 1)] == ["ann", "root"]
    assert [each["user"] for each in await told(world, {"forAllDBs": True})] == ["ann", "ben", "root"]
    assert [each["user"] for each in await told(world, [{"user": "ben", "db": "db"}, "root"])] == ["root"]
    await world.run({"grantRolesToUser": "ann", "roles": ["readWrite"]})
    assert (await world.door.users.check("ann", "secret")).role is Role.WRITER
    await world.run({"revokeRolesFromUser": "ann", "roles": ["readWrite"]})
    assert (await world.door.users.check("ann", "secret")).role is Role.READER
    await world.run({"updateUser": "ann", "customData": {}, "roles": []})
    assert (await told(world, "ann"))[0]["roles"] == []
    assert (await world.run({"dropAllUsersFromDatabase": 1}))["n"] == 1
    assert (await world.run({"dropUser": "ben", "$db": "other"}))["ok"] == 1
    assert world.door.users.names() == ["root"]


async def test_of_two_who_make_one_user_one_is_told_so(world: World) -> None:
    replies = await asyncio.gather(make(world, "ann", ["read"]), make(world, "ann", ["readWrite"]))
    assert sorted(reply.get("code", 0) for reply in replies) == [0, 51003]


async def test_a_change_counts_for_connections_and_cursors_that_are_open(world: World) -> None:
    await world.run({"insert": "c", "documents": [{"_id": each} for each in range(5)]})
    await make(world, "ann", ["readWrite"])
    connection = Connection(world.door, 1)
    connection.log_in(world.door.users.principal("ann"))

    async def code(body: dict[str, Any]) -> Any:
        reply, _ = await world.door.answer(connection, Request(1, {**body, "$db": "db"}))
        return reply.get("code") if isinstance(reply, dict) else None

    reply = await world.run({"find": "c", "batchSize": 1}, principal=connection.principal)
    more = {"getMore": reply["cursor"]["id"], "collection": "c", "batchSize": 1}
    assert await code(more) is None
    assert await code({"insert": "c", "documents": [{"_id": 9}]}) is None
    await world.run({"updateUser": "ann", "roles": ["read"]})
    assert await code({"insert": "c", "documents": [{"_id": 10}]}) == 13
    assert await code({"find": "c"}) is None
    # It was opened with other rights.
    assert await code(more) == 13
    await world.run({"dropUser": "ann"})
    assert await code({"find": "c"}) == 13
    assert await code({"ping": 1}) is None


async def test_a_user_of_the_same_name_is_another_one(world: World) -> None:
    await make(world, "ann", ["read"])
    connection = Connection(world.door, 1)
    connection.log_in(world.door.users.principal("ann"))
    begun = world.door.users.exchange(Mechanism.SHA_256)
    begun.step(b"n,,n=ann,r=abc")
    await world.run({"dropUser": "ann"})
    await make(world, "ann", [{"role": "root", "db": "admin"}])
    reply, _ = await world.door.answer(connection, Request(1, {"find": "c", "$db": "db"}))
    assert isinstance(reply, dict) and reply["code"] == 13
    # A login that was begun with the password of before.
    with pytest.raises(Unauthenticated):
        world.door.users.proven(begun)


@pytest.mark.parametrize("custom", [{"$oid": "none"}, {"when": {"$date": "never"}}, {"$numberInt": "5"}])
async def test_what_an_application_keeps_of_a_user_is_told_as_it_was(world: World, custom: dict[str, Any]) -> None:
    await make(world, "ann", ["read"], customData=custom)
    assert [each.get("customData") for each in await told(world, {"forAllDBs": True})] == [custom, None]
    assert Users(DECLARED, world.door.users._file).made("ann") == world.door.users.made("ann")


async def test_users_last_and_the_configuration_comes_first(tmp_path: Path) -> None:
    file = tmp_path / "users.json"
    async with opened(tmp_path) as world:
        world.door.users = Users(DECLARED, file)
        for name in ("ann", "ben"):
            await make(world, name, ["read"])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert b"secret" not in file.read_bytes()
    # A crash in the middle of the next change leaves a part of a file beside it.
    (tmp_path / "users.json.new").write_bytes(b'{"vers')
    users = Users({**DECLARED, "ben": DECLARED["root"]}, file)
    assert users.names() == ["ann", "ben", "root"]
    assert await users.check("ann", "secret") == Principal(sub="ann", role=Role.READER, namespaces=("db",))
    assert users.principal("ben").role is Role.ADMIN
    assert users.made("ben") is None
    users.change({"ann": None})
    assert Users({}, file).names() == ["ben"]
    file.write_bytes(b'{"vers')
    with pytest.raises(Corrupt, match=r"users\.json"):
        Users({}, file)


async def test_users_cannot_be_made_without_a_place_for_them(tmp_path: Path) -> None:
    (tmp_path / "users.json").write_text("of an earlier owner")
    async with opened(tmp_path) as world:
        assert (await make(world, "ann", []))["code"] == 238
        # Another gateway may own the log next, and would still let in who was removed here.
        world.door.users = Users.of_folder(DECLARED, tmp_path, is_derived=True)
        assert (await make(world, "ann", []))["code"] == 238
    assert not (tmp_path / "users.json.new").exists()
