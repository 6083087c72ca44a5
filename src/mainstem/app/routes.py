"""The HTTP application: every door's routes, and what stands before them."""

from dataclasses import dataclass

from litestar import Litestar, Router
from litestar.exceptions import HTTPException
from litestar.plugins import PluginProtocol
from litestar.plugins.core import MsgspecDIPlugin
from litestar.types import ASGIApp

from mainstem.admission import Authenticator, Principal, Rates, Role
from mainstem.app.config import Config
from mainstem.app.insight import Observer
from mainstem.app.pages.activity import Activity
from mainstem.app.pages.letters import DeadLetters
from mainstem.app.pages.tables import Tables
from mainstem.app.spark.queries import SparkQueries
from mainstem.app.statuses import Refusals, Statuses
from mainstem.app.tuning import Tuner
from mainstem.app.version import VERSION
from mainstem.catalog import Catalog
from mainstem.catalog.access.tokens import TokenExpired, TokenRefused
from mainstem.doors.admin.activity import activity_router
from mainstem.doors.admin.config import config_router
from mainstem.doors.admin.insight import insight_router
from mainstem.doors.admin.letters import letters_router
from mainstem.doors.admin.loads import loads_router
from mainstem.doors.admin.maintenance import compaction_router
from mainstem.doors.admin.server import operations_router
from mainstem.doors.admin.tables import tables_router
from mainstem.doors.catalog.door import CatalogDoor, before, catalog_router
from mainstem.doors.cdc.ws import CdcDoor, cdc_route
from mainstem.doors.console.door import console_router, openapi_config, sign_in, sign_in_policy
from mainstem.doors.http.access import check_access
from mainstem.doors.http.auth import AuthGate
from mainstem.doors.http.bodies import check_body
from mainstem.doors.http.lakehouse import UnderLakehouse
from mainstem.doors.http.origins import Origins
from mainstem.doors.http.rates import Limited
from mainstem.doors.http.refusals import failed, refused
from mainstem.doors.ingest.debezium_login import debezium_login_router
from mainstem.doors.query.spark import spark_queries_router
from mainstem.doors.sync.door import SyncDoor
from mainstem.maintenance.maintainer import Maintainer
from mainstem.model import MainstemError
from mainstem.runtime.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Mounted:
    """What answers behind the routes."""

    operations: Statuses
    door: CdcDoor
    catalog_door: CatalogDoor
    queries: tuple[Router, ...]
    ingest: tuple[Router, ...]
    tuner: Tuner
    observer: Observer
    tables: Tables
    dead_letters: DeadLetters
    activity: Activity
    maintainer: Maintainer
    spark: SparkQueries
    clock: Clock


class _Routes(Litestar):
    """Litestar, less its plugins for pydantic and attrs, whose import takes 0.1 s: we have no such models."""

    @staticmethod
    def _get_default_plugins(plugins: list[PluginProtocol]) -> list[PluginProtocol]:
        return [*plugins, MsgspecDIPlugin()]


def make_routes(mounted: Mounted) -> Litestar:
    """Every route, without the gate before it."""
    return _Routes(
        route_handlers=[
            cdc_route(mounted.door),
            operations_router(mounted.operations),
            catalog_router(mounted.catalog_door),
            *mounted.queries,
            config_router(mounted.tuner),
            insight_router(mounted.observer),
            *mounted.ingest,
            debezium_login_router(mounted.clock),
            tables_router(mounted.tables),
            letters_router(mounted.dead_letters),
            activity_router(mounted.activity),
            console_router(mounted.clock),
            compaction_router(mounted.maintainer),
            loads_router(mounted.maintainer.loads(mounted.tuner.config.pipeline.load_from)),
            spark_queries_router(mounted.spark),
        ],
        openapi_config=openapi_config(VERSION),
        logging_config=None,
        guards=[check_access],
        before_request=check_body,
        exception_handlers={MainstemError: failed, HTTPException: refused},
    )


def guarded(
    routes: Litestar,
    *,
    config: Config,
    catalog: Catalog,
    catalog_door: CatalogDoor,
    sync_door: SyncDoor,
    authenticator: Authenticator,
    rates: Rates,
    refusals: Refusals,
    clock: Clock,
) -> ASGIApp:
    """Limits, then the gate, then the doors that need no framework, then the routes."""

    def catalog_client(path: str, token: str) -> Principal | None:
        """A client with a token that the catalog gave out, on the catalog's own paths."""
        if not catalog.tokens.is_required or not path.startswith("/v1/"):
            return None
        try:
            client = catalog.tokens.check(token)
        except (TokenExpired, TokenRefused):
            return None
        return Principal(sub=client, role=Role.WRITER, namespaces=None)

    gate = AuthGate(
        sync_door.before(before(routes, catalog_door)),
        authenticator,
        clock,
        fallback=catalog_client,
        gives_tokens=catalog.tokens.is_required,
        origins=Origins(config.server.hosts, is_cross_origin=sync_door.is_cross_origin),
        sign_in=sign_in,
        sign_in_policy=sign_in_policy(),
        refuses_itself=sync_door.is_ours,
        find=catalog_door.at_hand,
        refused=refusals.by_gate,
    )
    waits_s = config.server.request_timeout_s
    limited = Limited(gate, rates, clock, find=gate.at_hand, request_timeout_s=waits_s, refused=refusals.by_status)
    return UnderLakehouse(limited, find=limited.at_hand, request_timeout_s=waits_s)
