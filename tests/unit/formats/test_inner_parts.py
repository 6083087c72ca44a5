"""Parts of other projects that they do not promise to keep, and that we lean on: each with the module that does.

Where a new version changes one, this says which, before a request or a scan fails in some other way.
"""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from litestar import Litestar
from pyiceberg import manifest
from pyiceberg.avro.file import AvroFile
from pyiceberg.expressions import visitors
from pyiceberg.table import ManifestGroupPlanner
from pyiceberg.typedef import Record
from uvicorn import Server
from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol


def names(part: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(part).parameters)


def test_iceberg_manifests_are_read_in_the_layout_of_v3() -> None:
    """formats/iceberg/manifests"""
    assert {"referenced_data_file", "content_offset", "content_size_in_bytes", "first_row_id"} <= {
        field.name for field in manifest.DATA_FILE_TYPE[3].fields
    }
    assert 3 in manifest.MANIFEST_ENTRY_SCHEMAS
    assert names(manifest._inherit_from_manifest) == ["entry", "manifest"]
    assert {"input_file", "read_schema", "read_types", "read_enums"} <= set(names(AvroFile))
    assert Record(1, "a")._data == [1, "a"]


def test_iceberg_scans_are_planned_by_its_own_evaluators() -> None:
    """catalog/scan/planning, query/plan"""
    assert names(ManifestGroupPlanner) == ["table_metadata", "io", "row_filter", "case_sensitive", "options"]
    assert names(ManifestGroupPlanner._build_manifest_evaluator) == ["self", "spec_id"]
    assert names(ManifestGroupPlanner._build_partition_evaluator) == ["self", "spec_id"]
    assert names(ManifestGroupPlanner._build_metrics_evaluator) == ["self"]
    assert {"schema", "expr", "case_sensitive"} <= set(names(visitors._InclusiveMetricsEvaluator))


def test_litestar_starts_without_the_plugins_that_we_leave_out() -> None:
    """app/routes"""
    assert names(Litestar._get_default_plugins) == ["plugins"]


def test_uvicorn_is_told_of_signals_by_one_method() -> None:
    """app/serve"""
    assert names(Server.capture_signals) == ["self"]


@pytest.mark.parametrize(
    "name",
    ["connection_made", "connection_lost", "data_received", "handle_websocket_upgrade", "on_message_begin"],
)
def test_uvicorns_http_protocol_has_the_steps_that_are_extended(name: str) -> None:
    """doors/http/bounds, quick, upgrades, held_open"""
    assert name in vars(httptools_impl.HttpToolsProtocol)
    assert httptools_impl.STATUS_LINE[200] == b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    "name", ["frames", "curr_msg_data_type", "close_sent", "queue", "read_paused", "handshake_complete", "writable"]
)
def test_uvicorns_websocket_protocol_keeps_its_state_where_it_was(name: str) -> None:
    """doors/http/ws_protocol, doors/sync/frames"""
    assert f"self.{name}" in inspect.getsource(WebSocketsSansIOProtocol)
    assert names(WebSocketsSansIOProtocol.send_receive_event_to_app) == ["self"]
