"""The catalog's door: Iceberg REST over HTTP, at the server's root.

Reads a request, calls the catalog in a worker thread (it blocks on files and on the store), encodes the answer. The
tables at the end of the module are all it decides: which call an operation is, and which code an error becomes.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import anyio
from anyio import to_thread
from litestar import Request, Response, Router, route

from mainstem.catalog import (
    AlreadyExists,
    Catalog,
    Commit,
    CommitFailed,
    IllegalArgument,
    LoadedView,
    NamespaceNotEmpty,
    NewTable,
    NewView,
    NoSuchNamespace,
    NoSuchPlan,
    NoSuchPlanTask,
    NoSuchTable,
    NoSuchView,
    NoSuchWarehouse,
    TableIdent,
    Unsupported,
)
from mainstem.catalog.catalog import Loaded
from mainstem.catalog.metadata import with_referenced_snapshots_only
from mainstem.catalog.planning import Scan, ScanRequest
from mainstem.model import Conflict, Denied, Invalid, MainstemError, NotFound, OutcomeUnknown, Overloaded
from mainstem.wire import iceberg_rest as wire
from mainstem.wire.iceberg_rest import Call, Operation

BODY_BYTES_MAX = 32 * 1024 * 1024
# Commits to one table wait for each other in their threads; the bound keeps them from taking every thread there is.
THREADS_MAX = 24

_logger = logging.getLogger(__name__)


class Answer(NamedTuple):
    """What goes back to the client."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] | None = None


class Asked(NamedTuple):
    """A request, read whole."""

    call: Call
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def ident(self) -> TableIdent:
        """The table or view in the path."""
        return TableIdent(self.call.namespace, self.call.name)


def catalog_router(catalog: Catalog) -> Router:
    """The routes below `/v1`, to be mounted at the root."""
    threads = anyio.CapacityLimiter(THREADS_MAX)

    @route(
        "/{path:path}",
        http_method=["GET", "POST", "HEAD", "DELETE"],
        request_max_body_size=BODY_BYTES_MAX,
        include_in_schema=False,
        status_code=200,
    )
    async def serve(request: Request[Any, Any, Any]) -> Response[bytes]:
        raw_path = request.scope.get("raw_path", b"").decode("ascii", "replace")
        call = wire.route(request.method, raw_path.removeprefix("/v1/"))
        if call is None:
            answer = _failure("No such endpoint", "NotFoundException", 404)
        else:
            asked = Asked(call, request.query_params, request.headers, await request.body())
            answer = await to_thread.run_sync(respond, catalog, asked, limiter=threads)
        return Response(
            answer.body,
            status_code=answer.status,
            media_type="application/json",
            headers=dict(answer.headers) if answer.headers else None,
        )

    return Router(path="/v1", route_handlers=[serve])


def respond(catalog: Catalog, asked: Asked) -> Answer:
    """Answer one request, whatever becomes of it."""
    try:
        return _OPERATIONS[asked.call.operation](catalog, asked)
    except MainstemError as error:
        return _failure_of(error)
    except Exception as error:
        _logger.exception("catalog request failed", extra={"operation": asked.call.operation.value})
        # Clients that commit read a 500 as "unknown whether it happened", which is all that is known here.
        return _failure(f"{type(error).__name__}: {error}", "InternalServerError", 500)


def _config(catalog: Catalog, asked: Asked) -> Answer:
    catalog.check_warehouse(asked.query.get("warehouse"))
    return _ok({"defaults": {}, "overrides": {}, "endpoints": list(wire.ENDPOINTS)})


def _list_namespaces(catalog: Catalog, asked: Asked) -> Answer:
    found = catalog.list_namespaces(wire.parse_namespace(asked.query.get("parent", "")))
    page = wire.paginate(found, lambda n: n[-1], asked.query.get("pageToken"), asked.query.get("pageSize"))
    return _ok({"namespaces": page.entries, "next-page-token": page.next_token})


