"""Static methods of Java classes, beside a method of the same name that objects have. No Java runs here."""

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JError

from mainstem.pipeline.commit.lake import static_method


class InstanceMethodFirst:
    """Java's end of py4j, where `Class.getMethods` lists the objects' `get(String)` before the static `get()`."""

    def __init__(self) -> None:
        self.gateway_property = SimpleNamespace(pool=None)
        self.converters: list[Any] = []

    def send_command(self, command: str, *_: Any, **__: Any) -> str:
        """Looking the member up finds no static one; calling it picks the method by its arguments."""
        return {"r\nm\na.Cache\nget\ne\n": "x", "c\nz:a.Cache\nget\ne\n": "ysthe one"}[command]


def test_a_static_method_is_called_whichever_of_its_name_java_lists_first() -> None:
    cache = JavaClass("a.Cache", InstanceMethodFirst())
    with pytest.raises(Py4JError, match="does not exist in the JVM"):
        cache.get()
    assert static_method(cache, "get")() == "the one"
