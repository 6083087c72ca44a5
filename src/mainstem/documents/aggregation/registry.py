"""The table of stages. The modules beside this one fill it; `pipeline` and the guide read it."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from mainstem.documents.aggregation.running import Reading, Stage

Build = Callable[[Any, Reading], Stage]


class StageKind(msgspec.Struct, frozen=True):
    """A stage: who reads it, and where it may stand."""

    name: str
    build: Build
    first_only: bool = False
    last_only: bool = False
    in_facet: bool = True


STAGES: Final[dict[str, StageKind]] = {}
# Known, and not run here: name and why.
NOT_RUN: Final[dict[str, str]] = {
    "$geoNear": "geometry is not supported",
    "$search": "there is no search index",
    "$searchMeta": "there is no search index",
    "$vectorSearch": "there is no search index",
    "$planCacheStats": "there is no plan cache",
    "$listSessions": "sessions are not a collection",
    "$shardedDataDistribution": "there are no shards",
    "$listSampledQueries": "queries are not sampled",
}


def stage(
    name: str, *, first_only: bool = False, last_only: bool = False, in_facet: bool = True
) -> Callable[[Build], Build]:
    """Register who reads a stage."""

    def register(build: Build) -> Build:
        STAGES[name] = StageKind(name, build, first_only, last_only, in_facet)
        return build

    return register
