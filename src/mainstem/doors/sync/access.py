"""Who talks to the sync door, for which gateway, and for which of its tables."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from mainstem.admission import ANYONE, Principal, Role, Unauthenticated
from mainstem.feeds.rules import TableScope
from mainstem.model.errors import Denied
from mainstem.model.names import TableName
from mainstem.wire.sync import SyncPush


class Caller(NamedTuple):
    """The principal that the gate let in. `client` None: no token was asked for, and clients are who they say."""

    client: str | None
    principal: Principal

    @property
    def is_unbounded(self) -> bool:
        """Whether every gateway and table is its own."""
        return self.client is None or (self.principal.gw is None and self.principal.is_unbounded)

    def reaches(self, gateway: str) -> bool:
        """Whether a gateway is the token's. `gw` names it, and a `namespace` beside it has to cover it too; without
        `gw`, an admin has the gateways of its namespaces."""
        principal = self.principal
        if self.client is None:
            return True
        if principal.gw is None:
            return principal.has(Role.ADMIN) and principal.covers(gateway)
        return principal.gw == gateway and (principal.namespaces == () or principal.covers(gateway))

    def scope(self, gateway: str) -> TableScope | None:
        """The tables of a gateway that the token is for; None for every one."""
        tables = self.principal.tables
        return None if tables is None else TableScope(gateway, tables)

    def sees(self, name: TableName) -> bool:
        """Whether a table is there for it."""
        scope = self.scope(name.namespace)
        return self.reaches(name.namespace) and (scope is None or scope.sees(name.table))

    def check_gateway(self, gateway: str) -> None:
        """Refuse a gateway that is not the token's."""
        if not self.reaches(gateway):
            raise Denied(f"the token is for another gateway. expected={self.principal.gw} got={gateway}")

    def check_table(self, gateway: str, table: str) -> None:
        """Refuse a table that the token is not for."""
        scope = self.scope(gateway)
        if scope is not None and not scope.sees(table):
            raise Denied(f"the token is not for this table. expected=one of {list(scope.patterns)} got={table[:255]}")

    def check_every_table(self) -> None:
        """Refuse a token for some tables alone: this concerns all tables of a gateway."""
        if self.principal.tables is not None:
            raise Denied("the token does not allow this. expected=one for every table of the gateway")

    def check_unbounded(self) -> None:
        """Refuse a principal that is not an admin of everything."""
        self.check_admin()
        if not self.is_unbounded:
            raise Denied("the token does not allow this. expected=namespace * and no tables")

    def check_admin(self) -> None:
        """Refuse a principal that is no admin."""
        if not self.principal.has(Role.ADMIN):
            raise Denied("the token does not allow this. expected=role admin")

    def check_push(self, push: SyncPush, gateway: str) -> None:
        """Refuse a push in someone else's name, or to a table that the token is not for."""
        self.check_client(push.client_id)
        if self.principal.tables is not None:
            for table in {delta.table for delta in push.deltas}:
                self.check_table(gateway, table)

    def check_client(self, client: str) -> None:
        """Refuse a name that is not the token's."""
        if self.client is not None and client != self.client:
            raise Denied(f"the token is someone else's. expected={self.client} got={client[:64]}")

    def claims_of(self, client: str) -> Mapping[str, Any]:
        """What rules may ask for. Without tokens a client's word for its name is all there is."""
        return self.principal.claims if self.client is not None else {"sub": client}


def caller_of(scope: Any) -> Caller:
    """The caller of a request, from what the gate left in its scope. Raises Unauthenticated."""
    principal = scope.get("auth") or ANYONE
    if isinstance(principal, Unauthenticated):
        raise principal
    return Caller(principal.sub if principal.is_authenticated else None, principal)
