"""What of the catalog a caller may see and change, decided before an operation is begun.

For a caller that is bound to namespaces or tables, the rest of the catalog does not exist. It may not point a table at
files elsewhere either: reading them through a table of its own would be reading somebody else's. Who may place a table:

    bound to namespaces or tables    in the folder that the catalog gives to that name
    a writer of everything           anywhere in the warehouse
    an admin of everything           anywhere

Nor may it say how much of a log a table covers: a log that finds itself behind its tables goes on as another one, for
everybody.

That a table's paths stay below its location is the catalog's own rule, for everybody: see `catalog.boundaries`.
"""

from collections.abc import Iterable
from typing import Any

from mainstem.admission import Role
from mainstem.catalog import Catalog, NoSuchFunction, NoSuchNamespace, NoSuchTable, NoSuchView, TableIdent
from mainstem.catalog.metadata.boundaries import PATH_PROPERTIES
from mainstem.doors.catalog.answers import Asked
from mainstem.model import Denied, Invalid, NotFound
from mainstem.tables.marks import positions_of
from mainstem.wire import iceberg_rest as wire
from mainstem.wire.iceberg_rest import Operation

_READS = frozenset(
    {
        Operation.CONFIG,
        Operation.LIST_NAMESPACES,
        Operation.LOAD_NAMESPACE,
        Operation.NAMESPACE_EXISTS,
        Operation.LIST_TABLES,
        Operation.LOAD_TABLE,
        Operation.TABLE_EXISTS,
        Operation.REPORT_METRICS,
        Operation.PLAN_SCAN,
        Operation.FETCH_PLAN,
        Operation.CANCEL_PLAN,
        Operation.FETCH_TASKS,
        Operation.LOAD_CREDENTIALS,
        Operation.SIGN,
        Operation.LIST_VIEWS,
        Operation.LOAD_VIEW,
        Operation.VIEW_EXISTS,
        Operation.LIST_FUNCTIONS,
        Operation.LOAD_FUNCTION,
        Operation.LIST_PARTITIONS,
        Operation.PARTITION_STATS,
        Operation.LIST_SCHEMAS,
        Operation.LIST_GENERIC_TABLES,
        Operation.LOAD_GENERIC_TABLE,
    }
)
_VIEWS = frozenset({Operation.LOAD_VIEW, Operation.VIEW_EXISTS, Operation.COMMIT_VIEW, Operation.DROP_VIEW})
_REGISTERS = frozenset({Operation.REGISTER_TABLE, Operation.REGISTER_VIEW})
# Where files are written, and a class of the engine's that decides it.
_PLACING_PROPERTIES = (*PATH_PROPERTIES, "write.location-provider.impl")


def authorize(catalog: Catalog, asked: Asked) -> None:
    """Refuse what the caller may not do: with the error of a thing that does not exist where it may not see it."""
    principal, call = asked.principal, asked.call
    if not principal.has(Role.READER):
        raise Denied(f"the token does not allow this. expected=role {Role.READER} got={principal.role}")
    if call.operation not in _READS and not principal.has(Role.WRITER):
        raise Denied(f"the token does not allow this. expected=role {Role.WRITER} got={principal.role}")
    if call.operation is Operation.SIGN and not principal.has(Role.WRITER):
        _check_reads(wire.decode(asked.body, wire.SignRequest).method)
    if principal.is_unbounded and principal.has(Role.ADMIN):
        return
    _check_names(asked)
    if call.operation in _REGISTERS and not principal.is_unbounded:
        raise Denied("only a token for every namespace may register files that exist already")
    if call.operation not in _READS:
        _check_body(catalog, asked)


def _check_reads(method: str) -> None:
    if method.upper() not in ("GET", "HEAD"):
        raise Denied(f"the token does not allow this. expected=a request that reads got={method:.20}")


def _check_names(asked: Asked) -> None:
    principal, call = asked.principal, asked.call
    if not call.namespace:
        return
    if not principal.covers(".".join(call.namespace)):
        if call.name:
            raise _missing(asked)
        raise NoSuchNamespace(call.namespace)
    if call.name and not principal.may_read(asked.ident.table_name):
        raise _missing(asked)
    if call.name and call.operation not in _READS and not principal.may_write(asked.ident.table_name):
        raise Denied(f"the token does not let {principal.sub!r:.100} change this table. got={asked.ident!s:.200}")
    is_of_whole_namespace = call.operation in (Operation.DROP_NAMESPACE, Operation.UPDATE_NAMESPACE)
    if is_of_whole_namespace and principal.tables is not None:
        raise Denied("the token is for some tables only")


def _missing(asked: Asked) -> NotFound:
    if asked.call.operation is Operation.LOAD_FUNCTION:
        return NoSuchFunction(asked.ident)
    return NoSuchView(asked.ident) if asked.call.operation in _VIEWS else NoSuchTable(asked.ident)


