"""The stages of a Mongo client's pipeline, over the documents in a table's rows. Runs on the executors.

It is the code that the gateway runs: documents are read one by one as the rows come, and what is held is bounded as it
is there (`Run.memory_bytes_max`). A task answers for its own rows; the gateway puts the answers together.
"""

import itertools
from collections.abc import Iterator

import pyarrow as pa

from mainstem.documents import Run, compile_pipeline
from mainstem.pipeline.passes.worker import settle
from mainstem.wire.mongo.frames import decode_document, encode_document
from mainstem.wire.mongo.stages import StagesOrder, decode_stages

# In rows of a key and a document.
ANSWER = pa.schema([pa.field("document", pa.binary())])
_ROWS_AT_ONCE = 1_000


def run_stages(text: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The task: rows of a key and a document in, the documents that the stages make of them out."""
    settle()
    order = decode_stages(text)
    pipeline = compile_pipeline(list(order.stages), frozenset(order.scope))
    answers = pipeline.run(_documents(order, batches), Run(dict(order.scope)))
    while part := [encode_document(each) for each in itertools.islice(answers, _ROWS_AT_ONCE)]:
        yield pa.record_batch([pa.array(part, pa.binary())], schema=ANSWER)


def _documents(order: StagesOrder, batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, object]]:
    for batch in batches:
        for key, document in zip(batch.column(0), batch.column(1), strict=True):
            if key.as_py() not in order.without:
                yield decode_document(document.as_py())