def _create_namespace(catalog: Catalog, asked: Asked) -> Answer:
    body = wire.decode(asked.body, wire.CreateNamespaceRequest)
    catalog.create_namespace(body.namespace, body.properties or {})
    return _ok({"namespace": body.namespace, "properties": body.properties or {}})


def _load_namespace(catalog: Catalog, asked: Asked) -> Answer:
    properties = catalog.namespace_properties(asked.call.namespace)
    return _ok({"namespace": asked.call.namespace, "properties": properties})


def _namespace_exists(catalog: Catalog, asked: Asked) -> Answer:
    catalog.namespace_properties(asked.call.namespace)
    return Answer(204)


def _drop_namespace(catalog: Catalog, asked: Asked) -> Answer:
    catalog.drop_namespace(asked.call.namespace)
    return Answer(204)


def _update_namespace(catalog: Catalog, asked: Asked) -> Answer:
    body = wire.decode(asked.body, wire.UpdateNamespaceRequest)
    removals, updates = list(dict.fromkeys(body.removals or [])), body.updates or {}
    if both := sorted(updates.keys() & set(removals)):
        return _failure(f"Invalid namespace update: cannot simultaneously set and remove keys: {both}", *_UNPROCESSABLE)
    removed, missing = catalog.update_namespace(asked.call.namespace, removals, updates)
    return _ok({"updated": list(updates), "removed": removed, "missing": missing})


def _list_tables(catalog: Catalog, asked: Asked) -> Answer:
    return _identifiers(catalog.list_tables(asked.call.namespace), asked)


def _identifiers(found: list[TableIdent], asked: Asked) -> Answer:
    page = wire.paginate(found, lambda t: t.name, asked.query.get("pageToken"), asked.query.get("pageSize"))
    entries = [{"namespace": ident.namespace, "name": ident.name} for ident in page.entries]
    return _ok({"identifiers": entries, "next-page-token": page.next_token})


def _create_table(catalog: Catalog, asked: Asked) -> Answer:
    body = wire.decode(asked.body, wire.CreateTableRequest)
    new = NewTable(body.schema, body.partition_spec, body.write_order, body.location, body.properties or {})
    create = catalog.stage_table if body.stage_create else catalog.create_table
    return _table(create(asked.call.namespace, body.name, new))


def _register_table(catalog: Catalog, asked: Asked) -> Answer:
    body = wire.decode(asked.body, wire.RegisterTableRequest)
    overwrite = bool(body.overwrite)
    return _table(catalog.register_table(asked.call.namespace, body.name, body.metadata_location, overwrite=overwrite))


def _load_table(catalog: Catalog, asked: Asked) -> Answer:
    snapshots = asked.query.get("snapshots", "all")
    if snapshots not in ("all", "refs"):
        raise Invalid(f"snapshots is unknown. expected=all or refs got={snapshots!r}")
    known = asked.headers.get("if-none-match")
    if known is not None and wire.etag(catalog.metadata_location(asked.ident), snapshots) == known:
        return Answer(304, headers={"ETag": known})
    return _table(catalog.load_table(asked.ident), snapshots)


def _table_exists(catalog: Catalog, asked: Asked) -> Answer:
    if not catalog.table_exists(asked.ident):
        raise NoSuchTable(asked.ident)
    return Answer(204)


def _commit_table(catalog: Catalog, asked: Asked) -> Answer:
    body = wire.decode(asked.body, wire.CommitRequest)
    return _table(catalog.commit_table(Commit(asked.ident, body.requirements, body.updates)))


def _commit_transaction(catalog: Catalog, asked: Asked) -> Answer:
    commits = []
    for change in wire.decode(asked.body, wire.CommitTransactionRequest).table_changes:
        if change.identifier is None:
            raise Invalid("a table change names no table. expected=identifier got=none")
        commits.append(Commit(_ident(change.identifier), change.requirements, change.updates))
    catalog.commit_transaction(commits)
    return Answer(204)


def _drop_table(catalog: Catalog, asked: Asked) -> Answer:
    catalog.drop_table(asked.ident, purge=asked.query.get("purgeRequested", "").lower() == "true")
    return Answer(204)


