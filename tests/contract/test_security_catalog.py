"""The rules of the catalog as tables: who, what, by which token, with which result. Every cell is tried."""

import asyncio
import itertools
import json
import random
import shutil
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pyarrow as pa
import pytest

from mainstem.app.gateway import Gateway
from tests.contract.auth_tokens import SECURED, bearer, token
from tests.harness.inprocess import gateway_on_socket
from tests.harness.seeds import soak_seeds

SCHEMA = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "a", "required": False, "type": "long"}]}

WHO = {
    "nobody": None,
    "reader of sales": token("reader", "sales"),
    "writer of hr": token("writer", "hr"),
    "writer of sales": token("writer", "sales"),
    "writer of some tables": token("writer", "sales", tables=["orders", "new*"]),
    "admin of sales": token("admin", "sales"),
    "writer of everything": token("writer"),
    "admin of everything": token(),
}
# What whoever may not commit to sales.orders is told, whatever it says.
REFUSED = {"nobody": 401, "reader of sales": 403, "writer of hr": 404}


class Place(NamedTuple):
    """A server with tables in two namespaces, and what is where."""

    gateway: Gateway
    url: str
    warehouse: str
    folder: Path
    http: httpx.AsyncClient

    async def ask(self, who: str, method: str, path: str, body: Any = None) -> httpx.Response:
        text = WHO[who]
        return await self.http.request(method, path, json=body, headers=bearer(text) if text else {})

    async def made(self, namespace: str, name: str, **more: Any) -> dict[str, Any]:
        body = {"name": name, "schema": SCHEMA} | more
        answer = await self.ask("admin of everything", "POST", f"/v1/namespaces/{namespace}/tables", body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found


@asynccontextmanager
async def _place(folder: Path) -> AsyncIterator[Place]:
    async with AsyncExitStack() as stack:
        gateway, ws_url = await stack.enter_async_context(gateway_on_socket(folder / "data", gateway_config=SECURED))
        url = ws_url.replace("ws://", "http://").removesuffix("/ws")
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=60, base_url=url))
        place = Place(gateway, url, str(folder / "data" / "warehouse"), folder, http)
        for namespace, names in (("sales", ("orders",)), ("hr", ("plans",))):
            await place.ask("admin of everything", "POST", "/v1/namespaces", {"namespace": [namespace]})
            for name in names:
                await place.made(namespace, name)
        yield place


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with _place(tmp_path) as made:
        yield made


# --- 11, 12: every path in every update lies below the table's location, whoever brings it ---

PATHS: dict[str, tuple[Callable[[Place, str], str], bool]] = {
    "its own": (lambda _, own: f"{own}/metadata/x", True),
    "its own, as a URI": (lambda _, own: f"file://{own}/metadata/x", True),
    "deep in its own": (lambda _, own: f"{own}/some/where/x", True),
    "the folder itself": (lambda _, own: own, False),
    "another's": (lambda place, _: f"{place.warehouse}/hr/plans/metadata/x", False),
    "another's, as a URI": (lambda place, _: f"file:{place.warehouse}/hr/plans/metadata/x", False),
    "another's by dots": (lambda _, own: f"{own}/../../hr/plans/metadata/x", False),
    "another's by escaped dots": (lambda _, own: f"file:{own}/%2e%2e/%2e%2e/hr/plans/x", False),
    "a name that begins alike": (lambda _, own: f"{own}-12345678/metadata/x", False),
    "a system's file": (lambda _place, _own: "/etc/passwd", False),
    "another store": (lambda _place, _own: "s3://bucket/x", False),
    "relative": (lambda _place, _own: "metadata/x", False),
    "nothing": (lambda _place, _own: "", False),
}

_ids = itertools.count(1)


def _snapshot(**named: Any) -> dict[str, Any]:
    number = next(_ids)
    summary = {"operation": "append"}
    return {"snapshot-id": number, "sequence-number": 0, "timestamp-ms": number, "summary": summary, **named}


def _statistics(path: str) -> dict[str, Any]:
    return {"snapshot-id": 1, "statistics-path": path, "file-size-in-bytes": 1, "file-footer-size-in-bytes": 1}


