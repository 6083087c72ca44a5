"""The protocol's document and the code say the same."""

import re
from pathlib import Path

import pytest

from mainstem.admission import DedupSettings, Limits, RateSettings
from mainstem.app.config import LogConfig, ServerConfig
from mainstem.doors.cdc.ports import CdcSettings
from mainstem.doors.cdc.ws import FRAME_BYTES_MAX
from mainstem.wire import cdc

DOCUMENT = (Path(__file__).parents[2] / "docs" / "protocol" / "cdc.md").read_text()
EXAMPLES = re.findall(r"```json\n(.*?)```", DOCUMENT, re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_is_a_message(example: str) -> None:
    if re.search(r'"type": "(ack|nack|status)"', example):
        cdc.decode_server(example)
    else:
        message = cdc.decode_client(example.encode())
        if isinstance(message, cdc.CdcBatch):
            assert len(cdc.decode_events(bytes(message.events))) == 3


def test_there_is_an_example_of_every_message() -> None:
    kinds = {"connect", "cdc_batch", "heartbeat", "flush_request", "disconnect", "ack", "nack", "status"}
    assert {re.search(r'"type": "(\w+)"', example)[1] for example in EXAMPLES} == kinds  # type: ignore[index]


def test_every_reason_and_status_is_explained() -> None:
    for word in (*cdc.NackReason, *cdc.AckStatus, *cdc.Priority):
        assert f"`{word}`" in DOCUMENT, word


def test_the_bounds_are_the_ones_in_force() -> None:
    limits, settings, dedup = Limits(), CdcSettings(), DedupSettings()
    assert FRAME_BYTES_MAX == settings.replies_bytes_max == 16 << 20
    assert (limits.payload_bytes_max, limits.event_bytes_max, limits.events_max) == (4 << 20, 1 << 20, 10_000)
    assert (settings.replies_max, settings.sources_per_connection_max) == (256, 64)
    assert ServerConfig().connections_max == 10_000
    assert settings.refusals_free_max == 128
    assert (settings.flushes_max, limits.source_length_max, cdc.KEY_LENGTH_MAX) == (4, 256, 1024)
    assert (dedup.recent_max, dedup.recent_min, dedup.recent_total_max // dedup.recent_max) == (4_096, 64, 256)
    assert (dedup.intervals_max, dedup.intervals_min, dedup.intervals_total_max) == (65_536, 1_024, 1 << 20)
    assert (dedup.sources_max, dedup.idle_ms) == (100_000, 5 * 60_000)


def test_the_limits_of_rate_are_the_ones_in_force() -> None:
    table = re.findall(r"\| ([\d., ]+) \((`.*?`)\) \|", DOCUMENT)
    told = {
        name: float(number)
        for numbers, names in table
        for number, name in zip(numbers.split(", "), names.replace("`", "").split(", "), strict=True)
        if name in RateSettings.__struct_fields__
    }
    assert told == {name: getattr(RateSettings(), name) for name in told}
    assert len(told) == 8
    assert LogConfig().buffer_bytes_max == 4 << 30
