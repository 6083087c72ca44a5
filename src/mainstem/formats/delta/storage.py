"""Where Delta tables live: a folder, memory, or S3 and what speaks its protocol.

    create_storage()                                 ./.deltalake
    create_storage("/data/lake")                     a folder
    create_storage("memory://")                      gone with the process
    create_storage("s3://bucket/prefix")             keys from the environment, as AWS's tools read them
    create_storage(type="s3", bucket=…, endpoint=…)  anything that speaks S3
    create_storage(type="r2", bucket=…, account_id=…)

Owns the one thing that a log of versions needs from its storage: `put_if_absent`, of which only one of many writers,
in any process on any machine, succeeds. On disk it's a hard link to a synced file, on S3 a conditional PUT.
"""

import os
import shutil
import tempfile
import uuid
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from mainstem.model.errors import Conflict, Invalid, NotFound, OutcomeUnknown
from mainstem.runtime import durable
from mainstem.runtime.clock import SystemClock
from mainstem.sql import duckdb_text
from mainstem.wire.sigv4 import Keys, sign

if TYPE_CHECKING:
    import duckdb
    import httpx

DEFAULT_FOLDER = ".deltalake"
_PUT_ATTEMPTS_MAX = 5
_PUT_TIMEOUT_S = 60.0
_LISTINGS_MAX = 8


class Entry(NamedTuple):
    """A file, by its path below the storage's root."""

    path: str
    size_bytes: int


class Storage(ABC):
    """Files by their paths below a root. Paths have forward slashes and start with a table's name."""

    @property
    @abstractmethod
    def root(self) -> str:
        """The root as engines name it: an absolute path, or a URL."""

    @property
    @abstractmethod
    def options(self) -> dict[str, str]:
        """What delta-rs has to be told to reach it."""

    @property
    @abstractmethod
    def files(self) -> pafs.FileSystem:
        """The root as Arrow's file system."""

    @abstractmethod
    def put_if_absent(self, path: str, data: bytes) -> None:
        """Write a whole file, durably, unless there is one: then Conflict. Readers see all of it or nothing."""

    @abstractmethod
    def prepare(self, connection: "duckdb.DuckDBPyConnection") -> None:
        """Let a DuckDB connection reach the files."""

    @cached_property
    def companions(self) -> dict[str, Any]:
        """What others keep of this storage as long as it is there, by their own names."""
        return {}

    def uri(self, path: str) -> str:
        """A file or a table as engines name it."""
        return f"{self.root}/{path}"

    def read(self, path: str) -> bytes:
        """A whole file."""
        try:
            with self.files.open_input_stream(path) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            raise NotFound(f"no such file. path={self.uri(path)}") from None

    def open_data(self, path: str) -> pa.NativeFile:
        """A data file, to be read here and there. Such a file never changes."""
        return self.files.open_input_file(path)

    def put(self, path: str, data: bytes) -> None:
        """Write a file, be there one or not."""
        self.make_folder(path.rpartition("/")[0])
        with self.files.open_output_stream(path) as stream:
            stream.write(data)

    def sync(self, paths: Iterable[str]) -> None:
        """Make files durable that others wrote here. An object store has nothing to do: what it took, it keeps."""
        del paths

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""
        return bool(self.files.get_file_info(path).type == pafs.FileType.File)

    def entries(self, folder: str) -> tuple[Entry, ...]:
        """The files right in a folder, sorted. A folder that is not there has none."""
        found = self.listing(folder)
        return tuple(sorted(Entry(info.path, info.size) for info in found if info.type == pafs.FileType.File))

    def folders(self, folder: str) -> tuple[str, ...]:
        """The folders right in a folder, sorted."""
        found = self.listing(folder)
        return tuple(sorted(info.path for info in found if info.type == pafs.FileType.Directory))

    def listing(self, folder: str, *, recursive: bool = False) -> list[pafs.FileInfo]:
        """What is in a folder, as Arrow tells it. A folder that is not there has nothing.

        Arrow opens the folder and, where that fails, looks whether it is there: one that another writer makes between
        the two is an error to it, and there when asked again.
        """
        selector = pafs.FileSelector(folder, allow_not_found=True, recursive=recursive)
        for _ in range(_LISTINGS_MAX - 1):
            with suppress(FileNotFoundError):
                return list(self.files.get_file_info(selector))
        return list(self.files.get_file_info(selector))

    def delete(self, path: str) -> None:
        """Remove a file. One that is gone already is fine."""
        try:
            self.files.delete_file(path)
        except FileNotFoundError:
            pass

    def make_folder(self, folder: str) -> None:
        """Make a folder, where the storage has such."""
        del folder