UPDATES: dict[str, Callable[[str], dict[str, Any]]] = {
    "manifest-list": lambda path: {"action": "add-snapshot", "snapshot": _snapshot(**{"manifest-list": path})},
    "manifests": lambda path: {"action": "add-snapshot", "snapshot": _snapshot(manifests=[path])},
    "statistics": lambda path: {"action": "set-statistics", "statistics": {**_statistics(path), "blob-metadata": []}},
    "partition-statistics": lambda path: {
        "action": "set-partition-statistics",
        "partition-statistics": _statistics(path),
    },
}
WAYS = ("commit", "transaction")


def _request(way: str, updates: list[Any], name: str = "orders") -> tuple[str, Any]:
    change = {"requirements": [], "updates": updates}
    if way == "commit":
        return f"/v1/namespaces/sales/tables/{name}", change
    identifier = {"namespace": ["sales"], "name": name}
    return "/v1/transactions/commit", {"table-changes": [{**change, "identifier": identifier}]}


def _refusal(who: str, way: str) -> int | None:
    # A transaction names its tables in the body: whoever may not see one is told that the token is for others.
    return 403 if who == "writer of hr" and way == "transaction" else REFUSED.get(who)


async def test_a_path_in_a_commit_lies_below_the_table(place: Place) -> None:
    own = f"{place.warehouse}/sales/orders"
    for who, what, where, way in itertools.product(WHO, UPDATES, PATHS, WAYS):
        spelt, is_own = PATHS[where]
        path, body = _request(way, [UPDATES[what](spelt(place, own))])
        answer = await place.ask(who, "POST", path, body)
        expected = _refusal(who, way) or ((200 if way == "commit" else 204) if is_own else 400)
        assert answer.status_code == expected, (who, what, where, way, answer.text)
    # A snapshot of v1 is not let in by its `manifests` because it names a list as well.
    for named in ({"manifests": ["/etc/passwd"]}, {"manifests": "/etc/passwd"}, {"manifest-list": None}, {}):
        snapshot = _snapshot(**({"manifest-list": f"{own}/metadata/x"} if "manifests" in named else {}) | named)
        _, body = _request("commit", [{"action": "add-snapshot", "snapshot": snapshot}])
        answer = await place.ask("writer of sales", "POST", "/v1/namespaces/sales/tables/orders", body)
        assert answer.status_code == 400, (named, answer.text)


PROPERTIES = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")


async def test_files_are_written_below_the_table(place: Place) -> None:
    own = f"{place.warehouse}/sales/orders"
    bound = {"writer of sales", "writer of some tables", "admin of sales"}
    for who, name, where, key in itertools.product(WHO, PROPERTIES, PATHS, ("updates", "updated")):
        spelt, is_own = PATHS[where]
        value = spelt(place, own)
        path, body = _request("commit", [{"action": "set-properties", key: {name: value}}])
        answer = await place.ask(who, "POST", path, body)
        # For a folder to write into, its own folder is as good as one in it, and none is the default.
        is_own = is_own or where in ("the folder itself", "nothing")
        expected = REFUSED.get(who) or (403 if who in bound else 200 if is_own else 400)
        assert answer.status_code == expected, (who, name, where, key, answer.text)
    for who in bound:
        code = {"write.location-provider.impl": "x"}
        path, body = _request("commit", [{"action": "set-properties", "updates": code}])
        assert (await place.ask(who, "POST", path, body)).status_code == 403


async def test_a_table_that_a_transaction_makes_has_its_paths_checked_too(place: Place) -> None:
    for who, what, where in itertools.product(WHO, UPDATES, PATHS):
        name = f"new{next(_ids)}"
        own = f"{place.warehouse}/sales/{name}"
        spelt, is_own = PATHS[where]
        updates = [
            {"action": "add-schema", "schema": SCHEMA, "last-column-id": 1},
            {"action": "set-current-schema", "schema-id": -1},
            {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}},
            {"action": "set-default-spec", "spec-id": -1},
            {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
            {"action": "set-default-sort-order", "sort-order-id": -1},
            {"action": "set-location", "location": own},
            UPDATES[what](spelt(place, own)),
        ]
        body = {"requirements": [{"type": "assert-create"}], "updates": updates}
        answer = await place.ask(who, "POST", f"/v1/namespaces/sales/tables/{name}", body)
        expected = REFUSED.get(who) or (200 if is_own else 400)
        assert answer.status_code == expected, (who, what, where, answer.text)


