"""What a session on a cluster is given: the package as an archive, and S3's options by Hadoop's names."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from mainstem.pipeline.passes.stores import for_spark
from mainstem.pipeline.session.spark import pack_package, with_task_retries

CODE = "import mainstem.pipeline.passes.kernel as kernel; print(kernel.__file__); print(kernel.run_task.__module__)"


def test_the_archive_is_loaded_before_what_is_installed(tmp_path: Path) -> None:
    archive = pack_package(tmp_path)
    # As Spark's worker does: the archive stands before the environment's own packages.
    environment = {**os.environ, "PYTHONPATH": str(archive)}
    answer = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines() == [
        f"{archive}/mainstem/pipeline/passes/kernel.pyc",
        "mainstem.pipeline.passes.kernel",
    ]


def test_the_archive_holds_code_and_nothing_else(tmp_path: Path) -> None:
    names = zipfile.ZipFile(pack_package(tmp_path)).namelist()
    assert all(name.startswith("mainstem/") and name.endswith(".pyc") for name in names)
    assert "mainstem/pipeline/passes/kernel.pyc" in names


def test_locations_for_spark_say_which_file_system_they_mean() -> None:
    assert for_spark("s3://bucket/a/b") == for_spark("s3a://bucket/a/b") == "s3a://bucket/a/b"
    assert for_spark("/data/log/segments") == for_spark("file:///data/log/segments") == "file:///data/log/segments"


@pytest.mark.parametrize(
    ("master", "expected"),
    [
        ("local[*]", "local[*,4]"),
        ("local[2]", "local[2,4]"),
        ("local[2,1]", "local[2,1]"),
        ("local", "local"),
        ("spark://127.0.0.1:7077", "spark://127.0.0.1:7077"),
    ],
)
def test_a_local_task_is_tried_as_often_as_on_a_cluster(master: str, expected: str) -> None:
    assert with_task_retries(master) == expected
