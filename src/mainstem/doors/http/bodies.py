"""Bodies are what their types say, to the letter: the framework would take 0 for false and "5" for 5.

The same types are what the OpenAPI document says of them; the framework loses bounds on the way there.
"""

from typing import Any

import msgspec
from litestar import Litestar, Request
from litestar.exceptions import ClientException
from litestar.routes import HTTPRoute


async def check_body(request: Request[Any, Any, Any]) -> None:
    """Before a route is reached: refuse a body that is only nearly right."""
    field = getattr(request.route_handler, "parsed_data_field", None)
    if field is None:
        return
    body = await request.body()
    if not body:
        # Whether it may be left out, the framework knows.
        return
    try:
        msgspec.convert(decoded(body), field.annotation)
    except msgspec.MsgspecError as error:
        raise ClientException(f"the body is not right. {error}") from error


def decoded(body: bytes) -> Any:
    """A body as plain values. To JSON, 5.0 is the whole number 5."""
    return _whole(msgspec.json.decode(body))


def _whole(value: Any) -> Any:
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_whole(each) for each in value]
        case dict():
            return {name: _whole(each) for name, each in value.items()}
        case _:
            return value


def body_schemas(app: Litestar, template: str = "#/components/schemas/{name}") -> dict[str, Any]:
    """The schemas of all bodies of an application, and of what they hold, by name."""
    kinds = []
    for route in app.routes:
        if isinstance(route, HTTPRoute):
            for handler in route.route_handlers:
                field = getattr(handler, "parsed_data_field", None)
                if field is not None and handler.resolve_include_in_schema():
                    kinds.append(field.annotation)
    _, components = msgspec.json.schema_components(kinds, ref_template=template)
    return components
