"""The console and the API's page: files of this package, served as they are. Nothing is built or fetched elsewhere.

GET  /                  leads to the console
GET  /console           the console; with a token in the header it also keeps it in a cookie, for the browser
GET  /console/query, /console/activity, /console/settings, /console/tables/{name}: its pages, which are the same file
POST /console/sign-out  forgets the cookie
GET  /schema            the API, from the server's own OpenAPI document
"""

import base64
import hashlib
import re
from importlib.resources import files
from typing import Any

from litestar import Request, Response, Router, get, post
from litestar.datastructures import Cookie
from litestar.exceptions import NotFoundException
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin, OpenAPIRenderPlugin
from litestar.params import FromPath
from litestar.response import Redirect

from mainstem.admission import Role
from mainstem.doors.catalog.document import table_paths
from mainstem.doors.http.access import access, principal_of
from mainstem.doors.http.auth import COOKIE
from mainstem.doors.http.bodies import body_schemas
from mainstem.runtime.clock import Clock

AnyRequest = Request[Any, Any, Any]

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

_PAGES = files("mainstem.doors.console") / "pages"
_CONSOLE_PAGE = (_PAGES / "console.html").read_bytes()
_FILES = {each.name: each.read_bytes() for each in _PAGES.iterdir() if each.name.endswith((".js", ".css", ".svg"))}
# The script shows by the address what is asked for.
_PARTS = frozenset(("query", "activity", "settings"))
_SCHEMA_PAGE = (_PAGES / "schema.html").read_bytes()
_SIGN_IN_PAGE = (_PAGES / "signin.html").read_bytes()


def sign_in(path: str) -> bytes | None:
    """What the gate shows a browser that comes to a page of ours without a token. It says nothing of the server."""
    part = path.rstrip("/")
    is_page = part in ("", "/console", "/schema") or part.startswith("/console/tables/")
    return _SIGN_IN_PAGE if is_page or part.removeprefix("/console/") in _PARTS else None


