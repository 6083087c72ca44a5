"""The configuration: read once, checked once, then passed on as values.

Defaults are DoLake's where it names one. A TOML file holds the same names:

    [log]
    flush_interval_s = 5

    [tables."default.orders"]
    history = false
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from mainstem.admission import AuthSettings, RateSettings, UserSettings
from mainstem.app.kafka.config import KafkaConfig
from mainstem.catalog.settings import CatalogSettings
from mainstem.model import Invalid, TableName, parse_table_name
from mainstem.tables.maintenance import MaintenanceSettings
from mainstem.tables.parquet import ParquetSettings
from mainstem.tables.settings import TableSettings

Positive = Annotated[int, msgspec.Meta(gt=0)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]

MIB = 1 << 20


class ServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the gateway listens."""

    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8181
    connections_max: Positive = 10_000
    # Names by which browsers reach the server (`lake.example.com`), besides localhost and addresses. Where no token is
    # asked for, requests to any other name are refused; where one is, only if there are names here.
    hosts: tuple[str, ...] = ()
    # How long a client may take to send the head of a request, and be silent within its body.
    request_timeout_s: Seconds = 30.0
    # PEM files: the certificate with its chain, and its key. Not set: plain HTTP.
    tls_cert: str = ""
    tls_key: str = ""


class LogConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When the log is sealed, and how long its segments stay."""

    flush_events: Positive = 10_000
    flush_bytes: Positive = 32 * MIB
    flush_age_s: Seconds = 60.0
    flush_interval_s: Seconds = 30.0
    # Durable but not yet in a table. At this many bytes the gate answers `buffer_full`.
    buffer_bytes_max: Positive = 4096 * MIB
    segment_retention_s: Annotated[float, msgspec.Meta(ge=0)] = 3600.0


class PipelineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The Spark side."""

    enabled: bool = True
    master: str = "local[*]"
    driver_memory: str = "1280m"
    # How often Spark looks for new segments: a change waits for that, on its way into its table.
    trigger_s: Seconds = 0.2
    # Where Spark's own page is, on loopback. 0: nowhere.
    ui_port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 0
    # Any setting of Spark's, by its own name. They win over ours.
    spark: dict[str, str] = {}
    # Around the commits to the tables: failures of their store in a row until it is left alone, and for how long.
    breaker_failures: Positive = 5
    breaker_open_s: Seconds = 30.0
    # A table that somebody dropped is made again by its next change, or changes to it are refused.
    dropped_tables: Literal["recreate", "refuse"] = "recreate"


class LoggingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the processes log, on standard error."""

    format: Literal["text", "json"] = "text"
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"


class QueryConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The most that a query may read beside the gateway, after pruning (more is Spark's), and its memory."""

    # DuckDB's own bound. The process has as much again, and the system holds it to that.
    memory_bytes_max: Annotated[int, msgspec.Meta(ge=64 * MIB)] = 512 * MIB
    gateway_bytes_max: Positive = 2048 * MIB
    gateway_rows_max: Positive = 50_000_000


class MongoConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The Mongo door. It listens on the server's host, with the server's certificate."""

    # -1: there is no such door. 0 picks a free port.
    port: Annotated[int, msgspec.Meta(ge=-1, le=65535)] = -1
    connections_max: Positive = 10_000
    # The host and port that clients are told to connect to. Not set: those that they came to.
    advertise: str = ""
    # How often documents are looked for that a TTL index says are expired.
    ttl_interval_s: Seconds = 60.0

    @property
    def is_on(self) -> bool:
        """Whether the door is open."""
        return self.port >= 0


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything a user can set."""

    server: ServerConfig = ServerConfig()
    log: LogConfig = LogConfig()
    limits: RateSettings = RateSettings()
    pipeline: PipelineConfig = PipelineConfig()
    catalog: CatalogSettings = CatalogSettings()
    query: QueryConfig = QueryConfig()
    kafka: KafkaConfig = KafkaConfig()
    compaction: MaintenanceSettings = MaintenanceSettings()
    # Of every table that does not say otherwise.
    parquet: ParquetSettings = ParquetSettings()
    auth: AuthSettings = AuthSettings()
    # Who logs in with a password, where the protocol is one whose clients do.
    users: dict[str, UserSettings] = {}
    mongo: MongoConfig = MongoConfig()
    logging: LoggingConfig = LoggingConfig()
    # By full name, as the file has them: the pipeline's process is handed them as they are.
    tables: dict[str, dict[str, Any]] = {}

    def table(self, name: TableName) -> TableSettings:
        """How one table is stored."""
        return TableSettings.from_document(self.tables.get(str(name), {}), self.parquet)


def load_config(path: Path | None) -> Config:
    """Read a TOML file, or take the defaults."""
    if path is None:
        return Config()
    try:
        config = msgspec.toml.decode(path.read_bytes(), type=Config)
    except OSError as error:
        raise Invalid(f"the configuration cannot be read. file={path} reason={error.strerror}") from error
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise Invalid(f"the configuration is not right. file={path} reason={error}") from error
    # A table may be named as producers name it; from here on it has its full name.
    tables = {str(parse_table_name(name)): document for name, document in config.tables.items()}
    for document in tables.values():
        TableSettings.from_document(document)
    return msgspec.structs.replace(config, tables=tables)