REGISTERED: dict[str, Callable[[dict[str, Any], str], None]] = {
    "manifest-list": lambda doc, path: doc["snapshots"].append(_snapshot(**{"manifest-list": path})),
    "manifests": lambda doc, path: doc["snapshots"].append(_snapshot(manifests=[path])),
    "statistics": lambda doc, path: doc["statistics"].append(_statistics(path)),
    "partition-statistics": lambda doc, path: doc["partition-statistics"].append(_statistics(path)),
    "metadata-log": lambda doc, path: doc["metadata-log"].append({"timestamp-ms": 1, "metadata-file": path}),
    "write.data.path": lambda doc, path: doc["properties"].update({"write.data.path": path}),
    "write.metadata.path": lambda doc, path: doc["properties"].update({"write.metadata.path": path}),
}


async def test_a_metadata_file_that_is_registered_names_only_paths_below_its_table(place: Place) -> None:
    for what, where in itertools.product(REGISTERED, PATHS):
        spelt, is_own = PATHS[where]
        name = f"new{next(_ids)}"
        own = Path(place.warehouse) / "sales" / name
        document = (await place.made("sales", "template"))["metadata"]
        await place.ask("admin of everything", "DELETE", "/v1/namespaces/sales/tables/template?purgeRequested=true")
        document |= {"location": str(own), "snapshots": [], "statistics": [], "metadata-log": []}
        document |= {"partition-statistics": [], "properties": {}, "refs": {}}
        REGISTERED[what](document, spelt(place, str(own)))
        (own / "metadata").mkdir(parents=True)
        file = own / "metadata" / "00000-a.metadata.json"
        file.write_text(json.dumps(document))
        if what.startswith("write."):
            is_own = is_own or where in ("the folder itself", "nothing")
        for who in WHO:
            body = {"name": name, "metadata-location": str(file)}
            answer = await place.ask(who, "POST", "/v1/namespaces/sales/register", body)
            may = who in ("writer of everything", "admin of everything")
            expected = {"nobody": 401, "writer of hr": 404}.get(who) or (403 if not may else 200 if is_own else 400)
            assert answer.status_code == expected, (who, what, where, answer.text)
            if expected == 200:
                await place.ask("admin of everything", "DELETE", f"/v1/namespaces/sales/tables/{name}")


# --- 10, 12: where a table may be put ---

_OK, _DENIED, _INVALID = "ok", "denied", "invalid"


class Location(NamedTuple):
    """A place for the new table `sales.{name}`, and what becomes of it for each kind of token."""

    spelt: Callable[[Place, str], str]
    bound: str
    writer: str
    admin: str


LOCATIONS: dict[str, Location] = {
    "its own": Location(lambda p, name: f"{p.warehouse}/sales/{name}", _OK, _OK, _OK),
    "its own, as a URI": Location(lambda p, name: f"file://{p.warehouse}/sales/{name}/", _OK, _OK, _OK),
    "beside its own, as the catalog does it": Location(
        lambda p, name: f"{p.warehouse}/sales/{name}~12345678", _OK, _OK, _OK
    ),
    "a name that begins alike": Location(lambda p, name: f"{p.warehouse}/sales/{name}-12345678", _DENIED, _OK, _OK),
    "in its own": Location(lambda p, name: f"{p.warehouse}/sales/{name}/below", _DENIED, _OK, _OK),
    "another's": Location(lambda p, _: f"{p.warehouse}/hr/plans", _DENIED, _INVALID, _INVALID),
    "another's, as a URI": Location(lambda p, _: f"file:///{p.warehouse[1:]}/hr/plans", _DENIED, _INVALID, _INVALID),
    "another's, as another URI": Location(lambda p, _: f"file:{p.warehouse}/hr/plans/", _DENIED, _INVALID, _INVALID),
    "in another's data": Location(lambda p, _: f"{p.warehouse}/hr/plans/data/t", _DENIED, _INVALID, _INVALID),
    "around others": Location(lambda p, _: f"{p.warehouse}/hr", _DENIED, _INVALID, _INVALID),
    "the warehouse": Location(lambda p, _: p.warehouse, _DENIED, _DENIED, _INVALID),
    "above the warehouse": Location(lambda p, _: str(p.folder), _DENIED, _DENIED, _INVALID),
    "the root": Location(lambda _p, _n: "/", _DENIED, _DENIED, _INVALID),
    "outside": Location(lambda p, name: str(p.folder / "outside" / name), _DENIED, _DENIED, _OK),
    "outside by dots": Location(lambda p, name: f"{p.warehouse}/../../x/{name}", _DENIED, _DENIED, _INVALID),
    "its own by dots": Location(lambda p, name: f"{p.warehouse}/hr/../sales/{name}", _DENIED, _DENIED, _INVALID),
    "relative": Location(lambda _p, name: f"sales/{name}", _DENIED, _DENIED, _INVALID),
    "a URI of another machine": Location(lambda p, _: f"file://host{p.warehouse}/hr/x", _DENIED, _DENIED, _INVALID),
}
_MADE = {"create": 200, "stage": 200, "transaction": 200, "set-location": 200, "view": 200, "generic": 200}


