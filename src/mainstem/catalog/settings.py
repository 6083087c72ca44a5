"""What a user can set about the catalog, and the catalog that comes of it."""

from pathlib import Path
from typing import Annotated

import msgspec

from mainstem.catalog.access.clients import Access
from mainstem.catalog.access.tokens import Tokens
from mainstem.catalog.catalog import Catalog, ReadOther, nothing_read
from mainstem.catalog.files import RoutedFiles
from mainstem.catalog.stores.postgres import PostgresStore
from mainstem.catalog.stores.remote import RemoteStore
from mainstem.catalog.stores.remote_client import RemoteClient, RemoteSettings
from mainstem.catalog.stores.sqlite import SqliteStore
from mainstem.catalog.stores.store import Store
from mainstem.model import Invalid
from mainstem.runtime.clock import Clock

# Empty text stands for "not set", because TOML has no null.
NOT_SET = ""
_HEADER = "header."


class CatalogSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The `[catalog]` section of the configuration."""

    # The address of an Iceberg REST catalog of yours (https://host/catalog, without the /v1): tables are committed to
    # there, and only looked at here. `warehouse` must then say where that catalog puts them. Not set: the server's own.
    uri: str = NOT_SET
    # What that catalog calls the warehouse, where it has several.
    uri_warehouse: str = NOT_SET
    # How one gets in there: a bearer token, or OAuth2 client credentials as `id:secret`.
    token: str = NOT_SET
    # OAuth2 client credentials for the catalog at `uri`.
    credential: str = NOT_SET
    # Where tokens are asked for with them. Not set: the catalog's own /v1/oauth/tokens.
    oauth2_uri: str = NOT_SET
    # The scope that is asked for. Not set: `catalog`.
    scope: str = NOT_SET
    # How often that catalog's tables are looked at: `flush`, `persisted` and queries see commits by this much later.
    poll_s: Annotated[float, msgspec.Meta(ge=0.1)] = 1.0
    # More properties of Iceberg's client for that catalog, such as `header.X-Realm` or `rest.sigv4-enabled`.
    properties: dict[str, str] = {}
    # A PostgreSQL connection string, for several gateways over one catalog. Not set: SQLite in the data folder.
    postgres: str = NOT_SET
    # Where tables are put, such as s3://bucket/folder. Not set: the folder `warehouse` in the data folder.
    warehouse: str = NOT_SET
    # Properties of Iceberg's FileIO, such as s3.endpoint, s3.region, s3.access-key-id and s3.secret-access-key.
    io: dict[str, str] = {}
    # Whether clients that ask for them are given temporary keys for a table's files, by the store's token service
    # (STS AssumeRole). Where it has none, requests are signed. The endpoint not set: s3.endpoint, or Amazon's.
    vend_credentials: bool = False
    # The store's token service. Not set: s3.endpoint, or Amazon's.
    sts_endpoint: str = NOT_SET
    # The role that the keys are made for, as the store names it.
    sts_role: str = NOT_SET
    # How long such keys are good.
    credentials_s: Annotated[int, msgspec.Meta(ge=900, le=43_200)] = 3600
    # Whether requests to S3 are signed for clients that have no keys.
    sign_requests: bool = True
    # Client ids with their secrets. As long as there are none, no token is asked for.
    clients: dict[str, str] = {}
    # What tokens are signed with. Several gateways need the same; not set: a new one at each start.
    token_secret: str = NOT_SET
    # How long a token is good.
    token_s: Annotated[int, msgspec.Meta(gt=0)] = 3600


def catalog_path(data: Path) -> Path:
    """Where the catalog's own database is, unless that is PostgreSQL."""
    return data / "catalog" / "catalog.db"


def remote_settings(settings: CatalogSettings) -> RemoteSettings:
    """How the gateway reaches a catalog that is not its own."""
    headers = {
        name.removeprefix(_HEADER): value for name, value in settings.properties.items() if name.startswith(_HEADER)
    }
    return RemoteSettings(
        uri=settings.uri,
        warehouse=settings.uri_warehouse,
        token=settings.token,
        credential=settings.credential,
        oauth2_uri=settings.oauth2_uri,
        scope=settings.scope,
        headers=headers,
    )


def remote_properties(settings: CatalogSettings) -> dict[str, str]:
    """The same, as Iceberg's own client takes it. Some of it is secret."""
    named = {
        "warehouse": settings.uri_warehouse,
        "token": settings.token,
        "credential": settings.credential,
        "oauth2-server-uri": settings.oauth2_uri,
        "scope": settings.scope,
    }
    return {name: value for name, value in named.items() if value} | settings.properties


def open_store(settings: CatalogSettings, data: Path) -> Store:
    """The store that the settings name. Blocks while it is opened. Raises Invalid where they do not go together."""
    if settings.uri:
        if settings.postgres or not settings.warehouse:
            raise Invalid("[catalog] uri. expected=warehouse, where that catalog puts its tables, and no postgres")
        client = RemoteClient(remote_settings(settings))
        return RemoteStore(client, SqliteStore(catalog_path(data)), settings.uri, settings.poll_s)
    if settings.postgres:
        return PostgresStore(settings.postgres)
    return SqliteStore(catalog_path(data))


def make_catalog(
    settings: CatalogSettings,
    store: Store,
    data: Path,
    clock: Clock,
    read_other: ReadOther = nothing_read,
) -> Catalog:
    """The catalog over an open store. `read_other` reads what tables of other formats consist of."""
    return Catalog(
        store=store,
        warehouse=settings.warehouse or str((data / "warehouse").absolute()),
        files=RoutedFiles(settings.io),
        clock=clock,
        read_other=read_other,
        access=Access(
            settings.io,
            vend_credentials=settings.vend_credentials,
            sign_requests=settings.sign_requests,
            sts_endpoint=settings.sts_endpoint,
            sts_role=settings.sts_role,
            credentials_s=settings.credentials_s,
            clock=clock,
        ),
        tokens=Tokens(settings.clients, settings.token_secret, settings.token_s, clock),
    )