def sign_in_policy() -> bytes:
    """The page stands alone: only its own script and style may run in it."""
    page = _SIGN_IN_PAGE.decode()

    def digest(tag: str) -> str:
        found = re.search(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert found is not None
        return f"'sha256-{base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()}'"

    return (
        f"default-src 'none'; script-src {digest('script')}; style-src {digest('style')}; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ).encode()


def console_router(clock: Clock) -> Router:
    """The routes."""

    @get("/", opt=access(Role.READER))
    async def root() -> Redirect:
        return Redirect("/console")

    @get(["/console", "/console/tables/{name:str}"], opt=access(Role.READER))
    async def console(request: AnyRequest) -> Response[bytes]:
        return page_of(request)

    def page_of(request: AnyRequest) -> Response[bytes]:
        principal = principal_of(request.scope)
        # What the page needs to show no button that this principal may not press.
        told = f'<body data-role="{principal.role}" data-signed-in="{str(principal.is_authenticated).lower()}">'
        page = _CONSOLE_PAGE.replace(b"<body>", told.encode())
        answer = Response(page, media_type=_TYPES["html"], headers=_HEADERS)
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if principal.is_authenticated and scheme.lower() == "bearer" and principal.expires_s is not None:
            left_s = max(0, principal.expires_s - clock.now_ms() // 1000)
            answer.set_cookie(_cookie(request, token.strip(), left_s))
        return answer

    @get("/console/{name:str}", opt=access(Role.READER))
    async def part(request: AnyRequest, name: FromPath[str]) -> Response[bytes]:
        if name in _PARTS:
            return page_of(request)
        if name not in _FILES:
            raise NotFoundException("no such file")
        return Response(_FILES[name], media_type=_TYPES[name.rpartition(".")[2]], headers=_HEADERS)

    @post("/console/sign-out", status_code=204, opt=access(Role.CLIENT))
    async def sign_out(request: AnyRequest) -> Response[None]:
        answer: Response[None] = Response(None, status_code=204)
        answer.set_cookie(_cookie(request, "", 0))
        return answer

    return Router(path="/", route_handlers=[root, console, part, sign_out], include_in_schema=False)


def _cookie(request: AnyRequest, token: str, age_s: int) -> Cookie:
    secure = request.scope["scheme"] == "https"
    return Cookie(COOKIE, value=token, max_age=age_s, path="/", httponly=True, samesite="strict", secure=secure)


class _Document(JsonRenderPlugin):
    """The document, with what holds for every path: who may ask, and how often."""

    def render(self, request: AnyRequest, openapi_schema: dict[str, Any]) -> bytes:
        return self.render_json(request, documented(openapi_schema, body_schemas(request.app), table_paths()))


_EVERYWHERE = {
    "401": "No token, or not a good one",
    "403": "The token does not allow this",
    "429": "Too many requests: ask again after Retry-After",
    "503": "A bound was met: ask again after Retry-After",
}
_NAMED = {"404": "What the path names does not exist"}
_VERBS = ("get", "post", "put", "patch", "delete")


def documented(schema: dict[str, Any], bodies: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """An OpenAPI document with the bodies' own schemas, the gate's and the limits' answers, and `more` paths."""
    refused = {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "code"],
                "properties": {"message": {"type": "string"}, "code": {"type": "integer"}},
            }
        },
    }
    # What the framework says of its own refusals is not what we answer.
    answers = {
        code: {"description": text, "content": {"application/json": {"schema": refused}}}
        for code, text in (_EVERYWHERE | _NAMED).items()
    }
    named = {code: answers.pop(code) for code in _NAMED}
    paths = {
        path: {
            verb: {**told, "responses": {**answers, **(named if "{" in path else {}), **_ours(told, answers)}}
            if verb in _VERBS
            else told
            for verb, told in item.items()
        }
        for path, item in (schema["paths"] | more).items()
    }
    bearer = {"type": "http", "scheme": "bearer", "bearerFormat": "JWT", "description": "Not needed on loopback."}
    components = {**schema.get("components", {}), "securitySchemes": {"token": bearer}}
    # A name that a body does not have is refused, wherever it stands.
    known = {**components["schemas"], **bodies}
    components["schemas"] = known | {name: {**known[name], "additionalProperties": False} for name in _bodies(schema)}
    return {**schema, "paths": paths, "components": components, "security": [{"token": []}, {}]}


def _bodies(schema: dict[str, Any]) -> set[str]:
    """The names of what is posted."""
    found = set()
    for item in schema["paths"].values():
        for verb in _VERBS:
            content = item.get(verb, {}).get("requestBody", {}).get("content", {}).get("application/json", {})
            kind = content.get("schema", {})
            for each in (kind, *kind.get("oneOf", ())):
                if "$ref" in each:
                    found.add(each["$ref"].rpartition("/")[2])
    return found


def _ours(told: dict[str, Any], answers: dict[str, Any]) -> dict[str, Any]:
    """The responses of an operation, with our refusals in place of the framework's."""
    responses = {}
    for code, response in told.get("responses", {}).items():
        content = response.get("content", {}).get("application/json", {})
        is_theirs = "status_code" in content.get("schema", {}).get("properties", {})
        responses[code] = {**response, "content": answers["401"]["content"]} if is_theirs else response
    return responses


class _Page(OpenAPIRenderPlugin):
    """Our own page: the framework's load theirs from the internet."""

    def render(self, request: AnyRequest, openapi_schema: dict[str, Any]) -> bytes:
        del request, openapi_schema
        return _SCHEMA_PAGE


def openapi_config(version: str) -> OpenAPIConfig:
    """The OpenAPI document and its page, for everybody who may read."""
    return OpenAPIConfig(
        title="Mainstem",
        version=version,
        render_plugins=[_Page(path="/"), _Document()],
        openapi_router=Router(path="/schema", route_handlers=[], include_in_schema=False, opt=access(Role.READER)),
    )
