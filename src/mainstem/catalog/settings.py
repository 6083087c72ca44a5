"""What a user can set about the catalog, and the catalog that comes of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec

from mainstem.catalog.access import Access
from mainstem.catalog.catalog import Catalog, Committed
from mainstem.catalog.files import RoutedFiles
from mainstem.catalog.postgres_store import PostgresStore
from mainstem.catalog.sqlite_store import SqliteStore
from mainstem.catalog.store import Store
from mainstem.catalog.tokens import Tokens
from mainstem.runtime.clock import Clock

# Empty text stands for "not set", because TOML has no null.
NOT_SET = ""


class CatalogSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The `[catalog]` section of the configuration."""

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


def open_store(settings: CatalogSettings, data: Path) -> Store:
    """The store that the settings name. Blocks while it is opened."""
    if settings.postgres:
        return PostgresStore(settings.postgres)
    return SqliteStore(catalog_path(data))


def make_catalog(
    settings: CatalogSettings,
    store: Store,
    data: Path,
    clock: Clock,
    on_commit: Callable[[Committed], None] | None = None,
) -> Catalog:
    """The catalog over an open store."""
    return Catalog(
        store=store,
        warehouse=settings.warehouse or str((data / "warehouse").absolute()),
        files=RoutedFiles(settings.io),
        clock=clock,
        on_commit=on_commit,
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
