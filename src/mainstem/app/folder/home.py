"""Where a data folder is: tables name their files by whole paths, so a folder that was moved or copied has to be told.

The catalog's folder says where it was when servers ran on it: by each name that it had, since a link is one more name,
and tables are named by the one of their time. A server does not start on a folder that is elsewhere now, by any name
that tables have, because those would be the other folder's; `mainstem relocate` makes them its own.
"""

import asyncio
import shutil
import uuid
from pathlib import Path

from mainstem.catalog import SqliteStore
from mainstem.catalog.relocating import Prefixes, relocate
from mainstem.catalog.settings import CatalogSettings, catalog_path
from mainstem.catalog.stores.store import Kind, Store
from mainstem.log.lock import FolderLock
from mainstem.model import Invalid
from mainstem.runtime import durable

_FILE = "home"
_LOCK_WAIT_S = 1.0


def settle_home(settings: CatalogSettings, data: Path, store: Store) -> None:
    """Refuse a folder whose tables are at another place, and note where this one is. Blocks."""
    if settings.postgres or settings.uri:
        # Shared: its tables are where the gateway that made them put them.
        return
    old = _old_homes(data, store)
    if old:
        raise Invalid(
            f"this data folder was moved or copied from {old[0]}, and its tables still name their files there. "
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
        old = _old_homes(data, store)
        if not old:
            _write_home(data)
            return None, []
        for home in old:
            if _is_same(home / "warehouse", data / "warehouse"):
                raise Invalid(
                    f"the warehouse of this folder is a link to that of {home}, whose tables it would write into. "
                    f"expected=files of its own got={(data / 'warehouse').resolve()}"
                )
        moved = relocate(store, Prefixes(old, data), uuid.uuid4().hex[:8])
        # They name segments at the old place. The stream looks through all that are kept, and finds them covered.
        shutil.rmtree(data / "pipeline" / "checkpoints", ignore_errors=True)
        _write_homes(data, [data])
        return old[0], moved
    finally:
        store.close()
        lock.release()


def hold(data: Path) -> FolderLock:
    """Keep servers out of a folder. Raises Conflict while one runs."""
    folder = data / "log"
    folder.mkdir(parents=True, exist_ok=True)
    return asyncio.run(FolderLock.acquire(folder / "lock", _LOCK_WAIT_S))


def _old_homes(data: Path, store: Store) -> list[Path]:
    """Where the folder was, by the names that are not this folder and that tables have."""
    noted = _noted_homes(data)
    if noted:
        return [home for home in noted if not _is_same(home, data) and _any_inside(store, home)]
    # From before it was noted: tables that are elsewhere, by names that are here as well.
    for kind in (Kind.TABLE, Kind.VIEW):
        for _, pointer in store.entries(None, kind):
            before, found, below = pointer.location.removeprefix("file://").rpartition("/warehouse/")
            home = Path(before)
            if found and home.is_absolute() and not _is_same(home, data) and (data / "warehouse" / below).is_dir():
                return [home]
    return []


def _any_inside(store: Store, home: Path) -> bool:
    prefixes = Prefixes([home], home)
    return any(prefixes.is_old(pointer.location) for kind in Kind for _, pointer in store.entries(None, kind))


def _is_same(one: Path, other: Path) -> bool:
    """Whether two paths are one folder, by whichever links."""
    try:
        return one == other or one.samefile(other)
    except OSError:
        return False


def _noted_homes(data: Path) -> list[Path]:
    try:
        return [Path(line) for line in (catalog_path(data).parent / _FILE).read_text().split("\0") if line]
    except FileNotFoundError:
        return []


def _write_home(data: Path) -> None:
    """Note this name beside the others that are this folder's; those of other folders are names of no table."""
    noted = _noted_homes(data)
    if data not in noted:
        _write_homes(data, [data, *(home for home in noted if _is_same(home, data))])


def _write_homes(data: Path, homes: list[Path]) -> None:
    folder = catalog_path(data).parent
    scratch = folder / f".{_FILE}"
    scratch.unlink(missing_ok=True)
    durable.write_new(str(scratch), "\0".join(map(str, homes)).encode())
    scratch.replace(folder / _FILE)
    durable.sync(folder)