def _unregister_table(catalog: Catalog, asked: Asked) -> Answer:
    return _table(catalog.unregister_table(asked.ident))


def _report_metrics(_catalog: Catalog, _asked: Asked) -> Answer:
    # Engines send these unasked after every scan and commit. They are welcome, and nothing is done with them yet.
    return Answer(204)


def _rename_table(catalog: Catalog, asked: Asked) -> Answer:
    body = wire.decode(asked.body, wire.RenameTableRequest)
    catalog.rename_table(_ident(body.source), _ident(body.destination))
    return Answer(204)


def _plan_scan(catalog: Catalog, asked: Asked) -> Answer:
    plan_id, scan = catalog.plan_scan(asked.ident, wire.decode(asked.body or b"{}", ScanRequest))
    return _ok({"status": "completed", "plan-id": plan_id, **_tasks(scan)})


def _fetch_plan(catalog: Catalog, asked: Asked) -> Answer:
    return _ok({"status": "completed", **_tasks(catalog.planned_scan(asked.ident, asked.call.plan_id))})


def _cancel_plan(catalog: Catalog, asked: Asked) -> Answer:
    catalog.cancel_scan(asked.ident, asked.call.plan_id)
    return Answer(204)


def _fetch_tasks(catalog: Catalog, asked: Asked) -> Answer:
    body = wire.decode(asked.body, wire.FetchTasksRequest)
    return _ok(_tasks(catalog.scan_tasks(asked.ident, body.plan_task)))


def _tasks(scan: Scan) -> dict[str, Any]:
    found = {
        "plan-tasks": scan.plan_tasks,
        "file-scan-tasks": scan.file_tasks,
        # Clients refuse delete files that no task refers to.
        "delete-files": scan.delete_files,
    }
    return {key: value for key, value in found.items() if value or key == "file-scan-tasks"}


def _list_views(catalog: Catalog, asked: Asked) -> Answer:
    return _identifiers(catalog.views.list(asked.call.namespace), asked)


def _create_view(catalog: Catalog, asked: Asked) -> Answer:
    body = wire.decode(asked.body, wire.CreateViewRequest)
    new = NewView(body.schema, body.view_version, body.location, body.properties or {})
    return _view(catalog.views.create(asked.call.namespace, body.name, new))


def _register_view(catalog: Catalog, asked: Asked) -> Answer:
    body = wire.decode(asked.body, wire.RegisterViewRequest)
    return _view(catalog.views.register(asked.call.namespace, body.name, body.metadata_location))


def _load_view(catalog: Catalog, asked: Asked) -> Answer:
    return _view(catalog.views.load(asked.ident))


def _view_exists(catalog: Catalog, asked: Asked) -> Answer:
    if not catalog.views.exists(asked.ident):
        raise NoSuchView(asked.ident)
    return Answer(204)


def _commit_view(catalog: Catalog, asked: Asked) -> Answer:
    body = wire.decode(asked.body, wire.CommitViewRequest)
    return _view(catalog.views.commit(asked.ident, body.requirements or [], body.updates))


def _drop_view(catalog: Catalog, asked: Asked) -> Answer:
    catalog.views.drop(asked.ident)
    return Answer(204)


def _rename_view(catalog: Catalog, asked: Asked) -> Answer:
    body = wire.decode(asked.body, wire.RenameTableRequest)
    catalog.views.rename(_ident(body.source), _ident(body.destination))
    return Answer(204)


def _ident(identifier: wire.Identifier) -> TableIdent:
    return TableIdent(tuple(identifier.namespace), identifier.name)


def _ok(body: object) -> Answer:
    return Answer(200, wire.encode(body))


def _table(loaded: Loaded, snapshots: str = "all") -> Answer:
    raw = loaded.stored.raw
    if snapshots == "refs":
        raw = wire.encode(with_referenced_snapshots_only(loaded.stored.document))
    headers = {}
    if loaded.metadata_location is not None:
        headers["ETag"] = wire.etag(loaded.metadata_location, snapshots)
    return Answer(200, wire.encode_load_table(loaded.metadata_location, raw), headers)


