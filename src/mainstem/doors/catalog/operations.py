"""What each operation of the Iceberg REST protocol calls in the catalog: `OPERATIONS`, at the end, is the list."""

from collections.abc import Callable
from typing import Any

from mainstem.admission import Role
from mainstem.catalog import (
    Catalog,
    Commit,
    GenericTable,
    LoadedView,
    NewTable,
    NewView,
    NoSuchFunction,
    NoSuchNamespace,
    NoSuchTable,
    NoSuchView,
    TableIdent,
)
from mainstem.catalog.metadata.table import with_referenced_snapshots_only
from mainstem.catalog.scan.planning import Scan, ScanRequest
from mainstem.catalog.values import Loaded, LoadedFile
from mainstem.doors.catalog.answers import UNPROCESSABLE, Answer, Asked, failure, ok
from mainstem.doors.catalog.tables import TABLE_OPERATIONS
from mainstem.model import Denied, Invalid
from mainstem.wire import iceberg_rest as wire
from mainstem.wire.iceberg_rest import Operation

# Half of what the store keeps, so that no retry comes just too late.
IDEMPOTENCY_KEY_LIFETIME = "PT30M"
DELEGATION = "x-iceberg-access-delegation"


def _config(catalog: Catalog, asked: Asked) -> Answer:
    catalog.check_warehouse(asked.query.get("warehouse"))
    return ok(
        {
            "defaults": {},
            "overrides": {},
            "endpoints": list(wire.ENDPOINTS),
            "idempotency-key-lifetime": IDEMPOTENCY_KEY_LIFETIME,
        }
    )


def _list_namespaces(catalog: Catalog, asked: Asked) -> Answer:
    parent = wire.parse_namespace(asked.query.get("parent", ""))
    who = asked.principal
    # On the way to one's own namespaces, those above them are listed; nothing else of them is told.
    if parent and not who.covers(".".join(parent)) and not who.leads_to(".".join(parent)):
        raise NoSuchNamespace(parent)
    found = [
        namespace
        for namespace in catalog.list_namespaces(parent)
        if who.covers(".".join(namespace)) or who.leads_to(".".join(namespace))
    ]
    page = wire.paginate(found, lambda n: n[-1], asked.query.get("pageToken"), asked.query.get("pageSize"))
    return ok({"namespaces": page.entries, "next-page-token": page.next_token})


def _create_namespace(catalog: Catalog, asked: Asked) -> Answer:
    body = wire.decode(asked.body, wire.CreateNamespaceRequest)
    catalog.create_namespace(body.namespace, body.properties or {})
    return ok({"namespace": body.namespace, "properties": body.properties or {}})


def _load_namespace(catalog: Catalog, asked: Asked) -> Answer:
    properties = catalog.namespace_properties(asked.call.namespace)
    return ok({"namespace": asked.call.namespace, "properties": properties})


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
        return failure(f"Invalid namespace update: cannot simultaneously set and remove keys: {both}", *UNPROCESSABLE)
    removed, missing = catalog.update_namespace(asked.call.namespace, removals, updates)
    return ok({"updated": list(updates), "removed": removed, "missing": missing})


def _list_tables(catalog: Catalog, asked: Asked) -> Answer:
    return _identifiers(catalog.list_tables(asked.call.namespace), asked)


def _identifiers(found: list[TableIdent], asked: Asked) -> Answer:
    found = [ident for ident in found if asked.principal.may_read(ident.table_name)]
    page = wire.paginate(found, lambda t: t.name, asked.query.get("pageToken"), asked.query.get("pageSize"))
    entries = [{"namespace": ident.namespace, "name": ident.name} for ident in page.entries]
    return ok({"identifiers": entries, "next-page-token": page.next_token})


def _create_table(catalog: Catalog, asked: Asked) -> Answer:
    body = wire.decode(asked.body, wire.CreateTableRequest)
    new = NewTable(body.schema, body.partition_spec, body.write_order, body.location, body.properties or {})
    create = catalog.stage_table if body.stage_create else catalog.create_table
    return _table(catalog, asked, create(asked.call.namespace, body.name, new))


def _register_table(catalog: Catalog, asked: Asked) -> Answer:
    body = wire.decode(asked.body, wire.RegisterTableRequest)
    overwrite = bool(body.overwrite)
    loaded = catalog.register_table(asked.call.namespace, body.name, body.metadata_location, overwrite=overwrite)
    return _table(catalog, asked, loaded)


