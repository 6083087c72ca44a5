"""Which operation a request line asks for.

The routes are a table, and the list of endpoints that clients read from `/v1/config` is made from it. Paths are read
undecoded: a namespace or a table name may hold a slash, which is only told from a separator before decoding.
"""

from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote

LEVEL_SEPARATOR = "\x1f"
# Request lines that are not read again.
CALLS_MAX = 16_384


class Operation(StrEnum):
    """What a client can ask of the catalog."""

    CONFIG = "config"
    LIST_NAMESPACES = "list-namespaces"
    CREATE_NAMESPACE = "create-namespace"
    LOAD_NAMESPACE = "load-namespace"
    NAMESPACE_EXISTS = "namespace-exists"
    DROP_NAMESPACE = "drop-namespace"
    UPDATE_NAMESPACE = "update-namespace"
    LIST_TABLES = "list-tables"
    CREATE_TABLE = "create-table"
    REGISTER_TABLE = "register-table"
    LOAD_TABLE = "load-table"
    TABLE_EXISTS = "table-exists"
    COMMIT_TABLE = "commit-table"
    DROP_TABLE = "drop-table"
    UNREGISTER_TABLE = "unregister-table"
    REPORT_METRICS = "report-metrics"
    RENAME_TABLE = "rename-table"
    COMMIT_TRANSACTION = "commit-transaction"
    PLAN_SCAN = "plan-scan"
    FETCH_PLAN = "fetch-plan"
    CANCEL_PLAN = "cancel-plan"
    FETCH_TASKS = "fetch-tasks"
    LOAD_CREDENTIALS = "load-credentials"
    SIGN = "sign"
    LIST_VIEWS = "list-views"
    CREATE_VIEW = "create-view"
    REGISTER_VIEW = "register-view"
    LOAD_VIEW = "load-view"
    VIEW_EXISTS = "view-exists"
    COMMIT_VIEW = "commit-view"
    DROP_VIEW = "drop-view"
    RENAME_VIEW = "rename-view"
    LIST_FUNCTIONS = "list-functions"
    LOAD_FUNCTION = "load-function"
    # Not the protocol's, but Mainstem's own.
    LIST_PARTITIONS = "list-partitions"
    SET_PARTITIONS = "set-partitions"
    PARTITION_STATS = "partition-stats"
    LIST_SCHEMAS = "list-schemas"
    SET_SCHEMA = "set-schema"
    LIST_GENERIC_TABLES = "list-generic-tables"
    CREATE_GENERIC_TABLE = "create-generic-table"
    LOAD_GENERIC_TABLE = "load-generic-table"
    UPDATE_GENERIC_TABLE = "update-generic-table"
    DROP_GENERIC_TABLE = "drop-generic-table"


class Call(NamedTuple):
    """An operation and the names that stand in its path."""

    operation: Operation
    namespace: tuple[str, ...] = ()
    # Of the table, the view or the function.
    name: str = ""
    plan_id: str = ""


_ROUTES: tuple[tuple[str, str, Operation], ...] = (
    ("GET", "config", Operation.CONFIG),
    ("GET", "namespaces", Operation.LIST_NAMESPACES),
    ("POST", "namespaces", Operation.CREATE_NAMESPACE),
    ("GET", "namespaces/{namespace}", Operation.LOAD_NAMESPACE),
    ("HEAD", "namespaces/{namespace}", Operation.NAMESPACE_EXISTS),
    ("DELETE", "namespaces/{namespace}", Operation.DROP_NAMESPACE),
    ("POST", "namespaces/{namespace}/properties", Operation.UPDATE_NAMESPACE),
    ("GET", "namespaces/{namespace}/tables", Operation.LIST_TABLES),
    ("POST", "namespaces/{namespace}/tables", Operation.CREATE_TABLE),
    ("POST", "namespaces/{namespace}/register", Operation.REGISTER_TABLE),
    ("GET", "namespaces/{namespace}/tables/{table}", Operation.LOAD_TABLE),
    ("HEAD", "namespaces/{namespace}/tables/{table}", Operation.TABLE_EXISTS),
    ("POST", "namespaces/{namespace}/tables/{table}", Operation.COMMIT_TABLE),
    ("DELETE", "namespaces/{namespace}/tables/{table}", Operation.DROP_TABLE),
    ("POST", "namespaces/{namespace}/tables/{table}/unregister", Operation.UNREGISTER_TABLE),
    ("POST", "namespaces/{namespace}/tables/{table}/metrics", Operation.REPORT_METRICS),
    ("POST", "tables/rename", Operation.RENAME_TABLE),
    ("POST", "transactions/commit", Operation.COMMIT_TRANSACTION),
    ("POST", "namespaces/{namespace}/tables/{table}/plan", Operation.PLAN_SCAN),
    ("GET", "namespaces/{namespace}/tables/{table}/plan/{plan-id}", Operation.FETCH_PLAN),
    ("DELETE", "namespaces/{namespace}/tables/{table}/plan/{plan-id}", Operation.CANCEL_PLAN),
    ("POST", "namespaces/{namespace}/tables/{table}/tasks", Operation.FETCH_TASKS),
    ("GET", "namespaces/{namespace}/tables/{table}/credentials", Operation.LOAD_CREDENTIALS),
    ("POST", "namespaces/{namespace}/tables/{table}/sign", Operation.SIGN),
    ("GET", "namespaces/{namespace}/views", Operation.LIST_VIEWS),
    ("POST", "namespaces/{namespace}/views", Operation.CREATE_VIEW),
    ("POST", "namespaces/{namespace}/register-view", Operation.REGISTER_VIEW),
    ("GET", "namespaces/{namespace}/views/{view}", Operation.LOAD_VIEW),
    ("HEAD", "namespaces/{namespace}/views/{view}", Operation.VIEW_EXISTS),
    ("POST", "namespaces/{namespace}/views/{view}", Operation.COMMIT_VIEW),
    ("DELETE", "namespaces/{namespace}/views/{view}", Operation.DROP_VIEW),
    ("POST", "views/rename", Operation.RENAME_VIEW),
    ("GET", "namespaces/{namespace}/functions", Operation.LIST_FUNCTIONS),
    ("GET", "namespaces/{namespace}/functions/{function}", Operation.LOAD_FUNCTION),
    # Not of the specification: tables of other formats, in the form that Apache Polaris gave them.
    ("GET", "namespaces/{namespace}/generic-tables", Operation.LIST_GENERIC_TABLES),
    ("POST", "namespaces/{namespace}/generic-tables", Operation.CREATE_GENERIC_TABLE),
    ("GET", "namespaces/{namespace}/generic-tables/{table}", Operation.LOAD_GENERIC_TABLE),
    ("POST", "namespaces/{namespace}/generic-tables/{table}", Operation.UPDATE_GENERIC_TABLE),
    ("DELETE", "namespaces/{namespace}/generic-tables/{table}", Operation.DROP_GENERIC_TABLE),
)

