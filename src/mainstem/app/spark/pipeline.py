"""The pipeline's process, as the gateway starts it: the jars are found here, so that the gateway need not wait."""

import os
import sys
from pathlib import Path

import msgspec

from mainstem.app.spark.classes import find_archive
from mainstem.app.spark.jars import COORDINATES, S3_COORDINATES, ensure_jars
from mainstem.app.spark.java import check_java
from mainstem.app.spark.supervisor import CANNOT_RUN
from mainstem.model import MainstemError
from mainstem.pipeline.settings import PipelineSettings
from mainstem.runtime.logs import set_up_logging

# The token that the gateway made for this process.
TOKEN_VARIABLE = "MAINSTEM_PIPELINE_TOKEN"
# Properties of the catalog that name the tables' store and its keys, as JSON; none where that is a folder.
STORE_VARIABLE = "MAINSTEM_PIPELINE_STORE"
# Properties of a catalog that is not the gateway's own, as JSON: its token or credentials are among them. Not there: it
# is the gateway's.
CATALOG_VARIABLE = "MAINSTEM_PIPELINE_CATALOG"
# Settings of Spark's, as JSON: some of them are secrets.
SPARK_VARIABLE = "MAINSTEM_PIPELINE_SPARK"


def main(path: str) -> int:
    """Read the settings from a file, and carry the log into the tables until told to stop."""
    document = msgspec.json.decode(Path(path).read_bytes())
    set_up_logging(**document.pop("logging", {}))
    mirror = document.pop("maven_mirror", "")
    try:
        archive = find_archive(check_java())
        store = msgspec.json.decode(os.environ.pop(STORE_VARIABLE, "{}"), type=dict[str, str])
        wanted = (COORDINATES, S3_COORDINATES) if store else (COORDINATES,)
        jars = [str(jar) for coordinates in wanted for jar in ensure_jars(coordinates, mirror)]
        told = {
            "jars": jars,
            "class_archive": None if archive is None else str(archive),
            "token": os.environ.pop(TOKEN_VARIABLE, None),
            "catalog_properties": store,
            "catalog_rest": msgspec.json.decode(os.environ.pop(CATALOG_VARIABLE, "null"), type=dict[str, str] | None),
            "spark": msgspec.json.decode(os.environ.pop(SPARK_VARIABLE, "{}"), type=dict[str, str]),
        }
        settings = PipelineSettings.from_document({**document, **told})
    except MainstemError as error:
        # The last line, as the supervisor expects it.
        print(f"mainstem: {error}", file=sys.stderr)
        return CANNOT_RUN
    from mainstem.pipeline.runner import run

    run(settings)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