def _load_table(catalog: Catalog, asked: Asked) -> Answer:
    snapshots = snapshots_shown(asked)
    known = asked.headers.get("if-none-match")
    if known is not None:
        current = wire.etag(catalog.metadata_location(asked.ident), variant(asked, snapshots))
        if wire.is_match(known, current):
            return Answer(304, headers={"ETag": current})
    if snapshots == "all":
        return _shown(catalog, asked, catalog.load_file(asked.ident), snapshots)
    return _table(catalog, asked, catalog.load_table(asked.ident), snapshots)


def _table_exists(catalog: Catalog, asked: Asked) -> Answer:
    if not catalog.table_exists(asked.ident):
        raise NoSuchTable(asked.ident)
    return Answer(204)


def _commit_table(catalog: Catalog, asked: Asked) -> Answer:
    body = wire.decode(asked.body, wire.CommitRequest)
    return _table(catalog, asked, catalog.commit_table(Commit(asked.ident, body.requirements, body.updates)))


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
    return _table(catalog, asked, catalog.unregister_table(asked.ident))


def _report_metrics(catalog: Catalog, asked: Asked) -> Answer:
    # Engines send these unasked after every scan and commit.
    report = wire.decode(asked.body, wire.ReportMetricsRequest)
    catalog.metadata_location(asked.ident)
    catalog.reports.add(report.report_type, report.metrics)
    return Answer(204)


def _rename_table(catalog: Catalog, asked: Asked) -> Answer:
    body = wire.decode(asked.body, wire.RenameTableRequest)
    catalog.rename_table(_ident(body.source), _ident(body.destination))
    return Answer(204)


def _plan_scan(catalog: Catalog, asked: Asked) -> Answer:
    plan_id, scan = catalog.plan_scan(asked.ident, wire.decode(asked.body or b"{}", ScanRequest))
    return ok({"status": "completed", "plan-id": plan_id, **_tasks(scan)})


def _fetch_plan(catalog: Catalog, asked: Asked) -> Answer:
    return ok({"status": "completed", **_tasks(catalog.planned_scan(asked.ident, asked.call.plan_id))})


def _cancel_plan(catalog: Catalog, asked: Asked) -> Answer:
    catalog.cancel_scan(asked.ident, asked.call.plan_id)
    return Answer(204)


def _fetch_tasks(catalog: Catalog, asked: Asked) -> Answer:
    body = wire.decode(asked.body, wire.FetchTasksRequest)
    return ok(_tasks(catalog.scan_tasks(asked.ident, body.plan_task)))


def _tasks(scan: Scan) -> dict[str, Any]:
    found = {
        "plan-tasks": scan.plan_tasks,
        "file-scan-tasks": scan.file_tasks,
        # Clients refuse delete files that no task refers to.
        "delete-files": scan.delete_files,
    }
    return {key: value for key, value in found.items() if value or key == "file-scan-tasks"}


def _credentials(catalog: Catalog, asked: Asked) -> Answer:
    # Keys can read and write, and outlive a token: a client that is bound to a part has requests signed.
    is_given = asked.principal.is_unbounded and asked.principal.has(Role.WRITER)
    found = catalog.access.credentials(catalog.location(asked.ident)) if is_given else {}
    return ok({"storage-credentials": wire.credentials(found)})


def _sign(catalog: Catalog, asked: Asked) -> Answer:
    body = wire.decode(asked.body, wire.SignRequest)
    if body.provider not in (None, "s3"):
        raise Invalid(f"provider is unknown. expected=s3 got={body.provider!r:.100}")
    try:
        headers = catalog.sign(
            asked.ident, method=body.method, uri=body.uri, region=body.region, headers=body.headers, body=body.body
        )
    except NoSuchTable as error:
        # The protocol has no other way to refuse a signature.
        raise Denied(f"nothing to sign for. got={error}") from error
    return ok({"uri": body.uri, "headers": headers})


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


def _list_functions(catalog: Catalog, asked: Asked) -> Answer:
    # The protocol can read functions and not make any, and neither can we: there are none.
    catalog.namespace_properties(asked.call.namespace)
    nothing: list[str] = []
    page = wire.paginate(nothing, lambda name: name, asked.query.get("pageToken"), asked.query.get("pageSize"))
    return ok({"identifiers": page.entries, "next-page-token": page.next_token})


def _load_function(catalog: Catalog, asked: Asked) -> Answer:
    catalog.namespace_properties(asked.call.namespace)
    raise NoSuchFunction(asked.ident)


def _list_generic(catalog: Catalog, asked: Asked) -> Answer:
    return _identifiers(catalog.generic.list(asked.call.namespace), asked)


def _create_generic(catalog: Catalog, asked: Asked) -> Answer:
    body = wire.decode(asked.body, wire.CreateGenericTableRequest)
    table = GenericTable(body.name, body.format, body.base_location, body.doc, body.properties or {})
    return _generic(catalog.generic.create(asked.call.namespace, table))


