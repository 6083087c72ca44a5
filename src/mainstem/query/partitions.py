"""Names of the partitions that a plan's files lie in, as `…/partitions` and `/v1/compaction/run` have them."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus

from mainstem.tables.partitions import PartitionField, partition_path

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

    from mainstem.query.delta import DeltaVersion

# Of one scan. How many there are in all is told besides.
NAMED_MAX = 1_000


class Namer:
    """Says in which partition a file of one table lies: empty for a table without partitions."""

    def __init__(self, metadata: Mapping[str, Any], delta: "DeltaVersion | None") -> None:
        self._specs = {} if delta is not None else _fields_of(metadata)
        self._by_path = {} if delta is None else _names_of(delta)

    def name(self, file: "DataFile") -> str:
        """Of one file."""
        if self._by_path:
            return self._by_path.get(str(file.file_path), "")
        fields = self._specs.get(file.spec_id, ())
        return partition_path(fields, [file.partition[number] for number in range(len(fields))])

    def names(self, files: Iterable["DataFile"]) -> tuple[str, ...]:
        """Of some, each once, in order."""
        return tuple(sorted({self.name(file) for file in files} - {""}))


def _fields_of(metadata: Mapping[str, Any]) -> dict[int, tuple[PartitionField, ...]]:
    columns: dict[int, tuple[str, str]] = {}
    for schema in metadata["schemas"]:
        columns |= {field["id"]: (field["name"], str(field["type"])) for field in schema["fields"]}
    return {
        spec["spec-id"]: tuple(
            PartitionField(field["name"], str(field["transform"]), *columns.get(field.get("source-id", -1), ("", "")))
            for field in spec["fields"]
        )
        for spec in metadata.get("partition-specs") or ()
    }


def _names_of(delta: "DeltaVersion") -> dict[str, str]:
    from mainstem.formats.delta.schema import schema_of

    schema = schema_of(delta.state.metadata)
    # A mapped column stands in the log under the name that its files have for it.
    by = [(name, schema.fields[name].physical) for name in schema.partition_by]
    return {
        file.path: "/".join(f"{quote_plus(name)}={_shown(file.partitionValues.get(stored))}" for name, stored in by)
        for file in delta.state.files.values()
    }


def _shown(value: str | None) -> str:
    return "null" if value is None else quote_plus(value)
