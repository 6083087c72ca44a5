"""A full disk, a failing fsync, a read-only folder: the producer hears of it, and nothing acknowledged is missing."""

import asyncio
import errno
import json
import os
from pathlib import Path
from typing import Any

import duckdb
import pytest
from websockets.asyncio.client import ClientConnection, connect

from mainstem.client import CdcClient, insert
from mainstem.log.disk import OsDisk
from tests.harness.inprocess import gateway_on_socket
from tests.unit.log.log_fixtures import BrokenDisk

FAULTS = {
    "full disk": ("write", errno.ENOSPC, "No space left"),
    "failing fsync": ("sync", errno.EIO, "Input/output error"),
    "read-only folder": ("write", errno.EROFS, "Read-only file system"),
}


def _batch(sequence: int) -> bytes:
    event = {"sequence": sequence, "timestamp": 1, "operation": "INSERT", "table": "t", "rowId": str(sequence)}
    message = {"type": "cdc_batch", "sourceDoId": "s", "sequenceNumber": sequence, "timestamp": 1}
    return json.dumps({**message, "events": [{**event, "after": {"n": sequence}}]}).encode()


async def _answer(socket: ClientConnection, sequence: int) -> dict[str, Any]:
    await socket.send(_batch(sequence), text=True)
    answer: dict[str, Any] = json.loads(await socket.recv())
    return answer


def _sequences(data: Path) -> list[int]:
    """What is in the sealed log, as DuckDB reads it."""
    files = str(data / "log" / "segments" / "*.parquet")
    return [row[0] for row in duckdb.sql(f"SELECT batch_sequence FROM '{files}' ORDER BY position").fetchall()]


def _positions(data: Path) -> list[int]:
    files = str(data / "log" / "segments" / "*.parquet")
    return [row[0] for row in duckdb.sql(f"SELECT position FROM '{files}' ORDER BY position").fetchall()]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("torn_bytes", [0, 40])
async def test_the_nack_says_what_the_disk_said_and_when_to_retry(tmp_path: Path, fault: str, torn_bytes: int) -> None:
    operation, number, words = FAULTS[fault]
    disk = BrokenDisk()
    disk.torn_bytes = torn_bytes
    async with gateway_on_socket(tmp_path, disk) as (gateway, url), connect(url) as socket:
        assert (await _answer(socket, 1))["type"] == "ack"
        disk.broken[operation] = OSError(number, os.strerror(number))
        nack = await _answer(socket, 2)
        assert (nack["type"], nack["reason"]) == ("nack", "internal_error")
        assert words in nack["errorMessage"]
        assert nack["shouldRetry"] is True and nack["retryDelayMs"] > 0
        assert gateway.status().state == "error"
        assert words in (gateway.status().last_error or "")
        disk.broken.clear()
        await asyncio.sleep(nack["retryDelayMs"] / 1000)
        assert (await _answer(socket, 2))["type"] == "ack"
        assert (await _answer(socket, 3))["type"] == "ack"
        assert gateway.status().state != "error"
    async with gateway_on_socket(tmp_path, OsDisk()) as (gateway, url), connect(url) as socket:
        assert (await _answer(socket, 3))["status"] == "duplicate"
        await gateway.flush(0.01)
    assert _sequences(tmp_path) == [1, 2, 3]
    assert _positions(tmp_path) == [1, 2, 3]


async def test_a_client_rides_out_a_disk_that_fails_now_and_then(tmp_path: Path) -> None:
    disk = BrokenDisk()

    async def trouble() -> None:
        for round_ in range(4):
            operation, number, _ = list(FAULTS.values())[round_ % len(FAULTS)]
            disk.broken[operation] = OSError(number, os.strerror(number))
            await asyncio.sleep(0.2)
            disk.broken.clear()
            await asyncio.sleep(0.2)

    async with gateway_on_socket(tmp_path, disk) as (gateway, url):
        async with CdcClient(url, source="s") as client, asyncio.TaskGroup() as tasks:
            tasks.create_task(trouble())
            receipts = [await client.send([insert("t", str(n), {"n": n})]) for n in range(1, 201)]
            for receipt in receipts:
                await receipt.durable()
        await gateway.flush(0.01)
    assert _sequences(tmp_path) == list(range(1, 201))
    assert _positions(tmp_path) == list(range(1, 201))


async def test_a_data_folder_that_cannot_be_written_is_told_at_the_start(tmp_path: Path) -> None:
    blocked = tmp_path / "data"
    blocked.write_text("a file where a folder is wanted")
    with pytest.raises(OSError, match="data"):
        async with gateway_on_socket(blocked):
            pass
