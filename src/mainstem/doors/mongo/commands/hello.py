"""The first words of a connection, and logging in."""

import asyncio
import datetime as dt
from typing import Any

from bson.binary import Binary
from bson.int64 import Int64
from bson.objectid import ObjectId

from mainstem.admission.scram import Mechanism, State
from mainstem.doors.mongo.calls import Call, Reply, command
from mainstem.doors.mongo.errors import CommandFailed
from mainstem.doors.mongo.server import SET_NAME, timestamp_of
from mainstem.wire.mongo.compression import NAMES
from mainstem.wire.mongo.frames import DOCUMENT_BYTES_MAX, MESSAGE_BYTES_MAX

# MongoDB 7.0's, the newest that asks nothing more of a server than is served here.
WIRE_VERSION_MAX = 21
BATCH_MAX = 100_000
_PROCESS = ObjectId()
_ELECTION = ObjectId("7fffffff0000000000000001")
_AWAIT_S_MAX = 60.0

_FIELDS = (
    "helloOk",
    "client",
    "compression",
    "hostInfo",
    "topologyVersion",
    "maxAwaitTimeMS",
    "saslSupportedMechs",
    "speculativeAuthenticate",
    "loadBalanced",
    "backpressure",
    "internalClient",
)


@command("hello", *_FIELDS, role=None, aliases=("isMaster", "ismaster"))
async def hello(call: Call) -> Reply:
    """What the server is: the primary of a replica set of one."""
    body, connection, door = call.body, call.connection, call.door
    if call.body.get("topologyVersion") is not None and call.body.get("maxAwaitTimeMS") is not None:
        # Nothing about the topology ever changes: the client hears so when its time is over.
        await asyncio.sleep(min(float(call.body["maxAwaitTimeMS"]) / 1000, _AWAIT_S_MAX))
    if isinstance(body.get("client"), dict):
        connection.client = body["client"]
    offered = [name for name in body.get("compression") or () if name in NAMES]
    address = connection.told or door.settings.advertise or connection.address
    now = dt.datetime.now(dt.UTC)
    last = {"ts": timestamp_of(door.documents.hlc), "t": Int64(1)}
    reply: dict[str, Any] = {
        "helloOk": True,
        "isWritablePrimary": True,
        "topologyVersion": {"processId": _PROCESS, "counter": Int64(0)},
        "hosts": [address],
        "setName": SET_NAME,
        "setVersion": 1,
        "secondary": False,
        "primary": address,
        "me": address,
        "electionId": _ELECTION,
        "lastWrite": {
            "opTime": last,
            "lastWriteDate": now,
            "majorityOpTime": last,
            "majorityWriteDate": now,
        },
        "maxBsonObjectSize": DOCUMENT_BYTES_MAX,
        "maxMessageSizeBytes": MESSAGE_BYTES_MAX,
        "maxWriteBatchSize": BATCH_MAX,
        "localTime": now,
        "logicalSessionTimeoutMinutes": 30,
        "connectionId": connection.number,
        "minWireVersion": 0,
        "maxWireVersion": WIRE_VERSION_MAX,
        "readOnly": False,
    }
    if call.name != "hello":
        reply["ismaster"] = True
    if offered:
        reply["compression"] = offered
    if "saslSupportedMechs" in body:
        reply["saslSupportedMechs"] = [str(Mechanism.SHA_256)]
    begun = body.get("speculativeAuthenticate")
    if isinstance(begun, dict) and door.users and begun.get("mechanism") == Mechanism.SHA_256:
        reply["speculativeAuthenticate"] = _begin(call, begun)
    return reply


def _begin(call: Call, body: Any) -> dict[str, Any]:
    mechanism = body.get("mechanism")
    if mechanism != Mechanism.SHA_256:
        raise CommandFailed(334, f"Received authentication for mechanism {mechanism} which is not enabled")
    exchange = call.connection.exchange = call.door.users.exchange(Mechanism.SHA_256)
    payload = exchange.step(_payload(body))
    return {"conversationId": 1, "done": False, "payload": Binary(payload)}


def _payload(body: Any) -> bytes:
    payload = body.get("payload")
    if not isinstance(payload, bytes | str):
        raise CommandFailed(14, "BSON field 'payload' must be binary")
    return payload.encode() if isinstance(payload, str) else bytes(payload)


@command("saslStart", "mechanism", "payload", "options", "autoAuthorize", "db", role=None)
async def sasl_start(call: Call) -> Reply:
    """Begin to log in."""
    if not call.door.users:
        raise CommandFailed(18, "Authentication failed.")
    return _begin(call, call.body)


@command("saslContinue", "conversationId", "payload", role=None)
async def sasl_continue(call: Call) -> Reply:
    """Go on with it."""
    connection = call.connection
    exchange = connection.exchange
    if exchange is None:
        raise CommandFailed(17, "No SASL session state found")
    payload = _payload(call.body)
    if exchange.state is State.DONE and not payload:
        connection.exchange = None
        return {"conversationId": 1, "done": True, "payload": Binary(b"")}
    answer = exchange.step(payload)
    done = exchange.state is State.DONE
    if done:
        connection.log_in(call.door.users.proven(exchange))
        connection.exchange = None
    return {"conversationId": 1, "done": done, "payload": Binary(answer)}


@command("logout", role=None)
async def logout(call: Call) -> Reply:
    """Log the connection out."""
    call.connection.log_out()
    return {}


@command("ping", role=None)
async def ping(call: Call) -> Reply:
    """Be there."""
    return {}
