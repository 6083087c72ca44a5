"""Where metadata files are: what the catalog keeps of its ways there."""

from mainstem.catalog.files import RoutedFiles


def test_connections_to_a_store_are_kept() -> None:
    """One made for every file took seven times as long as the file."""
    files = RoutedFiles({"s3.endpoint": "http://127.0.0.1:1", "s3.region": "us-east-1"})
    one = files.file_io("s3://bucket/a/metadata/1.json")
    assert files.file_io("s3://bucket/b/metadata/2.json") is one
    assert files.file_io("file:///a/metadata/1.json") is not one
    assert one.properties["s3.endpoint"] == "http://127.0.0.1:1"
