"""What the pipeline's process is started with. Imports no Spark: the gateway builds this, and has none."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import msgspec

from mainstem.model.errors import Invalid
from mainstem.model.names import TableName, parse_table_name
from mainstem.model.position import Lineage, Span
from mainstem.tables.kinds import settings_of_kind
from mainstem.tables.maintenance import MaintenanceSettings
from mainstem.tables.parquet import ParquetSettings, parse_parquet
from mainstem.tables.settings import Format, TableSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """Everything the process needs to know; nothing is read from the environment.

    What a user can set has no default here: the configuration has it (`app/config`, PipelineConfig).
    """

    catalog_uri: str
    # Where sealed segments are: a folder, or s3://bucket/prefix, which executors on other machines can read.
    segments_dir: str
    # On the driver's own disk, wherever the segments are. Spark notes there which of them it has handed over, and a
    # driver without it (it moved, or lost its disk) hands all of them over again: tables pass over what they cover.
    checkpoint_dir: Path
    jars: tuple[str, ...]
    # Properties of a catalog that is not the gateway's own: how one gets in there, say. None: it is the gateway's.
    catalog_rest: Mapping[str, str] | None = field(default=None, repr=False)
    # Where tables that such a catalog does not know are listed: the gateway. None: the same as the catalog.
    listing_uri: str | None = None
    # A file of the classes that Spark loads, which makes its start quicker. None: there is none.
    class_archive: str | None = None
    # Where the process says how it is. None: nowhere.
    report_url: str | None = None
    # Where to ask for the checkpoints that first syncs need; None: none are made.
    checkpoints_url: str | None = None
    # Where jobs of maintenance are asked for. None: there are none.
    jobs_url: str | None = None
    # Folders, and places on S3, whose files may be loaded without the log.
    load_from: tuple[str, ...] = ()
    # Where queries are asked for. None: there are none.
    queries_url: str | None = None
    maintenance: MaintenanceSettings = field(default_factory=MaintenanceSettings)
    # What the gateway wants to see with every request. None: nothing.
    token: str | None = field(default=None, repr=False)
    master: str
    driver_memory: str
    # How files are written, of every table that does not say otherwise.
    parquet: ParquetSettings = field(default_factory=ParquetSettings)
    tables: Mapping[TableName, TableSettings] = field(default_factory=lambda: MappingProxyType({}))
    # The identities of the log that the segments are of: marks of any other log mean nothing here.
    lineage: Lineage = field(default_factory=Lineage)
    trigger_s: float
    # Where Spark's own page is, on loopback. 0: nowhere.
    ui_port: int
    # Failures of the store in a row until it is left alone, and for how long.
    breaker_failures: int
    breaker_open_s: float
    # What becomes of changes to a table that somebody dropped: "recreate" it, or "refuse" them.
    dropped_tables: str
    # Where tables in Delta's format are: a folder, or s3://bucket/prefix. None: there are none.
    delta_url: str | None = None
    # More properties of the catalog and of Spark, for what has no setting of its own.
    catalog_properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    spark: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        if self.trigger_s <= 0:
            raise Invalid(f"trigger_s. expected=more than 0 got={self.trigger_s}")

    @property
    def is_local(self) -> bool:
        """Whether the executors are in the driver's own process."""
        return self.master.startswith("local")

    def table(
        self, name: TableName, kind: str = "", found: Callable[[], Format | None] = lambda: None
    ) -> TableSettings:
        """How one table is stored: as configured; else as it is there already; else as its kind is."""
        wanted = settings_of_kind(kind, self.parquet)
        configured = self.tables.get(name)
        if configured is not None:
            return replace(configured, columns=MappingProxyType({**wanted.columns, **configured.columns}))
        return replace(wanted, format=found() or wanted.format)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read the settings as JSON has them; `tables` as the configuration file has them."""
        values = dict(document)
        parquet = parse_parquet(values.pop("parquet", {}), ParquetSettings())
        tables = {
            parse_table_name(name): TableSettings.from_document(table, parquet)
            for name, table in values.pop("tables", {}).items()
        }
        maintenance = msgspec.convert(values.pop("maintenance", {}), MaintenanceSettings)
        if "lineage" in values:
            values["lineage"] = Lineage(tuple(msgspec.convert(values["lineage"], list[Span])))
        values["checkpoint_dir"] = Path(values["checkpoint_dir"])
        values["load_from"] = tuple(values.pop("load_from", ()))
        values["jars"] = tuple(str(jar) for jar in values["jars"])
        try:
            return cls(tables=MappingProxyType(tables), maintenance=maintenance, parquet=parquet, **values)
        except TypeError as error:
            raise Invalid(f"pipeline settings. {error}") from error