async def _put(place: Place, who: str, how: str, name: str, location: str) -> httpx.Response:
    tables = "/v1/namespaces/sales/tables"
    body: dict[str, Any] = {"name": name, "schema": SCHEMA, "location": location}
    match how:
        case "create":
            return await place.ask(who, "POST", tables, body)
        case "stage":
            return await place.ask(who, "POST", tables, body | {"stage-create": True})
        case "transaction":
            updates = [
                {"action": "add-schema", "schema": SCHEMA, "last-column-id": 1},
                {"action": "set-current-schema", "schema-id": -1},
                {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}},
                {"action": "set-default-spec", "spec-id": -1},
                {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
                {"action": "set-default-sort-order", "sort-order-id": -1},
                {"action": "set-location", "location": location},
            ]
            change = {"requirements": [{"type": "assert-create"}], "updates": updates}
            return await place.ask(who, "POST", f"{tables}/{name}", change)
        case "set-location":
            await place.made("sales", name)
            change = {"requirements": [], "updates": [{"action": "set-location", "location": location}]}
            return await place.ask(who, "POST", f"{tables}/{name}", change)
        case "view":
            version = {"version-id": 1, "timestamp-ms": 1, "schema-id": 0, "summary": {}}
            version |= {"default-namespace": ["sales"]}
            version |= {"representations": [{"type": "sql", "sql": "SELECT 1", "dialect": "spark"}]}
            view = {"name": name, "schema": SCHEMA, "location": location, "view-version": version, "properties": {}}
            return await place.ask(who, "POST", "/v1/namespaces/sales/views", view)
        case _:
            generic = {"name": name, "format": "delta", "base-location": location}
            return await place.ask(who, "POST", "/v1/namespaces/sales/generic-tables", generic)


async def test_where_a_table_may_be_put(place: Place) -> None:
    kinds = {"writer of everything": "writer", "admin of everything": "admin"}
    for who, how, where in itertools.product(WHO, _MADE, LOCATIONS):
        name = f"new{next(_ids)}"
        rule = LOCATIONS[where]
        answer = await _put(place, who, how, name, rule.spelt(place, name))
        result = getattr(rule, kinds.get(who, "bound"))
        expected = REFUSED.get(who)
        if who == "writer of hr" and how == "set-location":
            expected = 404
        expected = expected or {_OK: _MADE[how], _DENIED: 403, _INVALID: 400}[result]
        assert answer.status_code == expected, (who, how, where, answer.text)
        if expected == 200 or how == "set-location":
            kind = {"view": "views", "generic": "generic-tables"}.get(how, "tables")
            await place.ask("admin of everything", "DELETE", f"/v1/namespaces/sales/{kind}/{name}")


async def test_a_name_is_no_way_through_folders(place: Place) -> None:
    for name in (".", ".."):
        for path, body in (
            ("/v1/namespaces", {"namespace": [name]}),
            ("/v1/namespaces", {"namespace": ["sales", name]}),
            ("/v1/namespaces/sales/tables", {"name": name, "schema": SCHEMA}),
            ("/v1/namespaces/sales/generic-tables", {"name": name, "format": "delta", "base-location": "/x/y"}),
        ):
            answer = await place.ask("admin of everything", "POST", path, body)
            assert answer.status_code == 400, (name, path, answer.text)


