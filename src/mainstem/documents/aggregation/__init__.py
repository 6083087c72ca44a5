"""Aggregation pipelines, compiled once and run as streams. Pure: other collections come through `Sources`."""

from mainstem.documents.aggregation.accumulating import ACCUMULATORS
from mainstem.documents.aggregation.pipeline import STAGES_MAX, Pipeline, compile_pipeline
from mainstem.documents.aggregation.registry import NOT_RUN, STAGES
from mainstem.documents.aggregation.running import MEMORY_BYTES_MAX, Namespace, NoSources, Run, Sources
from mainstem.documents.aggregation.sinks import Merge, Out, Sink
from mainstem.documents.aggregation.windows import WINDOW_OPERATORS

__all__ = [
    "ACCUMULATORS",
    "MEMORY_BYTES_MAX",
    "NOT_RUN",
    "STAGES",
    "STAGES_MAX",
    "WINDOW_OPERATORS",
    "Merge",
    "Namespace",
    "NoSources",
    "Out",
    "Pipeline",
    "Run",
    "Sink",
    "Sources",
    "compile_pipeline",
]
