"""The Iceberg REST protocol, sans I/O: paths and bodies in, values out; values in, bodies out."""

from mainstem.wire.iceberg_rest.messages import (
    CommitRequest,
    CommitTransactionRequest,
    CommitViewRequest,
    CreateNamespaceRequest,
    CreateTableRequest,
    CreateViewRequest,
    Identifier,
    RegisterTableRequest,
    RegisterViewRequest,
    RenameTableRequest,
    UpdateNamespaceRequest,
    decode,
    encode,
    encode_error,
    encode_load_table,
    etag,
)
from mainstem.wire.iceberg_rest.pages import Page, paginate
from mainstem.wire.iceberg_rest.routes import ENDPOINTS, Call, Operation, parse_namespace, route

__all__ = [
    "ENDPOINTS",
    "Call",
    "CommitRequest",
    "CommitTransactionRequest",
    "CommitViewRequest",
    "CreateNamespaceRequest",
    "CreateTableRequest",
    "CreateViewRequest",
    "Identifier",
    "Operation",
    "Page",
    "RegisterTableRequest",
    "RegisterViewRequest",
    "RenameTableRequest",
    "UpdateNamespaceRequest",
    "decode",
    "encode",
    "encode_error",
    "encode_load_table",
    "etag",
    "paginate",
    "parse_namespace",
    "route",
]
