"""Files into a table, through the log: Parquet, CSV and JSON lines, piece by piece over `/v1/ingest`.

Every piece has a key of its own, made of the file and its place in it: a load that was cut off is run again as it was,
and what was durable before counts once.
"""

import hashlib
import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pyarrow as pa

from mainstem.model.errors import Denied, Invalid, Overloaded
from mainstem.model.names import parse_table_name
from mainstem.wire.rows_arrow import stream_of
from mainstem.wire.rows_csv import typed_columns

PIECE_ROWS = 50_000
PIECE_BYTES_MAX = 16 * 1024 * 1024
TIMEOUT_S = 120.0
TRIES_MAX = 60
ARROW, LINES = "application/vnd.apache.arrow.stream", "application/x-ndjson"
SUFFIXES = (".parquet", ".csv", ".json", ".jsonl", ".ndjson")


class Piece(NamedTuple):
    """Some rows of a file; `done` is how many of its bytes are read by then."""

    body: bytes
    content_type: str
    done: int


class Target(NamedTuple):
    """Where rows go, and what they mean there."""

    url: str
    table: str
    mode: str = "upsert"
    key: tuple[str, ...] = ()
    token: str | None = None


def files_of(place: Path) -> list[Path]:
    """The files to load: one, or those of a folder, in the order of their names. Raises Invalid where there is none."""
    if place.is_file():
        found = [place]
    else:
        found = sorted(each for each in place.rglob("*") if each.is_file() and each.suffix.lower() in SUFFIXES)
    if not found:
        raise Invalid(f"nothing to load. expected={', '.join(SUFFIXES)} got={place}")
    for each in found:
        if each.suffix.lower() not in SUFFIXES:
            raise Invalid(f"not a file that can be loaded. expected={', '.join(SUFFIXES)} got={each}")
    return found


def pieces_of(file: Path) -> Iterator[Piece]:
    """The file's rows, piece by piece. Raises Invalid where it cannot be read."""
    try:
        match file.suffix.lower():
            case ".parquet":
                yield from _parquet(file)
            case ".csv":
                yield from _csv(file)
            case _:
                yield from _lines(file)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise Invalid(f"the file cannot be read. file={file} got={error}") from error


def load_file(file: Path, target: Target) -> Iterator[tuple[int, int]]:
    """Load one file; after each piece, the rows that were in it and the bytes of the file that are done."""
    name = parse_table_name(target.table)
    status = file.stat()
    identity = f"{file.name}\0{status.st_size}\0{status.st_mtime_ns}\0{target.mode}\0{','.join(target.key)}"
    headers = {"Authorization": f"Bearer {target.token}"} if target.token else {}
    query = {"mode": target.mode} | ({"key": ",".join(target.key)} if target.key else {})
    with httpx.Client(base_url=target.url, headers=headers, timeout=TIMEOUT_S) as client:
        _reach(client)
        for number, piece in enumerate(pieces_of(file)):
            key = hashlib.blake2b(f"{identity}\0{number}".encode(), digest_size=16).hexdigest()
            path = f"/v1/ingest/{name.namespace}/{name.table}"
            rows = _send(client, path, query, piece, key, file)
            yield rows, piece.done


def _reach(client: httpx.Client) -> None:
    """Say at once that no server answers. Later on a server may be gone for a while: that is waited for."""
    try:
        client.get("/health")
    except httpx.TransportError as error:
        raise Overloaded(
            f"no answer from {client.base_url}: {error}", retry_after_s=1.0, reason="unreachable"
        ) from error


def _send(client: httpx.Client, path: str, query: dict[str, str], piece: Piece, key: str, file: Path) -> int:
    trouble = ""
    for _ in range(TRIES_MAX):
        wait_s = 1.0
        try:
            headers = {"Content-Type": piece.content_type, "Idempotency-Key": key}
            answer = client.post(path, params=query, content=piece.body, headers=headers)
        except httpx.TransportError as error:
            trouble = f"{type(error).__name__}: {error}"
        else:
            if answer.status_code == 200:
                return int(answer.json()["rows"])
            trouble = _message(answer)
            if answer.status_code in (401, 403):
                raise Denied(trouble)
            if answer.status_code < 500 and answer.status_code != 429:
                raise Invalid(f"{trouble}. file={file} table={path.removeprefix('/v1/ingest/').replace('/', '.')}")
            wait_s = min(30.0, float(answer.headers.get("retry-after", "1")))
        time.sleep(wait_s)
    raise Overloaded(f"the server does not take the rows. url={client.base_url} got={trouble}", retry_after_s=30.0)


def _message(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{answer.status_code} {answer.text[:200]}"


def _parquet(file: Path) -> Iterator[Piece]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as opened:
        total, size, done = opened.metadata.num_rows, file.stat().st_size, 0
        for batch in opened.iter_batches(PIECE_ROWS):
            done += batch.num_rows
            yield from _arrow(pa.Table.from_batches([batch]), size * done // max(total, 1))


def _csv(file: Path) -> Iterator[Piece]:
    import pyarrow.csv as pacsv

    with file.open("rb") as opened:
        names = pacsv.open_csv(io.BytesIO(opened.readline() + b"\n")).schema.names
        opened.seek(0)
        options = pacsv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            null_values=[""],
        )
        parse = pacsv.ParseOptions(newlines_in_values=True)
        reader = pacsv.open_csv(opened, pacsv.ReadOptions(block_size=4 << 20), parse, options)
        for batch in reader:
            yield from _arrow(typed_columns(pa.Table.from_batches([batch])), opened.tell())


def _lines(file: Path) -> Iterator[Piece]:
    with file.open("rb") as opened:
        if opened.read(1) == b"[":
            raise Invalid(f"the file is one JSON array. expected=an object per line got={file}")
        opened.seek(0)
        while lines := opened.readlines(4 << 20):
            body = b"".join(lines)
            if body.strip():
                yield Piece(body, LINES, opened.tell())


def _arrow(table: pa.Table, done: int) -> Iterator[Piece]:
    """Pieces that are small enough, in the order of the rows."""
    if table.num_rows == 0:
        return
    body = stream_of(table)
    if len(body) > PIECE_BYTES_MAX and table.num_rows > 1:
        half = table.num_rows // 2
        yield from _arrow(table.slice(0, half), done)
        yield from _arrow(table.slice(half), done)
    else:
        yield Piece(body, ARROW, done)
