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
from mainstem.log.settings import TimesRule
from mainstem.model import Invalid, TableName, parse_table_name
from mainstem.tables.maintenance import MaintenanceSettings
from mainstem.tables.parquet import ParquetSettings
from mainstem.tables.places import folder_place_of
from mainstem.tables.settings import TableSettings

Positive = Annotated[int, msgspec.Meta(gt=0)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]

MIB = 1 << 20


class ServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the gateway listens."""

    # The address to listen on. Beyond loopback a key in [auth] is needed.
    host: str = "127.0.0.1"
    # The port for HTTP and WebSockets. 0 picks a free one.
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8181
    # WebSockets open at once; one more is refused with a time to come back.
    connections_max: Positive = 10_000
    # Names by which browsers reach the server (`lake.example.com`), besides localhost and addresses. Where no token is
    # asked for, requests to any other name are refused; where one is, only if there are names here.
    hosts: tuple[str, ...] = ()
    # How long a client may take to send the head of a request, and be silent within its body.
    request_timeout_s: Seconds = 30.0
    # PEM files: the certificate with its chain, and its key. Not set: plain HTTP.
    tls_cert: str = ""
    # The key of the certificate, a PEM file.
    tls_key: str = ""


class LogConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the log is, when it is sealed, and how long its segments stay."""

    # Where changes are durable before they are acknowledged: in the data folder ("embedded"), or in a topic of Apache
    # Kafka ("kafka"), which another gateway can take over. The data folder is then made anew from it at each start.
    kind: Literal["embedded", "kafka"] = "embedded"
    # Kafka's brokers, such as kafka-1:9092,kafka-2:9092.
    bootstrap_servers: str = ""
    # The log's topic is this with ".log" behind it. It is made where it is not there.
    topic_prefix: str = "mainstem"
    # On so many brokers each change is, where the topic is made by us. -1: as the brokers have it.
    replication: Annotated[int, msgspec.Meta(ge=-1, le=32)] = -1
    # So long the gateway that owns the log may be silent before another takes over.
    lease_s: Annotated[float, msgspec.Meta(ge=0.5, le=300)] = 1.5
    # Properties of librdkafka, such as security.protocol and sasl.mechanism.
    kafka_client: dict[str, str] = {}
    # Changes after which the log is sealed into a segment, which Spark then carries into the tables.
    flush_events: Positive = 10_000
    # Bytes after which the log is sealed.
    flush_bytes: Positive = 32 * MIB
    # Age of the oldest change in the log at which it is sealed.
    flush_age_s: Seconds = 60.0
    # Time after the last segment at which the log is sealed, if there is anything in it.
    flush_interval_s: Seconds = 30.0
    # Durable but not yet in a table. At this many bytes the gate answers `buffer_full`.
    buffer_bytes_max: Positive = 4096 * MIB
    # How long a segment stays after every table has its changes, for sync clients and consumers that are behind.
    segment_retention_s: Annotated[float, msgspec.Meta(ge=0)] = 3600.0
    # Whether JSON texts that are ISO times with a zone (2026-01-31T23:59:59Z) become timestamptz columns, in every
    # table that does not say otherwise. A column in which another text comes later becomes text.
    infer_times: bool = False


class PeersConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Several gateways over one log on Kafka: those that stand by pass connections on to the one that leads."""

    # Where the one that leads takes them, on the server's host. 0 picks a free port. -1, on all of them: none are
    # passed on, and a gateway listens only while it leads.
    port: Annotated[int, msgspec.Meta(ge=-1, le=65535)] = 0
    # The host, or host:port, by which the others reach this gateway. Not set: the server's host or, where that is all
    # addresses, the one by which this machine reaches Kafka.
    advertise: str = ""


class PipelineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The Spark side."""

    # Whether the pipeline is started. Without it changes stay in the log, and no table moves.
    enabled: bool = True
    # Spark's master: local[*] uses all cores of this machine; spark://host:7077, yarn or k8s://… run on a cluster.
    master: str = "local[*]"
    # The heap of Spark's driver, which has the executors in it too unless they are on a cluster.
    driver_memory: str = "1536m"
    # How often Spark looks for new segments: a change waits for that, on its way into its table.
    trigger_s: Seconds = 0.2
    # Where Spark's own page is, on loopback. 0: nowhere.
    ui_port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 0
    # Any setting of Spark's, by its own name. They win over ours.
    spark: dict[str, str] = {}
    # The URL of a Maven repository to fetch Spark's jars from, once. Not set: Maven Central.
    maven_mirror: str = ""
    # Around the commits to the tables: failures of their store in a row until it is left alone, and for how long.
    breaker_failures: Positive = 5
    # How long a store that failed so often is left alone.
    breaker_open_s: Seconds = 30.0
    # A table that somebody dropped is made again by its next change, or changes to it are refused.
    dropped_tables: Literal["recreate", "refuse"] = "recreate"
    # Folders and places on S3 whose files `mainstem load --direct` may read, besides the data folder's own `load`.
    # Spark's executors read them: on a cluster they must be the same there.
    load_from: tuple[str, ...] = ()


class LoggingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the processes log, on standard error."""

    # Lines for people, or one JSON object a line for machines.
    format: Literal["text", "json"] = "text"
    # The least level that is logged.
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"


class QueryConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The most that a query may read beside the gateway, after pruning (more is Spark's), and its memory."""

    # DuckDB's own bound. The process has as much again, and the system holds it to that.
    memory_bytes_max: Annotated[int, msgspec.Meta(ge=64 * MIB)] = 512 * MIB
    # A query that would read more bytes than this, after pruning, runs on Spark.
    gateway_bytes_max: Positive = 2048 * MIB
    # A query that would read more rows than this, after pruning, runs on Spark.
    gateway_rows_max: Positive = 50_000_000


class MongoConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The Mongo door. It listens on the server's host, with the server's certificate."""

    # -1: there is no such door. 0 picks a free port.
    port: Annotated[int, msgspec.Meta(ge=-1, le=65535)] = -1
    # Connections open at once.
    connections_max: Positive = 10_000
    # The host and port that clients are told to connect to. Not set: those that they came to.
    advertise: str = ""
    # How often documents are looked for that a TTL index says are expired.
    ttl_interval_s: Seconds = 60.0

    @property
    def is_on(self) -> bool:
        """Whether the door is open."""
        return self.port >= 0


class IngestConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rows over plain HTTP, and what Debezium Server posts."""

    # Of one request. A row is bounded by `limits.event_bytes_max`, as everywhere.
    body_bytes_max: Annotated[int, msgspec.Meta(ge=1024, le=60 * MIB)] = 32 * MIB
    # Rows of one request.
    rows_max: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 250_000


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything a user can set."""

    server: ServerConfig = ServerConfig()
    log: LogConfig = LogConfig()
    peers: PeersConfig = PeersConfig()
    # How much may come in, and how often.
    limits: RateSettings = RateSettings()
    pipeline: PipelineConfig = PipelineConfig()
    # The Iceberg catalog, and where the tables are.
    catalog: CatalogSettings = CatalogSettings()
    query: QueryConfig = QueryConfig()
    # The door for Kafka's clients.
    kafka: KafkaConfig = KafkaConfig()
    ingest: IngestConfig = IngestConfig()
    # When and how tables are maintained.
    compaction: MaintenanceSettings = MaintenanceSettings()
    # How Parquet files are written, of every table that does not say otherwise. 0 leaves it to Iceberg's defaults.
    parquet: ParquetSettings = ParquetSettings()
    # Who may come in. With a key or a file of keys, every path asks for a token.
    auth: AuthSettings = AuthSettings()
    # Who logs in with a password, where the protocol is one whose clients do.
    users: dict[str, UserSettings] = {}
    mongo: MongoConfig = MongoConfig()
    logging: LoggingConfig = LoggingConfig()
    # By full name, as the file has them: the pipeline's process is handed them as they are.
    tables: dict[str, dict[str, Any]] = {}

    def times(self) -> TimesRule:
        """In which tables times are told from texts."""
        default = self.log.infer_times
        asked = {name: self.table(parse_table_name(name)).infer_times for name in self.tables}
        return TimesRule(default, tuple(name for name, says in asked.items() if says is not None and says != default))

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
    for place in config.pipeline.load_from:
        try:
            folder_place_of(place)
        except Invalid as error:
            message = f"the configuration is not right. file={path} key=pipeline.load_from reason={error}"
            raise Invalid(message) from error
    # A table may be named as producers name it; from here on it has its full name.
    tables = {str(parse_table_name(name)): document for name, document in config.tables.items()}
    for name, document in tables.items():
        try:
            TableSettings.from_document(document)
        except Invalid as error:
            raise Invalid(f"the configuration is not right. file={path} table={name} reason={error}") from error
    return msgspec.structs.replace(config, tables=tables)
