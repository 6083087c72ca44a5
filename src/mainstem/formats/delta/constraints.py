"""What a table's constraints say of new rows. delta-rs judges them: the conditions are SQL of its engine."""

import deltalake
import pyarrow as pa

from mainstem.formats.delta.errors import delta_errors
from mainstem.formats.delta.log import Metadata
from mainstem.formats.delta.storage import create_storage

CONSTRAINT = "delta.constraints."


def check_constraints(table: str, metadata: Metadata, rows: pa.Table) -> None:
    """Append the rows to an empty table in memory that has the constraints. Raises Invalid where one does not hold."""
    constraints = {
        name.removeprefix(CONSTRAINT): text
        for name, text in metadata.configuration.items()
        if name.startswith(CONSTRAINT) and text
    }
    if not constraints and '"delta.invariants"' not in metadata.schemaString:
        return
    uri = create_storage("memory://").uri("scratch")
    with delta_errors(table):
        schema = deltalake.Schema.from_json(metadata.schemaString)
        made = deltalake.DeltaTable.create(uri, schema=schema)
        if constraints:
            made.alter.add_constraint(constraints)
        deltalake.write_deltalake(uri, rows, mode="append")
