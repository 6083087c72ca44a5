"""The archive of classes is only ever a gain: found where it fits, and without a word where it does not."""

import subprocess
from pathlib import Path

from mainstem.app.spark.classes import find_archive
from mainstem.app.spark.java import check_java
from mainstem.pipeline.session.spark import SessionSettings, java_options


def _settings(archive: Path) -> SessionSettings:
    return SessionSettings("a", "local[1]", "1g", (), "python", {}, archive=str(archive))


def test_java_starts_without_a_word_where_the_archive_is_broken(tmp_path: Path) -> None:
    broken = tmp_path / "broken.jsa"
    broken.write_bytes(b"not an archive")
    for archive in (broken, tmp_path / "missing.jsa"):
        options = [option.strip('"') for option in java_options(_settings(archive))]
        answer = subprocess.run([check_java(), *options, "-version"], capture_output=True, text=True, check=True)
        assert str(archive) not in answer.stderr + answer.stdout, answer


def test_an_archive_is_that_of_one_java(tmp_path: Path) -> None:
    """Another Java finds nothing, whether one was made for the one that is here or not."""
    other = tmp_path / "jdk" / "bin" / "java"
    other.parent.mkdir(parents=True)
    other.touch()
    assert find_archive(other) is None
