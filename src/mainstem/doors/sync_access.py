"""Who talks to the sync door, and for which gateway."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from mainstem.admission import ANYONE, Role, Unauthenticated
from mainstem.model.errors import Denied
from mainstem.wire.sync import SyncPush


class Caller(NamedTuple):
    """Whoever the gate let in. `client` None: nobody was asked for a token, and everyone is who they say."""

    client: str | None
    gateway: str | None
    admin: bool
    claims: Mapping[str, Any]
    # Whether every gateway is its own.
    everywhere: bool = False

    def check_gateway(self, gateway: str) -> None:
        """Refuse a gateway that is not the token's."""
        if self.client is not None and not self.everywhere and self.gateway != gateway:
            raise Denied(f"the token is for another gateway. expected={self.gateway} got={gateway}")

    def check_admin(self) -> None:
        """Refuse whoever is no admin."""
        if not self.admin:
            raise Denied("the token does not allow this. expected=role admin")

    def check_push(self, push: SyncPush) -> None:
        """Refuse a push in someone else's name."""
        self.check_client(push.client_id)

    def check_client(self, client: str) -> None:
        """Refuse a name that is not the token's."""
        if self.client is not None and client != self.client:
            raise Denied(f"the token is someone else's. expected={self.client} got={client[:64]}")

    def claims_of(self, client: str) -> Mapping[str, Any]:
        """What rules may ask for. Without tokens a client's word for its name is all there is."""
        return self.claims if self.client is not None else {"sub": client}


def caller_of(scope: Any) -> Caller:
    """The caller of a request, from what the gate left in its scope. Raises Unauthenticated."""
    principal = scope.get("auth") or ANYONE
    if isinstance(principal, Unauthenticated):
        raise principal
    if not principal.is_authenticated:
        return Caller(None, None, True, {})
    admin = principal.has(Role.ADMIN)
    # A token for some namespaces is none for the gateways of the others: without a `gw` it has to be for everything.
    everywhere = admin and principal.gw is None and principal.is_unbounded
    return Caller(principal.sub, principal.gw, admin, principal.claims, everywhere)