def _view(loaded: LoadedView) -> Answer:
    headers = {"ETag": wire.etag(loaded.metadata_location, "view")}
    return Answer(200, wire.encode_load_table(loaded.metadata_location, loaded.stored.raw), headers)


def _failure(message: str, kind: str, code: int) -> Answer:
    return Answer(code, wire.encode_error(message, kind, code))


def _failure_of(error: MainstemError) -> Answer:
    for kind, (name, code) in _CODES.items():
        if isinstance(error, kind):
            answer = _failure(str(error), name, code)
            if isinstance(error, Overloaded):
                return answer._replace(headers={"Retry-After": str(max(1, round(error.retry_after_s)))})
            return answer
    return _failure(str(error), "InternalServerError", 500)


_UNPROCESSABLE = ("UnprocessableEntityException", 422)

# The first entry that fits decides, so the special ones come before the general ones.
_CODES: dict[type[MainstemError], tuple[str, int]] = {
    NoSuchNamespace: ("NoSuchNamespaceException", 404),
    NoSuchTable: ("NoSuchTableException", 404),
    NoSuchView: ("NoSuchViewException", 404),
    NoSuchPlan: ("NoSuchPlanIdException", 404),
    NoSuchPlanTask: ("NoSuchPlanTaskException", 404),
    NoSuchWarehouse: ("NoSuchWarehouseException", 404),
    AlreadyExists: ("AlreadyExistsException", 409),
    NamespaceNotEmpty: ("NamespaceNotEmptyException", 409),
    CommitFailed: ("CommitFailedException", 409),
    Conflict: ("CommitFailedException", 409),
    NotFound: ("NotFoundException", 404),
    IllegalArgument: ("IllegalArgumentException", 400),
    Unsupported: ("UnsupportedOperationException", 406),
    Invalid: ("BadRequestException", 400),
    Denied: ("ForbiddenException", 403),
    Overloaded: ("ServiceUnavailableException", 503),
    OutcomeUnknown: ("CommitStateUnknownException", 500),
}

_OPERATIONS: dict[Operation, Callable[[Catalog, Asked], Answer]] = {
    Operation.CONFIG: _config,
    Operation.LIST_NAMESPACES: _list_namespaces,
    Operation.CREATE_NAMESPACE: _create_namespace,
    Operation.LOAD_NAMESPACE: _load_namespace,
    Operation.NAMESPACE_EXISTS: _namespace_exists,
    Operation.DROP_NAMESPACE: _drop_namespace,
    Operation.UPDATE_NAMESPACE: _update_namespace,
    Operation.LIST_TABLES: _list_tables,
    Operation.CREATE_TABLE: _create_table,
    Operation.REGISTER_TABLE: _register_table,
    Operation.LOAD_TABLE: _load_table,
    Operation.TABLE_EXISTS: _table_exists,
    Operation.COMMIT_TABLE: _commit_table,
    Operation.DROP_TABLE: _drop_table,
    Operation.UNREGISTER_TABLE: _unregister_table,
    Operation.REPORT_METRICS: _report_metrics,
    Operation.RENAME_TABLE: _rename_table,
    Operation.COMMIT_TRANSACTION: _commit_transaction,
    Operation.PLAN_SCAN: _plan_scan,
    Operation.FETCH_PLAN: _fetch_plan,
    Operation.CANCEL_PLAN: _cancel_plan,
    Operation.FETCH_TASKS: _fetch_tasks,
    Operation.LIST_VIEWS: _list_views,
    Operation.CREATE_VIEW: _create_view,
    Operation.REGISTER_VIEW: _register_view,
    Operation.LOAD_VIEW: _load_view,
    Operation.VIEW_EXISTS: _view_exists,
    Operation.COMMIT_VIEW: _commit_view,
    Operation.DROP_VIEW: _drop_view,
    Operation.RENAME_VIEW: _rename_view,
}
