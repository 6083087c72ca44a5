"""What a route asks of its caller. Said once, where the route is declared, and checked before it is reached.

    @get("/status", opt=access(Role.READER))

A route that says nothing is for an admin of everything: its author decides who else may call it. A route with an
`access` promises to show a bounded caller its own tables only; one whose figures are those of all tables together
says `overall`, and is for callers without bounds.
"""

from typing import Any

from litestar.connection import ASGIConnection
from litestar.exceptions import PermissionDeniedException
from litestar.handlers.base import BaseRouteHandler

from mainstem.admission import ANYONE, Principal, Role

_ACCESS = "access"
_OVERALL = "overall"


def access(role: Role, *, overall: bool = False) -> dict[str, Any]:
    """For a route's `opt`: who may call it. `overall`: only those to whom every table is their own to see."""
    return {_ACCESS: role, _OVERALL: overall}


def principal_of(scope: Any) -> Principal:
    """Who calls. The gate puts it there; without a gate, as in a test of one door, it is anyone."""
    principal: Principal = scope.get("auth") or ANYONE
    return principal


def check_access(connection: "ASGIConnection[Any, Any, Any, Any]", handler: BaseRouteHandler) -> None:
    """Litestar's guard, for every route of the server."""
    principal = principal_of(connection.scope)
    role = handler.opt.get(_ACCESS)
    if role is None:
        if not (principal.is_unbounded and principal.has(Role.ADMIN)):
            raise PermissionDeniedException("the token does not allow this. expected=role admin on every namespace")
    elif not principal.has(role):
        raise PermissionDeniedException(f"the token does not allow this. expected=role {role} got={principal.role}")
    elif handler.opt.get(_OVERALL) and not principal.is_unbounded:
        raise PermissionDeniedException(f"the token does not allow this. expected=role {role} on every namespace")