async def test_tables_of_a_nested_namespace_are_put_beside_the_table_of_its_name(place: Place) -> None:
    """`sales.orders` is a table; `sales.orders.lines` would lie in its folder."""
    await place.ask("admin of everything", "POST", "/v1/namespaces", {"namespace": ["sales", "orders"]})
    for _ in range(2):
        body = {"name": "lines", "schema": SCHEMA}
        answer = await place.ask("writer of sales", "POST", "/v1/namespaces/sales%1Forders/tables", body)
        assert answer.status_code == 200, answer.text
        location = answer.json()["metadata"]["location"]
        assert not location.startswith(f"{place.warehouse}/sales/orders/")
        staged = {"name": "staged", "schema": SCHEMA, "stage-create": True}
        answer = await place.ask("writer of sales", "POST", "/v1/namespaces/sales%1Forders/tables", staged)
        # What the catalog gave is taken when the transaction ends with it.
        change = {"requirements": [], "updates": [{"action": "set-location", "location": location}]}
        answer = await place.ask("writer of sales", "POST", "/v1/namespaces/sales%1Forders/tables/lines", change)
        assert answer.status_code == 200, answer.text
        await place.ask("admin of everything", "DELETE", "/v1/namespaces/sales%1Forders/tables/lines")


# --- 10: a purge takes the table's own files ---


class Lake:
    """Real tables in a server, and what lies in its folders."""

    def __init__(self, place: Place) -> None:
        from pyiceberg.catalog.rest import RestCatalog

        self.place = place
        self.catalog = RestCatalog("lake", uri=place.url, token=token())
        self.rows = pa.table({"a": pa.array([1, 2], pa.int64())})

    def fill(self, name: str, **more: Any) -> Any:
        table = self.catalog.create_table(name, self.rows.schema, **more)
        table.append(self.rows)
        table.append(self.rows)
        return table

    def files(self) -> set[str]:
        """Everything that lies in the test's folder, below tables."""
        found = {str(path) for path in self.place.folder.rglob("*") if path.is_file()}
        return {path for path in found if "/warehouse/" in path or "/outside/" in path}


@pytest.fixture
async def lake(place: Place) -> AsyncIterator[Lake]:
    made = await asyncio.to_thread(Lake, place)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield made


def _same_spelt_otherwise(lake: Lake) -> Iterator[str]:
    yield from (f"file://{lake.place.warehouse}/hr/filled", f"file:{lake.place.warehouse}/hr/filled")


async def test_a_purge_takes_the_listed_files_and_no_others(lake: Lake) -> None:
    await asyncio.to_thread(_purges, lake)


def _purges(lake: Lake) -> None:
    from pyiceberg.exceptions import RESTError

    kept = lake.fill("hr.filled")
    (kept_file, *_) = [task.file.file_path for task in kept.scan().plan_files()]
    before = lake.files()
    outside = str(lake.place.folder / "outside" / "t")
    inside = f"{lake.place.warehouse}/sales/paths/elsewhere"
    made: dict[str, Any] = {
        "sales.plain": {},
        "sales.outside": {"location": outside},
        "sales.paths": {"properties": {"write.data.path": inside}},
        "sales.short": {"properties": {"write.metadata.previous-versions-max": "1"}},
    }
    for name, more in made.items():
        lake.fill(name, **more)
        assert len(lake.files() - before) > 6
        lake.catalog.purge_table(name)
        assert lake.files() == before, name
    # A file that no metadata lists is not known to be the table's.
    table = lake.fill("sales.strangers")
    stray = Path(table.location()) / "data" / "letters.txt"
    stray.write_text("mine")
    # A file of another's that a manifest lists is the other's.
    table.add_files([kept_file])
    lake.catalog.purge_table("sales.strangers")
    assert lake.files() - before == {str(stray)}
    assert kept.scan().to_arrow().num_rows == 4
    # A table says that its files are not for deleting.
    table = lake.fill("sales.shared", properties={"gc.enabled": "false"})
    before = lake.files()
    with pytest.raises(RESTError, match="GC is disabled"):
        lake.catalog.purge_table("sales.shared")
    assert lake.files() == before and lake.catalog.table_exists("sales.shared")
    # A symbolic link leads out of the location, whatever the path says.
    linked = lake.fill("sales.linked", properties={"write.metadata.previous-versions-max": "1"})
    data = Path(linked.location()) / "data"
    data.rename(lake.place.folder / "moved")
    data.symlink_to(lake.place.folder / "moved")
    lake.catalog.purge_table("sales.linked")
    assert len(list((lake.place.folder / "moved").iterdir())) == 2


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", soak_seeds(0, 4))
async def test_tables_that_come_and_go_for_long(lake: Lake, seed: int) -> None:
    await asyncio.to_thread(_come_and_go, lake, random.Random(seed))


