"""What the pipeline's process is started with. Imports no Spark: whoever starts the process builds this."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import msgspec

from mainstem.model.errors import Invalid
from mainstem.model.names import TableName, parse_table_name
from mainstem.tables.maintenance import MaintenanceSettings
from mainstem.tables.parquet import ParquetSettings, parse_parquet
from mainstem.tables.settings import TableSettings


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """Everything the process needs to know; nothing is read from the environment."""

    catalog_uri: str
    segments_dir: Path
    checkpoint_dir: Path
    jars: tuple[str, ...]
    # A file of the classes that Spark loads, which makes its start quicker. None: there is none.
    class_archive: str | None = None
    # Where the process says how it is. None: nowhere.
    report_url: str | None = None
    # Where to ask for the checkpoints that first syncs need; None: none are made.
    checkpoints_url: str | None = None
    # Where jobs of maintenance are asked for. None: there are none.
    jobs_url: str | None = None
    # Where queries are asked for. None: there are none.
    queries_url: str | None = None
    maintenance: MaintenanceSettings = field(default_factory=MaintenanceSettings)
    # What the gateway wants to see with every request. None: nothing.
    token: str | None = field(default=None, repr=False)
    master: str = "local[*]"
    driver_memory: str = "2g"
    warehouse: str = "lake"
    # How files are written, of every table that does not say otherwise.
    parquet: ParquetSettings = field(default_factory=ParquetSettings)
    tables: Mapping[TableName, TableSettings] = field(default_factory=lambda: MappingProxyType({}))
    trigger_s: float = 1.0
    parallel_tables: int = 4
    # Passes of up to so many changes are written on the driver, without a Spark job. 0: Spark writes everything.
    driver_rows_max: int = 4_000_000
    # Failures of the store in a row until it is left alone, and for how long.
    breaker_failures: int = 5
    breaker_open_s: float = 30.0
    # Leave when standard input ends: whoever holds its other end is gone.
    tied_to_stdin: bool = True
    # Where tables in Delta's format are: a folder, or s3://bucket/prefix. None: there are none.
    delta_url: str | None = None
    # More properties of the catalog and of Spark, for what has no setting of its own.
    catalog_properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    spark: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        if self.trigger_s <= 0:
            raise Invalid(f"trigger_s. expected=more than 0 got={self.trigger_s}")
        if self.parallel_tables < 1:
            raise Invalid(f"parallel_tables. expected=at least 1 got={self.parallel_tables}")
        if self.driver_rows_max < 0:
            raise Invalid(f"driver_rows_max. expected=at least 0 got={self.driver_rows_max}")

    def table(self, name: TableName) -> TableSettings:
        """How one table is stored."""
        return self.tables.get(name) or TableSettings(parquet=self.parquet)

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
        values["segments_dir"] = Path(values["segments_dir"])
        values["checkpoint_dir"] = Path(values["checkpoint_dir"])
        values["jars"] = tuple(str(jar) for jar in values["jars"])
        try:
            return cls(tables=MappingProxyType(tables), maintenance=maintenance, parquet=parquet, **values)
        except TypeError as error:
            raise Invalid(f"pipeline settings. {error}") from error

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read the settings from JSON text."""
        return cls.from_document(msgspec.json.decode(text))
