"""A warehouse on S3: what Spark and DuckDB must be told to reach it. The gateway itself goes by `[catalog.io]`."""

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from mainstem.catalog.settings import CatalogSettings
from mainstem.model import LogId
from mainstem.query.engine import EngineSettings
from mainstem.query.sandbox.session import SandboxSettings
from mainstem.sql import duckdb_text

if TYPE_CHECKING:
    from mainstem.query.delta import DeltaTables

SCHEMES = ("s3://", "s3a://")
SESSION_BYTES = 512 * 1024 * 1024
REGION_DEFAULT = "us-east-1"
_FILE_IO = "org.apache.iceberg.aws.s3.S3FileIO"


def is_on_s3(settings: CatalogSettings) -> bool:
    """Whether the tables are on S3."""
    return settings.warehouse.startswith(SCHEMES)


def spark_properties(settings: CatalogSettings) -> dict[str, str]:
    """Properties of Iceberg's catalog in Spark; none where the warehouse is a folder."""
    if not is_on_s3(settings):
        return {}
    return {
        "io-impl": _FILE_IO,
        "client.region": settings.io.get("s3.region", REGION_DEFAULT),
        # The pipeline tries again by itself, and looks before it does: waiting long in here would only hide trouble.
        "s3.retry.num-retries": "2",
        "s3.retry.max-wait-ms": "2000",
        **settings.io,
    }


def segments_url(settings: CatalogSettings, log: LogId) -> str | None:
    """Where segments are for executors on other machines; None where the warehouse is a folder: they stay in the log's.

    By the log's identity: gateways that share a warehouse have logs of their own.
    """
    return f"{settings.warehouse.rstrip('/')}/_mainstem/{log}/segments" if is_on_s3(settings) else None


def engine_settings(settings: CatalogSettings, warehouse: str, memory_bytes_max: int) -> EngineSettings:
    """The engine for queries beside the gateway, with the way to the warehouse."""
    # A new session takes some 300 MB for a moment, whatever it is bound to.
    room = max(2 * memory_bytes_max, memory_bytes_max + SESSION_BYTES)
    sandbox = SandboxSettings(memory_bytes_max=memory_bytes_max, process_bytes_max=room)
    if is_on_s3(settings):
        extensions = (*sandbox.extensions, "httpfs")
        sandbox = msgspec.structs.replace(sandbox, extensions=extensions, prepare=duckdb_secret(settings))
    return EngineSettings(folder=f"{warehouse}/", sandbox=sandbox)


def duckdb_secret(settings: CatalogSettings) -> tuple[str, ...]:
    """The statements after which DuckDB reads the warehouse, and nothing else of the store."""
    if not is_on_s3(settings):
        return ()
    io = settings.io
    endpoint = urlsplit(io.get("s3.endpoint", ""))
    options = {
        "TYPE": "s3",
        "SCOPE": settings.warehouse,
        "KEY_ID": io.get("s3.access-key-id"),
        "SECRET": io.get("s3.secret-access-key"),
        "SESSION_TOKEN": io.get("s3.session-token"),
        "REGION": io.get("s3.region", REGION_DEFAULT),
        "ENDPOINT": endpoint.netloc or None,
        "URL_STYLE": "path" if io.get("s3.path-style-access") == "true" else None,
        "USE_SSL": "false" if endpoint.scheme == "http" else None,
    }
    told = ", ".join(f"{name} {duckdb_text(value)}" for name, value in options.items() if value)
    return (f"CREATE SECRET warehouse ({told})",)


def delta_url(settings: CatalogSettings, data: Path) -> str:
    """Where the pipeline puts tables in Delta's format: beside the warehouse's own folders, or in the data folder."""
    return f"{settings.warehouse.rstrip('/')}/_delta" if settings.warehouse else str(data / "delta")


def delta_tables(settings: CatalogSettings, data: Path) -> "DeltaTables":
    """The tables of that place, to read in the gateway. Imported here: a gateway without such tables starts sooner."""
    from mainstem.formats.delta.storage import storage_by_properties
    from mainstem.query.delta import DeltaTables

    return DeltaTables(storage_by_properties(delta_url(settings, data), settings.io))