def _come_and_go(lake: Lake, draw: random.Random) -> None:
    """Make and purge tables at places of every spelling: a purge takes its table's files, and every other reads on."""
    from pyiceberg.exceptions import RESTError

    foreign = lake.place.folder / "outside" / "foreign" / "letters.txt"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("mine")
    there: dict[str, Any] = {}
    for number in range(150):
        if there and draw.random() < 0.45:
            lake.catalog.purge_table(draw.choice(sorted(there)))
            there = {name: table for name, table in there.items() if lake.catalog.table_exists(name)}
        else:
            name, other = f"sales.t{number}", draw.choice([table.location() for table in there.values()] or ["/x"])
            root = f"{lake.place.warehouse}/sales"
            location = draw.choice(
                [None, f"{root}/t{number}", f"file://{root}/t{number}", f"{root}/../../x", f"{root}/./t{number}", other,
                 f"{other}/data/in", f"{other}/", f"{other}-12345678", f"{other}~12345678", f"file:{other}", root,
                 lake.place.warehouse, str(foreign.parent.parent / f"t{number}"), str(foreign.parent), f"{foreign}/t"]
            )  # fmt: skip
            try:
                there[name] = lake.fill(name, **({} if location is None else {"location": location}))
            except (RESTError, OSError):
                # Refused, or no folder can be made there; what it may have begun is not to be seen.
                there = {name: table for name, table in there.items() if lake.catalog.table_exists(name)}
        assert foreign.read_text() == "mine"
        for name in there:
            assert lake.catalog.load_table(name).scan().to_arrow().num_rows == 4, name


async def test_two_names_never_share_a_place(lake: Lake) -> None:
    """Not by the same metadata file, and not by another spelling of the place."""
    kept = await asyncio.to_thread(lake.fill, "hr.filled")
    place = lake.place
    for who in ("writer of everything", "admin of everything"):
        body = {"name": "again", "metadata-location": kept.metadata_location}
        for overwrite in (False, True):
            answer = await place.ask(who, "POST", "/v1/namespaces/hr/register", body | {"overwrite": overwrite})
            assert answer.status_code == 400 and "location is taken" in answer.text
        for spelt in _same_spelt_otherwise(lake):
            new = {"name": "again", "schema": SCHEMA, "location": spelt}
            answer = await place.ask(who, "POST", "/v1/namespaces/hr/tables", new)
            assert answer.status_code == 400 and "location is taken" in answer.text
    # What an older version let in is spared by a purge of either.
    from mainstem.catalog.names import TableIdent
    from mainstem.catalog.stores.store import Kind, Swap

    catalog = place.gateway.catalog
    pointer = catalog._store.entry(TableIdent(("hr",), "filled"))
    assert pointer is not None and pointer.kind is Kind.TABLE
    assert catalog._store.swap([Swap(TableIdent(("hr",), "again"), None, pointer)])
    before = lake.files()
    await asyncio.to_thread(lake.catalog.purge_table, "hr.again")
    assert lake.files() == before
    # Renamed, its folder stays its own: the next table of the old name goes elsewhere.
    await asyncio.to_thread(lake.catalog.rename_table, "hr.filled", "hr.renamed")
    made = await place.made("hr", "filled")
    assert made["metadata"]["location"] != kept.location()


async def test_manifests_of_another_are_not_read_through_a_list_of_ones_own(lake: Lake) -> None:
    """Their statistics would tell what is in the other's files."""
    theirs = await asyncio.to_thread(lake.fill, "hr.filled")
    place = lake.place
    own = f"{place.warehouse}/sales/orders"
    stolen = Path(own) / "metadata" / "snap.avro"
    await asyncio.to_thread(shutil.copyfile, theirs.current_snapshot().manifest_list, stolen)
    snapshot = _snapshot(**{"manifest-list": str(stolen)})
    main = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": snapshot["snapshot-id"]}
    path, body = _request("commit", [{"action": "add-snapshot", "snapshot": snapshot}, main])
    assert (await place.ask("writer of sales", "POST", path, body)).status_code == 200
    for who in ("reader of sales", "writer of sales", "admin of everything"):
        for method, what in (("POST", "plan"), ("GET", "partitions"), ("GET", "partition-stats")):
            answer = await place.ask(who, method, f"{path}/{what}", {} if method == "POST" else None)
            assert answer.status_code == 403 and "beyond its location" in answer.text, (who, what, answer.text)


