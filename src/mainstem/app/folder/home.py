"""Where a data folder is: tables name their files by whole paths, so a folder that was moved or copied has to be told.

The catalog's folder says where it was when the server last ran. A server does not start on a folder that is elsewhere
now, because its tables would be the other folder's; `mainstem relocate` makes them its own.
"""

import asyncio
import shutil
import uuid
from pathlib import Path

from mainstem.catalog import SqliteStore
from mainstem.catalog.relocating import Prefixes, relocate
from mainstem.catalog.settings import CatalogSettings, catalog_path
from mainstem.catalog.store import Kind, Store
from mainstem.log.lock import FolderLock
from mainstem.model import Invalid
from mainstem.runtime import durable

_FILE = "home"
_LOCK_WAIT_S = 1.0


def settle_home(settings: CatalogSettings, data: Path, store: Store) -> None:
    """Refuse a folder whose tables are at another place, and note where this one is. Blocks."""
    if settings.postgres:
        # Shared: its tables are where the gateway that made them put them.
        return
    old = _old_home(data, store)
    if old is not None:
        raise Invalid(
            f"this data folder was moved or copied from {old}, and its tables still name their files there. "
            f"Run `mainstem relocate --data {data}` to make them its own."
        )
    _write_home(data)


def relocate_data(data: Path) -> tuple[Path | None, list[str]]:
    """Make a folder's tables its own: where it was, and which tables were moved. The server must be stopped."""
    data = data.absolute()
    if not catalog_path(data).exists():
        raise Invalid(f"no data folder with a catalog of its own. got={data}")
    lock = hold(data)
    store = SqliteStore(catalog_path(data))
    try:
        old = _old_home(data, store)
        if old is None:
            _write_home(data)
            return None, []
        moved = relocate(store, Prefixes(old, data), uuid.uuid4().hex[:8])
        # They name segments at the old place. The stream looks through all that are kept, and finds them covered.
        shutil.rmtree(data / "pipeline" / "checkpoints", ignore_errors=True)
        _write_home(data)
        return old, moved
    finally:
        store.close()
        lock.release()


def hold(data: Path) -> FolderLock:
    """Keep servers out of a folder. Raises Conflict while one runs."""
    folder = data / "log"
    folder.mkdir(parents=True, exist_ok=True)
    return asyncio.run(FolderLock.acquire(folder / "lock", _LOCK_WAIT_S))


def _old_home(data: Path, store: Store) -> Path | None:
    """Where the folder was, if that is not here and tables name files there."""
    noted = _noted_home(data)
    if noted is not None:
        if noted == data or _is_same(noted, data):
            return None
        return noted if _any_inside(store, noted) else None
    # From before it was noted: tables that are elsewhere, by names that are here as well.
    for kind in (Kind.TABLE, Kind.VIEW):
        for _, pointer in store.entries(None, kind):
            before, found, below = pointer.location.removeprefix("file://").rpartition("/warehouse/")
            home = Path(before)
            if found and home.is_absolute() and not _is_same(home, data) and (data / "warehouse" / below).is_dir():
                return home
    return None


def _any_inside(store: Store, home: Path) -> bool:
    prefixes = Prefixes(home, home)
    return any(prefixes.is_old(pointer.location) for kind in Kind for _, pointer in store.entries(None, kind))


def _is_same(one: Path, other: Path) -> bool:
    """Whether two paths are one folder, by whichever links."""
    try:
        return one.samefile(other)
    except OSError:
        return False


def _noted_home(data: Path) -> Path | None:
    try:
        return Path((catalog_path(data).parent / _FILE).read_text())
    except FileNotFoundError:
        return None


def _write_home(data: Path) -> None:
    noted = _noted_home(data)
    if noted is not None and (noted == data or _is_same(noted, data)):
        return
    folder = catalog_path(data).parent
    scratch = folder / f".{_FILE}"
    scratch.unlink(missing_ok=True)
    durable.write_new(str(scratch), str(data).encode())
    scratch.replace(folder / _FILE)
    durable.sync(folder)