# What DoLake calls two of them. They are served and not listed: Iceberg's clients would not know them.
_OTHER_NAMES: tuple[tuple[str, str, Operation], ...] = (
    ("PATCH", "namespaces/{namespace}/properties", Operation.UPDATE_NAMESPACE),
    ("POST", "namespaces/{namespace}/tables/{table}/commits", Operation.COMMIT_TABLE),
)

# Beside the protocol: clients that know it need not hear of these.
_OWN_ROUTES: tuple[tuple[str, str, Operation], ...] = (
    ("GET", "namespaces/{namespace}/tables/{table}/partitions", Operation.LIST_PARTITIONS),
    ("PUT", "namespaces/{namespace}/tables/{table}/partitions", Operation.SET_PARTITIONS),
    ("GET", "namespaces/{namespace}/tables/{table}/partition-stats", Operation.PARTITION_STATS),
    ("GET", "namespaces/{namespace}/tables/{table}/schemas", Operation.LIST_SCHEMAS),
    ("PUT", "namespaces/{namespace}/tables/{table}/schemas", Operation.SET_SCHEMA),
)

# Clients take an endpoint that is not listed for one that they must not call. The config itself is never listed.
ENDPOINTS: tuple[str, ...] = tuple(
    f"{method} /v1/{{prefix}}/{pattern}" for method, pattern, operation in _ROUTES if operation != Operation.CONFIG
)

# How the paths of all operations start.
ROOTS: frozenset[str] = frozenset(pattern.partition("/")[0] for _, pattern, _ in _ROUTES)

_PARSED = tuple(
    (method, tuple(pattern.split("/")), operation)
    for method, pattern, operation in (*_ROUTES, *_OTHER_NAMES, *_OWN_ROUTES)
)


@lru_cache(CALLS_MAX)
def route(method: str, raw_path: str) -> Call | None:
    """The call that a request line means; `raw_path` is undecoded and starts behind `/v1/`. None: no such endpoint."""
    segments = raw_path.split("?", 1)[0].strip("/").split("/")
    for wanted_method, pattern, operation in _PARSED:
        if method == wanted_method and len(segments) == len(pattern):
            names = _match(pattern, segments)
            if names is not None:
                name = names.get("table") or names.get("view") or names.get("function", "")
                return Call(operation, parse_namespace(names.get("namespace", "")), name, names.get("plan-id", ""))
    return None


def methods(raw_path: str) -> list[str]:
    """The methods that a path has, sorted; none for a path that does not exist."""
    return sorted({method for method, _, _ in _PARSED if route(method, raw_path) is not None})


def sign_path(namespace: tuple[str, ...], table: str) -> str:
    """Where requests to a table's files are signed, below the catalog's address."""
    return f"v1/namespaces/{quote(LEVEL_SEPARATOR.join(namespace), safe='')}/tables/{quote(table, safe='')}/sign"


def parse_namespace(text: str) -> tuple[str, ...]:
    """The levels of a decoded namespace; none for an empty text."""
    return tuple(text.split(LEVEL_SEPARATOR)) if text else ()


def _match(pattern: tuple[str, ...], segments: list[str]) -> dict[str, str] | None:
    names = {}
    for part, segment in zip(pattern, segments, strict=True):
        if part.startswith("{"):
            if not segment:
                return None
            names[part[1:-1]] = unquote(segment)
        elif part != segment:
            return None
    return names