# --- 2, 11: how much of a log a table covers is not for a tenant to say ---

MARKS = ({"mainstem.position": "9"}, {"mainstem.position.0123456789abcdef": "9"})
SAYS_MARKS = {"writer of sales": 403, "writer of some tables": 403, "admin of sales": 403, "writer of everything": 200}


@pytest.mark.parametrize("way", WAYS)
async def test_what_a_table_covers_of_a_log_is_not_for_a_tenant_to_say(place: Place, way: str) -> None:
    """A log that is behind its tables takes another identity: all tenants' cursors and resume tokens would end."""
    for mark, (who, status) in itertools.product(MARKS, SAYS_MARKS.items()):
        own = f"{place.warehouse}/sales/orders/metadata/snap.avro"
        snapshot = _snapshot(**{"manifest-list": own})
        plain = _request(way, [{"action": "add-snapshot", "snapshot": snapshot}])
        assert (await place.ask(who, "POST", *plain)).status_code in (200, 204), who
        marked = _snapshot(**{"manifest-list": own, "summary": {"operation": "append", **mark}})
        answer = await place.ask(who, "POST", *_request(way, [{"action": "add-snapshot", "snapshot": marked}]))
        assert (answer.status_code == 403) == (status == 403), (who, mark, answer.text)


async def test_a_generic_tables_marks_are_not_for_a_tenant_to_say(place: Place) -> None:
    path = "/v1/namespaces/sales/generic-tables"
    for number, (mark, (who, status)) in enumerate(itertools.product(MARKS, SAYS_MARKS.items())):
        name = f"new{number}"
        body = {"name": name, "format": "delta", "base-location": f"{place.warehouse}/sales/{name}"}
        made = await place.ask(who, "POST", path, body | {"properties": mark})
        assert made.status_code == status, (who, mark, made.text)
        if status == 403:
            assert (await place.ask(who, "POST", path, body)).status_code == 200, (who, mark)
            changed = await place.ask(who, "POST", f"{path}/{name}", {"properties": mark})
            assert changed.status_code == 403, (who, mark, changed.text)


# --- The rules of a sync gateway are its admin's, by whatever way ---

RULES_OF = ("sync_rules", "sync_rules_history", "sync_rules_dead_letters")


async def test_no_writer_touches_the_rules_of_a_sync_gateway(place: Place) -> None:
    for name in RULES_OF:
        await place.made("sales", name)
    path = "/v1/namespaces/sales/tables"
    commit = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "b"}}]}
    for name, who in itertools.product(RULES_OF, ("writer of sales", "writer of everything", "admin of sales")):
        found = {
            (await place.ask(who, "POST", *_request("commit", commit["updates"], name))).status_code,
            (await place.ask(who, "POST", *_request("transaction", commit["updates"], name))).status_code,
            (await place.ask(who, "POST", f"/v1/tables/sales.{name}/rollback", {"snapshotId": "1"})).status_code,
        }
        assert (found == {403}) == who.startswith("writer"), (name, who, found)
        assert (await place.ask(who, "GET", f"{path}/{name}")).status_code == 200
    for name in RULES_OF:
        assert (await place.ask("writer of sales", "DELETE", f"{path}/{name}")).status_code == 403
        assert (await place.ask("admin of sales", "DELETE", f"{path}/{name}")).status_code == 204
        body = {"name": name, "schema": SCHEMA}
        assert (await place.ask("writer of sales", "POST", path, body)).status_code == 403
    # Rows that do not fit a declared type are passed over, by feeds as well: rules would not hold any more.
    declared = await place.ask(
        "admin of everything", "PUT", f"{path}/sync_rules/schemas", {"columns": {"rules": "long"}}
    )
    assert declared.status_code == 400 and "reserved" in declared.text


