"""Which files are rewritten together, and which snapshots go: the rule alone."""

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.tables.maintenance import (
    FileFacts,
    MaintenanceSettings,
    expire_before_ms,
    for_table,
    matches,
    plan_groups,
)
from mainstem.tables.partitions import PartitionField, partition_path

SETTINGS = MaintenanceSettings(target_file_bytes=1000)


def small(number: int, partition: str = "", **more: int | bool) -> FileFacts:
    return FileFacts(f"f{number}", partition, size_bytes=10, rows=100, **more)  # type: ignore[arg-type]


def large(number: int, **more: int | bool) -> FileFacts:
    return FileFacts(f"f{number}", "", size_bytes=1000, rows=100, **more)  # type: ignore[arg-type]


def planned(files: list[FileFacts], settings: MaintenanceSettings = SETTINGS, **more: object) -> list[set[str]]:
    return [{file.path for file in group.files} for group in plan_groups(files, settings, **more)]  # type: ignore[arg-type]


def test_exactly_the_minimum_is_enough_and_one_less_is_not() -> None:
    assert planned([small(n) for n in range(5)]) == [{"f0", "f1", "f2", "f3", "f4"}]
    assert planned([small(n) for n in range(4)]) == []


def test_large_files_stay_and_files_that_make_a_whole_one_do_not_wait_for_more() -> None:
    assert planned([large(n) for n in range(9)]) == []
    halves = [FileFacts(f"f{n}", "", size_bytes=500, rows=1) for n in range(2)]
    assert planned(halves) == [{"f0", "f1"}]


def test_partitions_are_never_mixed() -> None:
    files = [small(n, "dt=a") for n in range(5)] + [small(n, "dt=b") for n in range(5, 9)]
    assert planned(files) == [{"f0", "f1", "f2", "f3", "f4"}]
    assert planned(files, partitions=("dt=b",)) == []


def test_deletes_make_large_files_worth_a_rewrite() -> None:
    assert planned([large(1, deleted_rows=10, delete_files=1)]) == [{"f1"}]
    assert planned([large(1, deleted_rows=9, delete_files=1)]) == []
    assert planned([large(1, equality=True, delete_files=1)]) == [{"f1"}]
    both = [large(1, delete_files=3), large(2)]
    assert planned(both, deleted_by_partition={"": 20}) == [{"f1"}]
    assert planned(both, deleted_by_partition={"": 19}) == []


@given(st.lists(st.integers(1, 2000), max_size=400), st.integers(2, 20), st.integers(2, 20))
def test_every_file_is_in_one_group_at_most_and_groups_keep_their_bounds(
    sizes: list[int], min_files: int, max_files: int
) -> None:
    settings = MaintenanceSettings(target_file_bytes=1000, min_files=min_files, max_files=max_files)
    groups = plan_groups([FileFacts(f"f{n}", "", size, 1) for n, size in enumerate(sizes)], settings)
    paths = [file.path for group in groups for file in group.files]
    assert len(paths) == len(set(paths))
    for group in groups:
        assert 2 <= len(group.files) <= max_files
        assert group.size_bytes <= 4 * 1000
        assert all(file.size_bytes < 750 for file in group.files)


def test_a_partition_is_named_in_whole_or_by_some_of_its_fields() -> None:
    assert matches("dt=2026-01-15/bucket=3", ("dt=2026-01-15",))
    assert matches("dt=2026-01-15/bucket=3", ("bucket=3/dt=2026-01-15",))
    assert not matches("dt=2026-01-15/bucket=3", ("bucket=30", "dt=2026-01"))
    assert matches("anything", ())


def test_snapshots_go_by_age_and_by_number_but_never_the_newest_or_the_young() -> None:
    settings = MaintenanceSettings(snapshot_age_s=100, snapshots_max=3, snapshot_age_min_s=10)
    now_ms = 1_000_000

    def left(*ages_s: int) -> list[int]:
        before_ms = expire_before_ms([now_ms - age * 1000 for age in ages_s], now_ms, settings)
        return [age for age in ages_s if before_ms is None or now_ms - age * 1000 >= before_ms]

    assert left(500) == [500]
    assert left(20, 99, 101) == [20, 99]
    assert left(20, 30, 40, 50, 60) == [20, 30, 40]
    assert left(1, 2, 3, 4, 5) == [1, 2, 3, 4, 5]


def test_a_tables_own_target_wins() -> None:
    assert for_table(SETTINGS, {"write.target-file-size-bytes": "77"}).target_file_bytes == 77
    assert for_table(SETTINGS, {"write.target-file-size-bytes": "many"}) == SETTINGS


@pytest.mark.parametrize(
    ("transform", "source_type", "value", "path"),
    [
        ("year", "timestamptz", 54, "f=2024"),
        ("month", "timestamptz", 54 * 12 + 1, "f=2024-02"),
        ("day", "timestamptz", (dt.date(2024, 2, 29) - dt.date(1970, 1, 1)).days, "f=2024-02-29"),
        ("day", "timestamptz", dt.date(2024, 2, 29), "f=2024-02-29"),
        ("hour", "timestamptz", -1, "f=1969-12-31-23"),
        ("bucket[16]", "string", 7, "f=7"),
        ("truncate[2]", "string", "a/b", "f=a%2Fb"),
        ("identity", "string", None, "f=null"),
        ("identity", "boolean", True, "f=true"),
        ("void", "string", "x", "f=null"),
        ("identity", "date", 0, "f=1970-01-01"),
    ],
)
def test_partitions_are_named_as_iceberg_names_them(transform: str, source_type: str, value: object, path: str) -> None:
    assert partition_path([PartitionField("f", transform, "s", source_type)], [value]) == path
