"""What tools ask of a server: who it is, how it is, who is there."""

import datetime as dt
import os
import platform
from typing import Any

from bson.int64 import Int64

from mainstem.admission import Role
from mainstem.doors.mongo.calls import COMMANDS, Call, Reply, command
from mainstem.doors.mongo.errors import CommandFailed
from mainstem.wire.mongo.frames import DOCUMENT_BYTES_MAX

# What drivers and tools are told: the release whose behaviour is followed.
VERSION = "7.0.0"
_PARAMETERS = {
    "featureCompatibilityVersion": {"version": "7.0"},
    "authenticationMechanisms": ["SCRAM-SHA-256"],
    "transactionLifetimeLimitSeconds": 60,
    "cursorTimeoutMillis": Int64(600_000),
    "logLevel": 0,
}


@command("buildInfo", role=None, aliases=("buildinfo",))
async def build_info(call: Call) -> Reply:
    """Which MongoDB it behaves like."""
    return {
        "version": VERSION,
        "versionArray": [*map(int, VERSION.split(".")), 0],
        "gitVersion": "mainstem",
        "modules": ["mainstem"],
        "allocator": "system",
        "javascriptEngine": "none",
        "bits": 64,
        "debug": False,
        "maxBsonObjectSize": DOCUMENT_BYTES_MAX,
        "storageEngines": ["delta"],
        "openssl": {},
    }


@command("hostInfo", admin_only=True)
async def host_info(call: Call) -> Reply:
    """The machine."""
    system = {"currentTime": dt.datetime.now(dt.UTC), "hostname": platform.node(), "numCores": os.cpu_count() or 1}
    return {"system": system, "os": {"type": platform.system(), "name": platform.system()}, "extra": {}}


@command("serverStatus", "repl", "metrics", "locks", "recordStats", "wiredTiger", "tcmalloc")
async def server_status(call: Call) -> Reply:
    """How the server is."""
    door = call.door
    uptime_s = door.clock.monotonic_s() - door.started_s
    opcounters = {
        "insert": door.counts.get("insert", 0),
        "query": door.counts.get("find", 0),
        "update": door.counts.get("update", 0),
        "delete": door.counts.get("delete", 0),
        "getmore": door.counts.get("getMore", 0),
        "command": sum(door.counts.values()),
    }
    return {
        "host": call.connection.address,
        "version": VERSION,
        "process": "mainstem",
        "pid": Int64(os.getpid()),
        "uptime": uptime_s,
        "uptimeMillis": Int64(uptime_s * 1000),
        "localTime": dt.datetime.now(dt.UTC),
        "connections": {
            "current": len(door.connections),
            "available": door.settings.connections_max - len(door.connections),
            "totalCreated": door.connections_made,
        },
        "opcounters": opcounters,
        "metrics": {
            "cursor": {"open": {"total": len(door.cursors)}},
            # How often a table answered for a collection, by the engine that read it.
            "pushDown": dict(door.documents.tables.answered),
        },
        "logicalSessionRecordCache": {"activeSessionsCount": len(door.sessions)},
        "storageEngine": {"name": "delta", "supportsCommittedReads": True, "persistent": True},
        "repl": {"setName": "mainstem", "isWritablePrimary": True, "primary": call.connection.address},
        "log": {"position": Int64(door.documents.durable), "id": door.documents.log.lineage.log},
    }


@command("getParameter", "allParameters", *_PARAMETERS, role=None, admin_only=True)
async def get_parameter(call: Call) -> Reply:
    """Settings that tools ask for."""
    if call.body["getParameter"] == "*":
        return dict(_PARAMETERS)
    found = {name: value for name, value in _PARAMETERS.items() if name in call.body}
    if not found:
        raise CommandFailed(72, "no option found to get")
    return found


@command("getCmdLineOpts", role=Role.ADMIN, admin_only=True)
async def get_command_line(call: Call) -> Reply:
    """How it was started, as far as that is anybody's business."""
    return {"argv": ["mainstem", "serve"], "parsed": {}}


@command("connectionStatus", "showPrivileges", role=None)
async def connection_status(call: Call) -> Reply:
    """Who the caller is."""
    principal = call.connection.principal
    info: dict[str, Any] = {"authenticatedUsers": [], "authenticatedUserRoles": []}
    if principal is not None and principal.is_authenticated:
        info["authenticatedUsers"] = [{"user": principal.sub, "db": "admin"}]
        info["authenticatedUserRoles"] = [{"role": str(principal.role), "db": "admin"}]
    if call.flag("showPrivileges"):
        info["authenticatedUserPrivileges"] = []
    return {"authInfo": info}


@command("currentOp", "$all", "$ownOps", role=Role.ADMIN, admin_only=True)
async def current_op(call: Call) -> Reply:
    """Who is connected."""
    connections = [
        {"type": "op", "client": each.peer, "connectionId": each.number, "active": False, "clientMetadata": each.client}
        for each in call.door.connections
    ]
    return {"inprog": connections}


@command("killOp", "op", role=Role.ADMIN, admin_only=True)
async def kill_op(call: Call) -> Reply:
    """End a connection and what it is doing, by the number that `currentOp` shows."""
    number = call.number("op")
    for each in list(call.door.connections):
        if each is call.connection and each.number == number:
            each.close()
        elif each.number == number:
            each.kill()
    return {"info": "attempting to kill op"}


@command("getLog", role=Role.ADMIN, admin_only=True)
async def get_log(call: Call) -> Reply:
    """Lines of the log: none are kept here for it."""
    if call.body["getLog"] == "*":
        return {"names": ["global", "startupWarnings"]}
    return {"totalLinesWritten": 0, "log": []}


@command("fsync", "lock", role=Role.ADMIN, admin_only=True)
async def fsync(call: Call) -> Reply:
    """Everything that was acknowledged is durable already."""
    if call.flag("lock"):
        raise CommandFailed(238, "fsync with a lock is not supported")
    return {"numFiles": 1}


@command("listCommands", role=None)
async def list_commands(call: Call) -> Reply:
    """What there is."""
    return {"commands": {name: {"help": (each.run.__doc__ or "").strip()} for name, each in sorted(COMMANDS.items())}}


@command("replSetGetStatus", "initialSync", admin_only=True)
async def repl_set_status(call: Call) -> Reply:
    """A replica set of one."""
    member = {"_id": 0, "name": call.connection.address, "health": 1.0, "state": 1, "stateStr": "PRIMARY", "self": True}
    return {"set": "mainstem", "myState": 1, "members": [member]}


@command("whatsmyuri", role=None)
async def whats_my_uri(call: Call) -> Reply:
    """Where the caller comes from."""
    return {"you": call.connection.peer}


@command("atlasVersion", role=None)
async def atlas_version(call: Call) -> Reply:
    """Not Atlas."""
    raise CommandFailed(59, "no such command: 'atlasVersion'")
