"""Which API is answered by whom, in which versions: a table, filled by the modules that have handlers.

To add an API:

    def register(table: Table, service: …) -> None:
        table.add(11, "JoinGroup", 5, 9, partial(join_group, service))

    async def join_group(service: …, request: Any, context: Context) -> Message | None:
        …
        return {"error_code": ErrorCode.none, "generation_id": 3, "members": [{"member_id": …}]}

- `request` is kio's value of the version that came. A field that older versions lack:
  `getattr(request, "rack_id", None)`. Times are `timedelta`, error codes `ErrorCode`, ids `UUID`.
- The answer is a mapping by kio's field names (`wire/kafka/messages.Message`); each version takes the fields it knows,
  and fields that are left out get their default. Times are whole milliseconds. None: nothing is answered at all
  (Produce with acks 0), the connection goes on. `Encoded` instead of a mapping: the answer's body is bytes already.
- Handlers run one after the other per connection, as in Kafka, and answers keep the order of requests. With
  `pipelined=True` the next request of the connection is begun while this one waits (for the disk, say): everything that
  must happen in order has to happen before the handler's first `await`.
- Quotas are none of a handler's business: where a client is past one, `throttle_time` is put into the answer.
- A handler answers errors itself, per topic or partition where the API has that: `errors.code_of` turns a MainstemError
  into Kafka's number. What a handler raises closes the connection, which is all that Kafka has for it.
- Whether somebody may do this at all is asked of `context.principal` (`admission.Principal`): `may_read`, `may_write`
  with a topic's table.

What a handler makes durable goes through `feeds.topics.topics.Journal.append` (state that is rebuilt at the start:
`feeds.topics.state.Section`), or through `Partition.append` where it is a record batch (control batches included).
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mainstem.admission import ANYONE, Principal
from mainstem.wire.kafka.messages import Message


class Encoded(NamedTuple):
    """The body of an answer, behind its head, as bytes."""

    body: Sequence[bytes | bytearray | memoryview]


@dataclass(slots=True)
class Context:
    """What a handler may know of the connection and the request. One per connection; `version`, `client_id` and
    `correlation_id` are the current request's only until the handler's first await."""

    # Where the client comes from, "host:port".
    peer: str
    # What it is to connect to, where it came by another gateway; None: this one's own address.
    told: tuple[str, int] | None = None
    client_id: str | None = None
    version: int = 0
    correlation_id: int = 0
    # Who it is: replaced by SASL.
    principal: Principal = ANYONE
    # Whether it ever said who it is.
    is_known: bool = False
    # For handlers that keep something per connection (a SASL exchange), by their own names; and what is called when
    # the connection ends.
    kept: dict[str, Any] = field(default_factory=dict)
    on_close: list[Callable[[], None]] = field(default_factory=list)


Answered = Message | Encoded | None
Handler = Callable[[Any, Context], Awaitable[Answered]]


class Entry(NamedTuple):
    """One API."""

    key: int
    name: str
    min_version: int
    max_version: int
    handler: Handler
    pipelined: bool = False
    # Whether it is answered before the client said who it is, where that is asked.
    is_open: bool = False


class Table:
    """ApiKey → entry. Filled once, before the door opens."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}

    def add(
        self,
        key: int,
        name: str,
        min_version: int,
        max_version: int,
        handler: Handler,
        *,
        pipelined: bool = False,
        is_open: bool = False,
    ) -> None:
        """Answer an API in these versions by a handler. A later one takes the place of an earlier one."""
        self._entries[key] = Entry(key, name, min_version, max_version, handler, pipelined, is_open)

    def get(self, key: int) -> Entry | None:
        """The entry of an API."""
        return self._entries.get(key)

    def __iter__(self) -> Any:
        return iter(sorted(self._entries.values()))

    def versions(self) -> list[dict[str, int]]:
        """The table as ApiVersions answers it."""
        return [
            {"api_key": entry.key, "min_version": entry.min_version, "max_version": entry.max_version}
            for entry in sorted(self._entries.values(), key=lambda entry: entry.key)
        ]
