"""Where the pipeline's Delta tables are, and how the catalog hears of them.

The catalog lists them as generic tables (name, format, location), so that engines which ask the catalog find them, and
an Iceberg client is told what it is instead of being shown nothing.
"""

import urllib.error
import urllib.parse
from collections.abc import Mapping

import msgspec

from mainstem.formats.delta.storage import storage_by_properties
from mainstem.model.errors import Invalid
from mainstem.model.names import TableName
from mainstem.pipeline.channel import Channel
from mainstem.pipeline.delta.table import DeltaLake
from mainstem.pipeline.settings import PipelineSettings
from mainstem.runtime.clock import Clock

TIMEOUT_S = 30.0
_CONFLICT = 409


def delta_lake(settings: PipelineSettings, clock: Clock, application: str) -> DeltaLake | None:
    """The lake that the settings name, None where they name none."""
    if settings.delta_url is None:
        return None
    storage = storage_by_properties(settings.delta_url, settings.catalog_properties)
    enter = Listing(settings.listing_uri or settings.catalog_uri, settings.token).enter
    return DeltaLake(storage, clock, enter, settings.catalog_properties, application)


class Listing:
    """Enters tables into the catalog, once each; one that is there already is fine."""

    def __init__(self, url: str, token: str | None) -> None:
        self._channel = Channel(f"{url.rstrip('/')}/v1", token)
        self._entered: set[TableName] = set()

    def enter(self, name: TableName, location: str) -> None:
        """Make sure that the catalog lists a table."""
        if name in self._entered:
            return
        for depth in range(1, len(name.levels) + 1):
            self._post("namespaces", {"namespace": list(name.levels[:depth])})
        namespace = urllib.parse.quote("\x1f".join(name.levels), safe="")
        table = {"name": name.table, "format": "delta", "base-location": location}
        self._post(f"namespaces/{namespace}/generic-tables", table)
        self._entered.add(name)

    def _post(self, path: str, body: Mapping[str, object]) -> None:
        try:
            self._channel.post(f"/{path}", msgspec.json.encode(body), timeout_s=TIMEOUT_S)
        except urllib.error.HTTPError as error:
            if error.code != _CONFLICT:
                text = error.read(500).decode(errors="replace")
                raise Invalid(f"the catalog refused a Delta table. path={path} status={error.code} {text}") from error