def _check_body(catalog: Catalog, asked: Asked) -> None:
    """The names and the locations that a body brings."""
    match asked.call.operation:
        case Operation.CREATE_NAMESPACE:
            _check_namespace(asked, wire.decode(asked.body, wire.CreateNamespaceRequest).namespace)
        case Operation.CREATE_TABLE:
            table = wire.decode(asked.body, wire.CreateTableRequest)
            _check_new(catalog, asked, table.name, table.location)
            _check_properties(asked, table.properties)
        case Operation.CREATE_GENERIC_TABLE:
            generic = wire.decode(asked.body, wire.CreateGenericTableRequest)
            _check_new(catalog, asked, generic.name, generic.base_location)
            _check_marks(asked, generic.properties)
        case Operation.UPDATE_GENERIC_TABLE:
            _check_marks(asked, wire.decode(asked.body, wire.UpdateGenericTableRequest).properties)
        case Operation.CREATE_VIEW:
            view = wire.decode(asked.body, wire.CreateViewRequest)
            _check_new(catalog, asked, view.name, view.location)
            _check_properties(asked, view.properties)
        case Operation.REGISTER_TABLE | Operation.REGISTER_VIEW:
            registered = wire.decode(asked.body, wire.RegisterViewRequest)
            _check_new(catalog, asked, registered.name, registered.metadata_location)
        case Operation.RENAME_TABLE | Operation.RENAME_VIEW:
            names = wire.decode(asked.body, wire.RenameTableRequest)
            for name in (names.source, names.destination):
                _check_ident(asked, TableIdent(tuple(name.namespace), name.name))
        case Operation.COMMIT_TABLE:
            _check_updates(catalog, asked, asked.ident, wire.decode(asked.body, wire.CommitRequest).updates)
        case Operation.COMMIT_VIEW:
            _check_updates(catalog, asked, asked.ident, wire.decode(asked.body, wire.CommitViewRequest).updates)
        case Operation.COMMIT_TRANSACTION:
            _check_transaction(catalog, asked)
        case _:
            pass


def _check_transaction(catalog: Catalog, asked: Asked) -> None:
    for change in wire.decode(asked.body, wire.CommitTransactionRequest).table_changes:
        if change.identifier is None:
            raise Invalid("a table change names no table. expected=identifier got=none")
        ident = TableIdent(tuple(change.identifier.namespace), change.identifier.name)
        _check_ident(asked, ident)
        _check_updates(catalog, asked, ident, change.updates)


def _check_new(catalog: Catalog, asked: Asked, name: str, location: str | None) -> None:
    ident = TableIdent(asked.call.namespace, name)
    _check_ident(asked, ident)
    _check_location(catalog, asked, ident, location)


def _check_namespace(asked: Asked, levels: Iterable[str]) -> None:
    if not asked.principal.covers(".".join(levels)):
        raise Denied(f"the token is for other namespaces. got={'.'.join(levels)!r:.200}")


def _check_ident(asked: Asked, ident: TableIdent) -> None:
    _check_namespace(asked, ident.namespace)
    if not asked.principal.may_write(ident.table_name):
        raise Denied(f"the token is for other tables. got={str(ident)!r:.200}")


def _check_updates(catalog: Catalog, asked: Asked, ident: TableIdent, updates: Iterable[dict[str, Any]]) -> None:
    for update in updates:
        match update.get("action"):
            case "set-location":
                _check_location(catalog, asked, ident, update.get("location"))
            case "set-properties":
                # The key is called "updated" by clients of the protocol's first years.
                for key in ("updates", "updated"):
                    _check_properties(asked, update.get(key))
            case "add-snapshot":
                snapshot = update.get("snapshot")
                _check_marks(asked, snapshot.get("summary") if isinstance(snapshot, dict) else None)
            case _:
                pass


def _check_properties(asked: Asked, properties: Any) -> None:
    if asked.principal.is_unbounded or not isinstance(properties, dict):
        return
    if any(name in properties for name in _PLACING_PROPERTIES):
        raise Denied(f"only a token for every namespace may set these. got={_PLACING_PROPERTIES}")


def _check_marks(asked: Asked, told: Any) -> None:
    if not asked.principal.is_unbounded and isinstance(told, dict) and positions_of(told):
        raise Denied(f"only a token for every namespace may say what a table covers. got={[*positions_of(told)][:9]}")


def _check_location(catalog: Catalog, asked: Asked, ident: TableIdent, location: Any) -> None:
    """Whether the caller may place the table there: see the top of this module."""
    if location is None:
        return
    if asked.principal.is_unbounded:
        if not catalog.is_in_warehouse(location):
            raise Denied(f"only an admin may choose a place outside the warehouse. got={location!r:.200}")
    elif not catalog.is_place_of(ident, location):
        raise Denied(f"only a token for every namespace may choose a place. got={location!r:.200}")
