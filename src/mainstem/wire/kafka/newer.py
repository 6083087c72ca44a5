"""Schemas that kio does not have yet, written as it writes its own: ApiVersions 5 (KIP-1242), in which a client says
which broker of which cluster it means to speak to. The answer is that of version 4."""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

from kio.index import UnknownAPIKey, UnknownEntity, load_request_schema, load_response_schema
from kio.schema.request_header.v2.header import RequestHeader
from kio.static.constants import EntityType
from kio.static.primitive import i16, i32

API_VERSIONS = 18
_LATEST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsRequest:
    """Version 5."""

    __type__: ClassVar = EntityType.request
    __version__: ClassVar[i16] = i16(_LATEST)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(API_VERSIONS)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    client_software_name: str = field(metadata={"kafka_type": "string"})
    client_software_version: str = field(metadata={"kafka_type": "string"})
    cluster_id: str | None = field(metadata={"kafka_type": "string"}, default=None)
    node_id: i32 = field(metadata={"kafka_type": "int32"}, default=i32(-1))


@lru_cache(512)
def request_schema(api_key: int, version: int) -> Any:
    """The schema of a request. Raises KeyError where there is none."""
    if (api_key, version) == (API_VERSIONS, _LATEST):
        return ApiVersionsRequest
    try:
        return load_request_schema(api_key, version)
    except (UnknownAPIKey, UnknownEntity) as error:
        raise KeyError(f"api {api_key} version {version}") from error


@lru_cache(512)
def response_schema(api_key: int, version: int) -> Any:
    """The schema of an answer. Raises KeyError where there is none."""
    if api_key == API_VERSIONS:
        version = min(version, _LATEST - 1)
    try:
        return load_response_schema(api_key, version)
    except (UnknownAPIKey, UnknownEntity) as error:
        raise KeyError(f"api {api_key} version {version}") from error
