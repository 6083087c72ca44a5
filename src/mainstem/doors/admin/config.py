"""The configuration over HTTP: what can be changed while the server runs, in DoLake's words.

    GET   /v1/config/server   every setting, which of them were changed here, and the latest changes
    PATCH /v1/config          change some; `null` goes back to the configuration file

`GET /v1/config` is the Iceberg catalog's, and stays so.
"""

from typing import Annotated, Any, Literal, Protocol

import msgspec
from litestar import Request, Response, Router, get, patch
from litestar.exceptions import HTTPException
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import JSONBody

from mainstem.admission import Principal
from mainstem.doors.admin.server import Wire
from mainstem.doors.http.access import principal_of
from mainstem.doors.http.bodies import decoded
from mainstem.doors.http.refusals import ErrorAnswer, failed, refused
from mainstem.model import Invalid, MainstemError

AnyRequest = Request[Any, Any, Any]

Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)]
Bytes = Annotated[int, msgspec.Meta(ge=1, le=1 << 50)]
Millis = Annotated[int, msgspec.Meta(ge=1, le=366 * 24 * 3600 * 1000)]
Share = Annotated[float, msgspec.Meta(gt=0, lt=1)]
Rate = Annotated[float, msgspec.Meta(gt=0, le=1_000_000)]
# A WebSocket frame carries no more.
Frame = Annotated[int, msgspec.Meta(ge=1, le=16 * 1024 * 1024)]
Files = Annotated[int, msgspec.Meta(ge=2, le=1_000_000)]
Ranges = Annotated[list[Annotated[str, msgspec.Meta(max_length=64)]], msgspec.Meta(max_length=1_000)]


class ConfigPatch(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What to change. A name that is left out stays as it is."""

    flush_threshold_events: Count | None = None
    flush_threshold_bytes: Bytes | None = None
    flush_threshold_ms: Millis | None = None
    flush_interval_ms: Millis | None = None
    max_buffer_size: Bytes | None = None
    max_connections: Count | None = None
    segment_retention_ms: Millis | None = None
    connections_per_second: Count | None = None
    messages_per_second: Count | None = None
    burst_capacity: Count | None = None
    refill_rate: Rate | None = None
    max_connections_per_source: Count | None = None
    max_connections_per_ip: Count | None = None
    subnet_rate_limit_threshold: Count | None = None
    requests_per_second: Count | None = None
    whitelisted_ips: Ranges | None = None
    backpressure_threshold: Share | None = None
    base_retry_delay_ms: Millis | None = None
    max_retry_delay_ms: Millis | None = None
    max_payload_size: Frame | None = None
    max_event_size: Frame | None = None
    parquet_compression: Literal["none", "snappy", "gzip", "zstd"] | None = None
    parquet_row_group_size: Count | None = None
    auto_compact: bool | None = None
    min_files_to_compact: Files | None = None
    max_files_to_compact: Files | None = None
    target_file_size_bytes: Bytes | None = None
    compaction_interval_ms: Millis | None = None


class ConfigValues(Wire, frozen=True, kw_only=True):
    """Every setting that can be changed while the server runs, as it is now."""

    flush_threshold_events: int
    flush_threshold_bytes: int
    flush_threshold_ms: int
    flush_interval_ms: int
    max_buffer_size: int
    max_connections: int
    segment_retention_ms: int
    connections_per_second: int
    messages_per_second: int
    burst_capacity: int
    refill_rate: float
    max_connections_per_source: int
    max_connections_per_ip: int
    subnet_rate_limit_threshold: int
    requests_per_second: int
    whitelisted_ips: tuple[str, ...]
    backpressure_threshold: float
    base_retry_delay_ms: int
    max_retry_delay_ms: int
    max_payload_size: int
    max_event_size: int
    parquet_compression: str
    # In rows; 0 leaves it to Iceberg's own default, by size.
    parquet_row_group_size: int
    auto_compact: bool
    min_files_to_compact: int
    max_files_to_compact: int
    target_file_size_bytes: int
    compaction_interval_ms: int


class ConfigChange(Wire, frozen=True, kw_only=True):
    """One change: when, by whom, from where, and what. `null` in `after` is a return to the configuration file."""

    at_ms: int
    by: str
    address: str | None
    before: dict[str, Any]
    after: dict[str, Any]


class ConfigView(Wire, frozen=True, kw_only=True):
    """The configuration."""

    settings: ConfigValues
    # What is not as the configuration file has it.
    changed: list[str]
    # The latest first.
    changes: list[ConfigChange]


class Tuning(Protocol):
    """What this door needs of the app."""

    def view(self) -> ConfigView:
        """The configuration, now."""

    async def change(self, asked: dict[str, Any], principal: Principal, address: str | None) -> ConfigView:
        """Check, keep and apply a change. Raises Invalid where a value does not fit the others."""


# What the seed's configuration has besides, and why it is not changed here.
_FIXED = {
    "r2BucketName": "it is the warehouse: [catalog] warehouse, and a restart",
    "r2BasePath": "it is the warehouse: [catalog] warehouse, and a restart",
    "enableFallback": "the log is always there",
    "maxFallbackSize": "the log holds what waits for the tables: maxBufferSize",
    "enableDeduplication": "without it a retry would count twice",
    "deduplicationWindowMs": "duplicates are told by source and sequence, however old they are",
}

_ERRORS = {
    code: ResponseSpec(data_container=ErrorAnswer, description=text, generate_examples=False)
    for code, text in ((400, "A name or a value is wrong"), (403, "Not an admin of every namespace"))
}


def config_router(tuning: Tuning) -> Router:
    """The routes, for an admin of everything."""

    @get("/v1/config/server", summary="The configuration, and who changed it", tags=["operation"])
    async def view() -> ConfigView:
        return tuning.view()

    @patch("/v1/config", summary="Change the running server's configuration", tags=["operation"], responses=_ERRORS)
    async def change(request: AnyRequest, data: JSONBody[ConfigPatch]) -> Response[ConfigView]:
        # Checked by its type; what is left out and what is null differ in the body alone.
        del data
        asked = _asked(await request.body())
        address = request.client.host if request.client else None
        return Response(await tuning.change(asked, principal_of(request.scope), address))

    return Router(
        path="/",
        route_handlers=[view, change],
        exception_handlers={MainstemError: failed, HTTPException: refused},
    )


def _asked(body: bytes) -> dict[str, Any]:
    """The names that stand in the body. The framework has checked the values; an unknown name is told why."""
    asked: dict[str, Any] = decoded(body)
    known = {field.encode_name for field in msgspec.structs.fields(ConfigPatch)}
    for name in asked:
        if name in _FIXED:
            raise Invalid(f"{name} cannot be changed here: {_FIXED[name]}", reason="not_changeable")
        if name not in known:
            raise Invalid(f"setting is unknown. expected=one of {', '.join(sorted(known))} got={name:.100}")
    if not asked:
        raise Invalid("there is nothing to change. expected=at least one setting got=none")
    return asked
