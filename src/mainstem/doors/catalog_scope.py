"""What of the catalog a caller may see and change, decided before an operation is begun.

For a caller that is bound to namespaces or tables, the rest of the catalog does not exist. It may not point a table at
files elsewhere either: reading them through a table of its own would be reading somebody else's.
"""

from collections.abc import Iterable
from typing import Any

from mainstem.admission import Role
from mainstem.catalog import Catalog, NoSuchFunction, NoSuchNamespace, NoSuchTable, NoSuchView, TableIdent
from mainstem.catalog.names import folder_of
from mainstem.doors.catalog_answers import Asked
from mainstem.model import Denied, Invalid, NotFound
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
_PATH_PROPERTIES = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")


def authorize(catalog: Catalog, asked: Asked) -> None:
    """Refuse what the caller may not do: with the error of a thing that does not exist where it may not see it."""
    principal, call = asked.principal, asked.call
    if not principal.has(Role.READER):
        raise Denied(f"the token does not allow this. expected=role {Role.READER} got={principal.role}")
    if call.operation not in _READS and not principal.has(Role.WRITER):
        raise Denied(f"the token does not allow this. expected=role {Role.WRITER} got={principal.role}")
    if call.operation is Operation.SIGN and not principal.has(Role.WRITER):
        _check_reads(wire.decode(asked.body, wire.SignRequest).method)
    if principal.is_unbounded:
        return
    _check_names(asked)
    if call.operation in _REGISTERS:
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
            ident = TableIdent(asked.call.namespace, table.name)
            _check_ident(asked, ident)
            _check_location(catalog, ident, table.location)
            _check_properties(table.properties or {})
        case Operation.CREATE_GENERIC_TABLE:
            generic = wire.decode(asked.body, wire.CreateGenericTableRequest)
            ident = TableIdent(asked.call.namespace, generic.name)
            _check_ident(asked, ident)
            _check_location(catalog, ident, generic.base_location)
        case Operation.CREATE_VIEW:
            view = wire.decode(asked.body, wire.CreateViewRequest)
            ident = TableIdent(asked.call.namespace, view.name)
            _check_ident(asked, ident)
            _check_location(catalog, ident, view.location)
        case Operation.RENAME_TABLE | Operation.RENAME_VIEW:
            names = wire.decode(asked.body, wire.RenameTableRequest)
            for name in (names.source, names.destination):
                _check_ident(asked, TableIdent(tuple(name.namespace), name.name))
        case Operation.COMMIT_TABLE:
            _check_updates(catalog, asked.ident, wire.decode(asked.body, wire.CommitRequest).updates)
        case Operation.COMMIT_VIEW:
            _check_updates(catalog, asked.ident, wire.decode(asked.body, wire.CommitViewRequest).updates)
        case Operation.COMMIT_TRANSACTION:
            for change in wire.decode(asked.body, wire.CommitTransactionRequest).table_changes:
                if change.identifier is None:
                    raise Invalid("a table change names no table. expected=identifier got=none")
                ident = TableIdent(tuple(change.identifier.namespace), change.identifier.name)
                _check_ident(asked, ident)
                _check_updates(catalog, ident, change.updates)
        case _:
            pass


def _check_namespace(asked: Asked, levels: Iterable[str]) -> None:
    if not asked.principal.covers(".".join(levels)):
        raise Denied(f"the token is for other namespaces. got={'.'.join(levels)!r:.200}")


def _check_ident(asked: Asked, ident: TableIdent) -> None:
    _check_namespace(asked, ident.namespace)
    if not asked.principal.may_write(ident.table_name):
        raise Denied(f"the token is for other tables. got={str(ident)!r:.200}")


def _check_updates(catalog: Catalog, ident: TableIdent, updates: Iterable[dict[str, Any]]) -> None:
    for update in updates:
        match update.get("action"):
            case "set-location":
                _check_location(catalog, ident, update.get("location"))
            case "add-snapshot":
                snapshot = update.get("snapshot")
                manifests = snapshot.get("manifest-list") if isinstance(snapshot, dict) else None
                _check_location(catalog, ident, manifests)
            case "set-properties":
                _check_properties(update.get("updates") or {})
            case _:
                pass


def _check_properties(properties: Any) -> None:
    if isinstance(properties, dict) and any(name in properties for name in _PATH_PROPERTIES):
        raise Denied(f"only a token for every namespace may set these. got={_PATH_PROPERTIES}")


def _check_location(catalog: Catalog, ident: TableIdent, location: Any) -> None:
    """A place is the caller's own where it is the table's folder, or lies in it."""
    if location is None:
        return
    text = str(location)
    own = f"{catalog.warehouse}/{folder_of(ident)}"
    # The catalog puts a table whose folder is taken beside it, with an id behind its name.
    folder, _, rest = text.removeprefix(own).partition("/")
    is_own = text.startswith(own) and (folder == "" or (folder.startswith("-") and len(folder) == 9))
    if not is_own or any(part in ("..", ".") for part in rest.split("/")):
        raise Denied(f"only a token for every namespace may choose a place. expected={own} got={text:.200}")
