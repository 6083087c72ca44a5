"""Who may do what at the Mongo door: SCRAM, roles, TLS; and what strangers on the socket can do to it: nothing."""

import asyncio
import random
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import bson
import pytest
from pymongo.errors import OperationFailure, WriteError

from mainstem.admission.principal import Role
from mainstem.admission.scram import derive, to_text
from mainstem.admission.users import UserSettings
from tests.compat.mongo_server import Client, MongoServer

PASSWORD = "s3cret-pässword"


def user(role: Role, *namespaces: str) -> UserSettings:
    credential = to_text(derive(PASSWORD, iterations=4096))
    return UserSettings(credentials=(credential,), role=role, namespaces=namespaces or ("*",), tables=("*",))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MongoServer]:
    users = {"root": user(Role.ADMIN), "ann": user(Role.WRITER, "ann"), "eve": user(Role.READER, "ann")}
    server = MongoServer(tmp_path_factory.mktemp("mongo"), users=users)
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())


def connect(server: MongoServer, name: str, password: str = PASSWORD) -> Client:
    return server.client(username=name, password=password)


def test_a_login_is_asked_for_and_checked(server: MongoServer) -> None:
    with server.client() as nobody:
        with pytest.raises(OperationFailure) as error:
            nobody.ann.a.find_one()
        assert error.value.code == 13
    for name, password in (("ann", "wrong"), ("nobody", PASSWORD)):
        with connect(server, name, password) as client, pytest.raises(OperationFailure) as error:
            client.ann.a.find_one()
        assert error.value.code == 18


def test_roles_and_namespaces_hold(server: MongoServer) -> None:
    with connect(server, "ann") as ann, connect(server, "eve") as eve, connect(server, "root") as root:
        ann.ann.a.insert_one({"_id": 1})
        root.other.a.insert_one({"_id": 2})
        assert eve.ann.a.find_one() == {"_id": 1}
        assert ann.list_database_names() == ["ann"]
        for forbidden in (
            lambda: eve.ann.a.insert_one({}),
            eve.ann.a.drop,
            ann.other.a.find_one,
            lambda: ann.other.a.insert_one({}),
            lambda: list(ann.ann.a.aggregate([{"$out": {"db": "other", "coll": "a"}}])),
            lambda: list(ann.ann.b.aggregate([{"$merge": {"into": {"db": "other", "coll": "a"}}}])),
            lambda: ann.admin.command("currentOp"),
        ):
            with pytest.raises(OperationFailure) as error:
                forbidden()
            assert error.value.code == 13
        assert root.other.a.count_documents({}) == 1


def test_a_stream_of_everything_shows_only_what_one_may_see(server: MongoServer) -> None:
    with connect(server, "ann") as ann, connect(server, "root") as root, ann.watch() as stream:
        root.other.hidden.insert_one({"_id": "hidden"})
        ann.ann.shown.insert_one({"_id": "shown"})
        assert next(stream)["documentKey"] == {"_id": "shown"}


async def test_users_that_commands_make_outlive_a_kill(tmp_path: Path) -> None:
    server = MongoServer(tmp_path / "data", users={"root": user(Role.ADMIN)})
    async with server:
        with connect(server, "root") as root:
            root.zoo.command("createUser", "zoe", pwd=PASSWORD, roles=["readWrite"])
            root.zoo.command("createUser", "tom", pwd=PASSWORD, roles=["read"])
            root.zoo.command("dropUser", "tom")
        server.kill()
        await server.start()
        with connect(server, "zoe") as zoe, connect(server, "root") as root:
            zoe.zoo.a.insert_one({"_id": 1})
            with pytest.raises(OperationFailure) as error:
                zoe.other.a.find_one()
            assert error.value.code == 13
            root.zoo.command("updateUser", "zoe", pwd="another", roles=["read"])
            assert zoe.zoo.a.find_one() == {"_id": 1}
            with pytest.raises(OperationFailure) as error:
                zoe.zoo.a.insert_one({"_id": 2})
            assert error.value.code == 13
            for name in ("zoe", "tom"):
                with connect(server, name) as late, pytest.raises(OperationFailure) as error:
                    late.zoo.a.find_one()
                assert error.value.code == 18
            with connect(server, "zoe", "another") as late:
                assert late.zoo.a.find_one() == {"_id": 1}
            root.zoo.command("dropUser", "zoe")
            with pytest.raises(OperationFailure) as error:
                zoe.zoo.a.find_one()
            assert error.value.code == 13


def test_tls_is_the_servers(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run(
        [*command, "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )

    async def run() -> None:
        server = MongoServer(tmp_path / "data", tls=(str(certificate), str(key)))
        async with server:
            with server.client(tls=True, tlsCAFile=str(certificate)) as client:
                await asyncio.to_thread(client.t.a.insert_one, {"_id": 1})
                assert await asyncio.to_thread(client.t.a.find_one) == {"_id": 1}

    asyncio.run(run())


def test_garbage_ends_its_own_connection_and_no_other(server: MongoServer) -> None:
    chance = random.Random(5)
    whole = bson.encode({"find": "a", "filter": {"a": 1}, "$db": "ann"})
    frame = struct.pack("<iiiiI", len(whole) + 21, 1, 0, 2013, 0) + b"\x00" + whole
    with connect(server, "root") as root:
        for _ in range(200):
            data = bytearray(frame)
            for _ in range(chance.randrange(1, 8)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            with socket.create_connection(("127.0.0.1", server.port)) as wire:
                wire.sendall(bytes(data[: chance.randrange(1, len(data) + 1)]))
        deep = b"\x05\x00\x00\x00\x00"
        for _ in range(300):
            deep = struct.pack("<i", len(deep) + 8) + b"\x03a\x00" + deep + b"\x00"
        nested = bson.raw_bson.RawBSONDocument(deep)
        with pytest.raises(WriteError, match="nested too deep"):
            root.deep.a.insert_one(nested)
        with pytest.raises(OperationFailure, match="nested too deep"):
            root.deep.command("find", "a", filter=nested)
        assert root.admin.command("ping")["ok"] == 1


def test_a_slow_reader_holds_nobody_up(server: MongoServer) -> None:
    with connect(server, "root") as root:
        root.slow.a.insert_many([{"_id": n, "x": "y" * 10_000} for n in range(500)])
        cursors = [root.slow.a.find().batch_size(2) for _ in range(50)]
        for cursor in cursors:
            next(cursor)
        assert root.slow.a.count_documents({}) == 500
        for cursor in cursors:
            cursor.close()