class LocalStorage(Storage):
    """A folder on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.folder.mkdir(parents=True, exist_ok=True)

    @property
    def root(self) -> str:
        return str(self.folder)

    @property
    def options(self) -> dict[str, str]:
        return {}

    @cached_property
    def files(self) -> pafs.FileSystem:
        return pafs.SubTreeFileSystem(self.root, pafs.LocalFileSystem())

    def make_folder(self, folder: str) -> None:
        (self.folder / folder).mkdir(parents=True, exist_ok=True)

    def sync(self, paths: Iterable[str]) -> None:
        folders: set[Path] = set()
        for path in paths:
            file = self.folder / path
            # One that another writer's vacuum took already needs it no more.
            with suppress(FileNotFoundError):
                durable.sync(file)
            # A folder may be new as well, up to the table's own.
            folders.update(parent for parent in file.parents if parent.is_relative_to(self.folder))
        for folder in folders:
            durable.sync(folder)

    def exists(self, path: str) -> bool:
        return (self.folder / path).is_file()

    def read(self, path: str) -> bytes:
        try:
            return (self.folder / path).read_bytes()
        except FileNotFoundError:
            raise NotFound(f"no such file. path={self.uri(path)}") from None

    def open_data(self, path: str) -> pa.NativeFile:
        return pa.memory_map(str(self.folder / path))

    def put_if_absent(self, path: str, data: bytes) -> None:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        # The name is hidden from readers of the log; what a crash leaves of it is never looked at.
        draft = target.parent / f".{uuid.uuid4().hex}.tmp"
        try:
            with draft.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.link(draft, target)
        except FileExistsError:
            raise Conflict(f"the file is there already. path={target}") from None
        finally:
            draft.unlink(missing_ok=True)
        durable.sync(target.parent)

    def prepare(self, connection: "duckdb.DuckDBPyConnection") -> None:
        del connection


class MemoryStorage(LocalStorage):
    """Files in the machine's memory, where there is a file system of it; gone with this object."""

    def __init__(self) -> None:
        shared = Path("/dev/shm")  # the kernel's own, on Linux
        folder = tempfile.mkdtemp(prefix="mainstem-", dir=shared if os.access(shared, os.W_OK) else None)
        super().__init__(Path(folder))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)