def _load_generic(catalog: Catalog, asked: Asked) -> Answer:
    return _generic(catalog.generic.load(asked.ident))


def _update_generic(catalog: Catalog, asked: Asked) -> Answer:
    body = wire.decode(asked.body, wire.UpdateGenericTableRequest)
    return _generic(catalog.generic.update(asked.ident, body.properties))


def _drop_generic(catalog: Catalog, asked: Asked) -> Answer:
    catalog.generic.drop(asked.ident)
    return Answer(204)


def _generic(table: GenericTable) -> Answer:
    told = {
        "name": table.name,
        "format": table.format,
        "base-location": table.base_location,
        "doc": table.doc,
        "properties": table.properties,
    }
    return ok({"table": told})


def _ident(identifier: wire.Identifier) -> TableIdent:
    return TableIdent(tuple(identifier.namespace), identifier.name)


def _table(catalog: Catalog, asked: Asked, loaded: Loaded, snapshots: str = "all") -> Answer:
    raw, location = loaded.stored.raw, loaded.stored.document["location"]
    if snapshots == "refs":
        raw = wire.encode(with_referenced_snapshots_only(loaded.stored.document))
    return _shown(catalog, asked, LoadedFile(loaded.metadata_location, location, raw), snapshots)


def _shown(catalog: Catalog, asked: Asked, file: LoadedFile, snapshots: str) -> Answer:
    headers = {}
    grant = catalog.access.grant(file.location, _delegation(asked))
    # Keys end before the table changes: such an answer is not to be kept, neither here nor by the client.
    if file.metadata_location is not None and not grant.credentials:
        headers["ETag"] = wire.etag(file.metadata_location, variant(asked, snapshots))
    config = dict(grant.config)
    if grant.is_signed:
        config["signer.endpoint"] = wire.sign_path(asked.ident.namespace, asked.ident.name or _name(asked))
    body = wire.encode_load_table(
        file.metadata_location, file.raw, config, wire.credentials(grant.credentials), is_signed=grant.is_signed
    )
    return Answer(200, body, headers, file.metadata_location)


def _delegation(asked: Asked) -> str | None:
    """The ways to reach files that the client knows and may use."""
    ways = asked.headers.get(DELEGATION)
    if ways is None or (asked.principal.is_unbounded and asked.principal.has(Role.WRITER)):
        return ways
    return ",".join(way for way in ways.split(",") if way.strip() != "vended-credentials")


def _name(asked: Asked) -> str:
    """The table's name where it stands in the body: at its creation."""
    return wire.decode(asked.body, wire.Named).name


def snapshots_shown(asked: Asked) -> str:
    """Which snapshots a client wants to see: all of them, or those that a branch or a tag names."""
    snapshots = asked.query.get("snapshots", "all")
    if snapshots not in ("all", "refs"):
        raise Invalid(f"snapshots is unknown. expected=all or refs got={snapshots!r}")
    return snapshots


def variant(asked: Asked, snapshots: str) -> str:
    """What else an answer depends on: a client with keys must not be told that nothing changed by one without."""
    return f"{snapshots} {_delegation(asked) or ''}"


def _view(loaded: LoadedView) -> Answer:
    headers = {"ETag": wire.etag(loaded.metadata_location, "view")}
    return Answer(200, wire.encode_load_table(loaded.metadata_location, loaded.stored.raw), headers)


OPERATIONS: dict[Operation, Callable[[Catalog, Asked], Answer]] = {
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
    Operation.LOAD_CREDENTIALS: _credentials,
    Operation.SIGN: _sign,
    Operation.LIST_VIEWS: _list_views,
    Operation.CREATE_VIEW: _create_view,
    Operation.REGISTER_VIEW: _register_view,
    Operation.LOAD_VIEW: _load_view,
    Operation.VIEW_EXISTS: _view_exists,
    Operation.COMMIT_VIEW: _commit_view,
    Operation.DROP_VIEW: _drop_view,
    Operation.RENAME_VIEW: _rename_view,
    **TABLE_OPERATIONS,
    Operation.LIST_FUNCTIONS: _list_functions,
    Operation.LOAD_FUNCTION: _load_function,
    Operation.LIST_GENERIC_TABLES: _list_generic,
    Operation.CREATE_GENERIC_TABLE: _create_generic,
    Operation.LOAD_GENERIC_TABLE: _load_generic,
    Operation.UPDATE_GENERIC_TABLE: _update_generic,
    Operation.DROP_GENERIC_TABLE: _drop_generic,
}