async def test_nobody_bound_to_something_says_which_collections_there_are(place: Place) -> None:
    """The Mongo door reads it of every database when it makes its store anew: garbage would keep it from starting."""
    await place.ask("admin of everything", "POST", "/v1/namespaces", {"namespace": ["sales", "system"]})
    path, body = "/v1/namespaces/sales%1Fsystem/tables", {"name": "collections", "schema": SCHEMA}
    row = {"_id": "orders"}
    for who in ("writer of sales", "admin of sales", "writer of everything", "admin of everything"):
        may = who == "admin of everything"
        assert ((await place.ask(who, "POST", path, body)).status_code == 200) == may, who
        sent = await place.ask(who, "POST", "/v1/ingest/sales.system/collections?key=_id", row)
        assert (sent.status_code == 403) != may, (who, sent.text)


# --- 17: what is wrong with one table fails for that table ---

SICK: dict[str, Callable[[str], dict[str, Any]]] = {
    "a manifest list that is missing": lambda own: {"manifest-list": f"{own}/metadata/missing.avro"},
    "a manifest list that is no Avro": lambda own: {"manifest-list": f"{own}/metadata/text.avro"},
    "a position that is none": lambda own: {
        "manifest-list": f"{own}/metadata/missing.avro",
        "summary": {"operation": "append", "mainstem.position": "abc", "mainstem.hlc-max": "abc"},
    },
    "counts that are none": lambda own: {
        "manifest-list": f"{own}/metadata/missing.avro",
        "summary": {"operation": "append", "total-data-files": "\u00b2", "total-records": "9" * 5000},
    },
    "manifests in the snapshot": lambda own: {"manifests": [f"{own}/metadata/missing.avro"]},
}
ABOUT_ALL = (
    ("GET", "/v1/overview", None),
    ("GET", "/v1/write-stats", None),
    ("GET", "/v1/compaction/candidates", None),
    ("POST", "/v1/compaction/run", {"namespace": "sales", "dryRun": True}),
    ("POST", "/v1/compaction/run", {"namespace": "hr", "dryRun": True}),
    ("POST", "/v1/compaction/auto", {"dryRun": True}),
    ("GET", "/v1/compaction/metrics", None),
    ("GET", "/status", None),
    ("GET", "/metrics", None),
)


@pytest.mark.parametrize("sick", SICK)
async def test_what_is_wrong_with_a_table_stays_with_it(lake: Lake, sick: str) -> None:
    place = lake.place
    await asyncio.to_thread(lake.fill, "hr.filled")
    own = f"{place.warehouse}/sales/orders"
    await asyncio.to_thread(Path(own, "metadata", "text.avro").write_text, "no Avro")
    snapshot = _snapshot(**SICK[sick](own))
    properties = {"mainstem.position": "abc", "write.target-file-size-bytes": "9" * 5000}
    updates = [
        {"action": "set-properties", "updates": properties},
        {"action": "add-snapshot", "snapshot": snapshot},
        {
            "action": "set-snapshot-ref",
            "ref-name": "main",
            "type": "branch",
            "snapshot-id": snapshot["snapshot-id"],
        },
    ]
    path, body = _request("commit", updates)
    assert (await place.ask("writer of sales", "POST", path, body)).status_code == 200
    admin = "admin of everything"
    for method, about, asked in ABOUT_ALL:
        answer = await place.ask(admin, method, about, asked)
        assert answer.status_code in (200, 201), (about, answer.text)
    # The healthy one is there, and the sick one is told of.
    candidates = (await place.ask(admin, "GET", "/v1/compaction/candidates")).json()
    assert [each["table"] for each in candidates["failures"]] == ["sales.orders"]
    plan = {"namespace": "hr", "dryRun": True, "minFiles": 2}
    planned = (await place.ask(admin, "POST", "/v1/compaction/run", plan)).json()
    assert [each["table"] for each in planned["plan"]] == ["filled"] and planned["failures"] == []
    overview = (await place.ask(admin, "GET", "/v1/overview")).json()
    told = {each["table"] for each in (*overview["tables"], *overview["failures"])}
    assert "hr.filled" in {each["table"] for each in overview["tables"]} and "sales.orders" in told
    # Whoever does not see the table hears nothing of it, and whoever asks for it is told by name.
    others = (await place.ask("writer of hr", "GET", "/v1/overview")).json()
    assert "sales" not in json.dumps(others)
    answer = await place.ask(admin, "GET", "/v1/compaction/candidates?namespace=sales&table=orders")
    assert answer.status_code in (403, 409, 500) and answer.json()["error"]["message"], answer.text