@dataclass(frozen=True)
class S3Storage(Storage):
    """A prefix of a bucket. Without an endpoint it is AWS's own."""

    bucket: str
    prefix: str = ""
    region: str = "us-east-1"
    access_key_id: str | None = None
    secret_access_key: str | None = None
    session_token: str | None = None
    endpoint: str | None = None

    @property
    def root(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    @property
    def options(self) -> dict[str, str]:
        options = {
            "aws_region": self.region,
            "aws_access_key_id": self.access_key_id,
            "aws_secret_access_key": self.secret_access_key,
            "aws_session_token": self.session_token,
            "aws_endpoint": self.endpoint,
            "aws_conditional_put": "etag",
        }
        if self.endpoint is not None:
            options["aws_virtual_hosted_style_request"] = "false"
            options["aws_allow_http"] = str(self.endpoint.startswith("http://")).lower()
        return {name: value for name, value in options.items() if value is not None}

    @cached_property
    def files(self) -> pafs.FileSystem:
        more: dict[str, Any] = {}
        if self.endpoint is not None:
            address = urlsplit(self.endpoint)
            more = {"scheme": address.scheme, "endpoint_override": address.netloc + address.path.rstrip("/")}
        system = pafs.S3FileSystem(
            access_key=self.access_key_id,
            secret_key=self.secret_access_key,
            session_token=self.session_token,
            region=self.region,
            **more,
        )
        return pafs.SubTreeFileSystem(f"{self.bucket}/{self.prefix}".rstrip("/"), system)

    @cached_property
    def _http(self) -> "httpx.Client":
        import httpx

        return httpx.Client(timeout=_PUT_TIMEOUT_S)

    def _url(self, path: str) -> str:
        key = quote(f"{self.prefix}/{path}".lstrip("/"), safe="/-_.~")
        if self.endpoint is not None:
            return f"{self.endpoint.rstrip('/')}/{self.bucket}/{key}"
        return f"https://{self.bucket}.s3.{self.region}.amazonaws.com/{key}"

    def put_if_absent(self, path: str, data: bytes) -> None:
        import httpx

        failure: object = None
        for _ in range(_PUT_ATTEMPTS_MAX):
            try:
                status = self._conditional_put(path, data)
            except httpx.HTTPError as error:
                failure = error
            else:
                if status == httpx.codes.PRECONDITION_FAILED:
                    break
                if status < 300:
                    return
                if status < 500 and status not in (httpx.codes.CONFLICT, httpx.codes.TOO_MANY_REQUESTS):
                    raise Invalid(f"S3 refused a write. path={self.uri(path)} status={status}")
                failure = f"status {status}"
            # The write may have happened and only its answer got lost.
            if self._holds(path, data):
                return
        else:
            raise OutcomeUnknown(f"S3 did not answer a write. path={self.uri(path)} last={failure}")
        if failure is not None and self._holds(path, data):
            return
        raise Conflict(f"the file is there already. path={self.uri(path)}")

    def _conditional_put(self, path: str, data: bytes) -> int:
        url = self._url(path)
        headers = {"if-none-match": ["*"]}
        if self.access_key_id is not None and self.secret_access_key is not None:
            keys = Keys(self.access_key_id, self.secret_access_key, self.session_token)
            now_ms = SystemClock().now_ms()
            headers = sign(keys, method="PUT", uri=url, region=self.region, headers=headers, now_ms=now_ms)
        plain = {name: ",".join(values) for name, values in headers.items()}
        return self._http.put(url, content=data, headers=plain).status_code

    def _holds(self, path: str, data: bytes) -> bool:
        try:
            return self.read(path) == data
        except NotFound:
            return False

    def prepare(self, connection: "duckdb.DuckDBPyConnection") -> None:
        from duckdb_extensions import import_extension

        import_extension("httpfs", con=connection)
        connection.load_extension("httpfs")
        settings = {
            "TYPE": "s3",
            "KEY_ID": self.access_key_id,
            "SECRET": self.secret_access_key,
            "SESSION_TOKEN": self.session_token,
            "REGION": self.region,
        }
        if self.endpoint is not None:
            address = urlsplit(self.endpoint)
            settings |= {"ENDPOINT": address.netloc, "URL_STYLE": "path"}
            settings["USE_SSL"] = "true" if address.scheme == "https" else "false"
        listed = ", ".join(f"{name} {duckdb_text(value)}" for name, value in settings.items() if value is not None)
        connection.execute(f"CREATE OR REPLACE SECRET mainstem_storage ({listed})")


def create_storage(url: str | None = None, *, type: str | None = None, **parameters: Any) -> Storage:
    """The storage that a URL or parameters name; without either, the folder `.deltalake`."""
    if url is not None and type is not None:
        raise Invalid("a storage is named by a URL or by a type. got=both")
    if type is None:
        return _from_url(DEFAULT_FOLDER if url is None else url, parameters)
    match type:
        case "memory":
            return _built(MemoryStorage, parameters)
        case "filesystem":
            return _built(LocalStorage, {"folder": Path(parameters.pop("path", DEFAULT_FOLDER)), **parameters})
        case "s3":
            return _built(S3Storage, _environment() | parameters)
        case "r2":
            account = parameters.pop("account_id", None)
            if account is not None:
                parameters.setdefault("endpoint", f"https://{account}.r2.cloudflarestorage.com")
            if "endpoint" not in parameters:
                raise Invalid("R2 needs an account. expected=account_id or endpoint got=neither")
            return _built(S3Storage, _environment() | {"region": "auto"} | parameters)
    raise Invalid(f"unknown type of storage. expected=memory, filesystem, s3 or r2 got={type!r}")


def _from_url(url: str, parameters: dict[str, Any]) -> Storage:
    scheme, separator, rest = url.partition("://")
    if not separator:
        return _built(LocalStorage, {"folder": Path(url), **parameters})
    match scheme:
        case "memory":
            return _built(MemoryStorage, parameters)
        case "file":
            return _built(LocalStorage, {"folder": Path(rest), **parameters})
        case "s3" | "s3a" | "s3n":
            bucket, _, prefix = rest.partition("/")
            return _built(S3Storage, _environment() | {"bucket": bucket, "prefix": prefix.strip("/")} | parameters)
    raise Invalid(f"unknown storage URL. expected=a path, memory:// or s3://bucket/prefix got={url!r}")


def _built(kind: type[Storage], parameters: Mapping[str, Any]) -> Storage:
    try:
        return kind(**parameters)
    except TypeError as error:
        raise Invalid(f"storage parameters. {error}") from None


def _environment() -> dict[str, Any]:
    """What AWS's own tools would take from the environment."""
    named = {
        "access_key_id": os.environ.get("AWS_ACCESS_KEY_ID"),
        "secret_access_key": os.environ.get("AWS_SECRET_ACCESS_KEY"),
        "session_token": os.environ.get("AWS_SESSION_TOKEN"),
        "region": os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"),
        "endpoint": os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"),
    }
    return {name: value for name, value in named.items() if value}


# As Iceberg's properties call them, and as the storage does.
_NAMES = {
    "s3.endpoint": "endpoint",
    "s3.region": "region",
    "s3.access-key-id": "access_key_id",
    "s3.secret-access-key": "secret_access_key",
    "s3.session-token": "session_token",
    "client.region": "region",
}


def storage_by_properties(url: str, properties: Mapping[str, str]) -> Storage:
    """A folder or a bucket, with the keys under the names that Iceberg's catalogs have for them."""
    if not url.startswith("s3"):
        return create_storage(url)
    return create_storage(url, **{_NAMES[name]: value for name, value in properties.items() if name in _NAMES})
