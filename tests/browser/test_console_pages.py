"""The console's pages in a real Chromium, on tables that pyiceberg wrote: what needs no Spark to be seen."""

import asyncio
import itertools
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from playwright.async_api import Page, expect
from pyiceberg.catalog.rest import RestCatalog

from mainstem.app.config import Config, LogConfig, ServerConfig
from mainstem.app.process import ServerProcess
from mainstem.client import CdcClient, HttpTransport, LocalDB, SyncCoordinator, Table, insert
from tests.contract.auth_tokens import SECURED, token
from tests.harness.browser import browser_page, keep, until
from tests.harness.inprocess import gateway_on_socket

PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1360, "height": 1000}
ROWS = 200
LONG = "a_namespace_of_some_department_whose_name_is_long"
# The boxes of a plot's labels below, from left to right.
LABELS = """() => { const all = [...document.querySelectorAll('#plot text')];
  const low = Math.max(...all.map((each) => each.getBoundingClientRect().top));
  return all.filter((each) => each.getBoundingClientRect().top === low)
    .map((each) => { const at = each.getBoundingClientRect(); return [each.textContent, at.left, at.right]; }); }"""
# Top and bottom of the last line in the editor.
TYPED = """() => { const all = document.createRange(); all.selectNodeContents(document.querySelector('.colours'));
  const at = [...all.getClientRects()].filter((each) => each.width > 4).pop(); return [at.top, at.bottom]; }"""
DRAWN = """[...document.querySelectorAll('.chart')]
  .every((each) => each.firstChild.viewBox.baseVal.width === each.clientWidth)"""
CUT_OFF = """() => [...document.querySelectorAll('main .scroll')]
  .filter((each) => each.checkVisibility() && each.scrollWidth > each.clientWidth)
  .map((each) => each.firstChild.id || each.closest('section').id)"""


def fill(url: str) -> None:
    """Tables with dates, nulls and long names, and one without rows."""
    days = [date(2020, 1, 1) + timedelta(days=n) for n in range(ROWS)]
    rows = pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "day": pa.array(days, pa.date32()),
            "seen": pa.array([datetime(2021, 1, 1, tzinfo=UTC) + timedelta(hours=n) for n in range(ROWS)]),
            "year": pa.array([1990 + n % 30 for n in range(ROWS)], pa.int32()),
            "price": pa.array([None if n % 7 == 0 else Decimal(n) / 4 for n in range(ROWS)], pa.decimal128(10, 2)),
            "alone": pa.array([n if n % 2 else None for n in range(ROWS)], pa.int64()),
            "nothing": pa.array([None] * ROWS, pa.int64()),
            "raw": pa.array([b'{"page": "/"}' if n % 2 else b"\xff\x00" for n in range(ROWS)]),
            "note": pa.array(["a long note " * 20 if n % 11 == 0 else None for n in range(ROWS)]),
        }
    )
    catalog = RestCatalog("lake", uri=url)
    for namespace, names in (("shop", ("orders", "empty")), (LONG, ("order_lines_of_last_year_and_the_year_before",))):
        catalog.create_namespace(namespace)
        for name in names:
            table = catalog.create_table(f"{namespace}.{name}", schema=rows.schema)
            if name != "empty":
                table.append(rows)


def make_empty(url: str) -> None:
    catalog = RestCatalog("lake", uri=url, token=token("admin"))
    catalog.create_namespace("shop")
    catalog.create_table("shop.orders", pa.schema([("id", pa.int64())]))


@asynccontextmanager
async def lake(folder: Path) -> AsyncIterator[tuple[str, str]]:
    """A gateway with these tables: its URL, and that of its WebSocket."""
    async with gateway_on_socket(folder) as (_, ws_url):
        url = ws_url.replace("ws://", "http://").removesuffix("/ws")
        await asyncio.to_thread(fill, url)
        yield url, ws_url


async def run(page: Page, sql: str) -> None:
    await page.fill("#sql", sql)
    await page.press("#sql", "Escape")
    await page.click("#run")
    await expect(page.locator("#result tbody tr").first).to_be_visible()


async def labels(page: Page) -> list[str]:
    """The labels below the plot, which do not touch each other."""
    found = await page.evaluate(LABELS)
    assert len(found) > 1
    for (left_text, _, end), (text, begin, _) in itertools.pairwise(found):
        assert end < begin, (left_text, text)
    return [text for text, _, _ in found]


@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
async def test_a_plot_has_labels_that_differ_and_gaps_for_nulls(tmp_path: Path, size: dict[str, int]) -> None:
    async with lake(tmp_path) as (url, _), browser_page(url) as page:
        await page.set_viewport_size({"width": size["width"], "height": size["height"]})
        await page.goto(f"{url}/console/query")
        await run(page, "SELECT year, count(*) AS n FROM shop.orders GROUP BY 1 ORDER BY 1")
        # A number is no place in time, and nobody asked for a plot of it.
        await expect(page.locator("#plot-panel")).to_be_hidden()
        await page.click("#plot-it")
        years = await labels(page)
        assert years[0] == "1990" and len(set(years)) == len(years)
        await run(page, "SELECT day, price FROM shop.orders ORDER BY 1")
        days = await labels(page)
        assert days[0] == "2020-01-01" and all(re.fullmatch(r"2020-\d\d-\d\d", day) for day in days)
        # One line for each stretch without a null.
        await expect(page.locator("#plot path.line")).to_have_count(ROWS // 7 + 1)
        await keep(page, f"plot-{size['width']}")
        await run(page, "SELECT day, alone FROM shop.orders ORDER BY 1")
        await expect(page.locator("#plot circle.mark")).to_have_count(ROWS // 2)
        await expect(page.locator("#plot path.line")).to_have_count(0)
        await run(page, "SELECT day, nothing FROM shop.orders ORDER BY 1")
        await expect(page.locator("#plot")).to_contain_text("every value is null")
        assert await page.evaluate("document.documentElement.scrollWidth") <= size["width"]


@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
async def test_completions_cover_neither_what_is_typed_nor_the_buttons(tmp_path: Path, size: dict[str, int]) -> None:
    async with lake(tmp_path) as (url, _), browser_page(url) as page:
        await page.set_viewport_size({"width": size["width"], "height": size["height"]})
        async with page.expect_response(f"{url}/v1/overview?limit=1000"):
            await page.goto(f"{url}/console/query")
        await page.fill("#sql", "")
        # Lines of which the last one is at the end of the field.
        for text in ("SELECT day, pri", "SELECT id,\n\n\n\n\n  pri"):
            await page.fill("#sql", "")
            await page.type("#sql", text)
            await expect(page.locator("#completions li").first).to_have_text(re.compile("price.*column"))
            shown = await page.locator("#completions").bounding_box()
            typed = await page.evaluate(TYPED)
            field = await page.locator("#sql").bounding_box()
            assert shown is not None and field is not None
            top, bottom = shown["y"], shown["y"] + shown["height"]
            assert top >= typed[1] - 1 or bottom <= typed[0] + 1, (text, shown, typed)
            assert field["y"] <= top and bottom <= field["y"] + field["height"]
            assert field["x"] <= shown["x"] and shown["x"] + shown["width"] <= field["x"] + field["width"]
            await keep(page, f"completions-{size['width']}")
            await page.press("#sql", "Tab")
            await expect(page.locator("#sql")).to_have_value(text + "ce")


async def test_bytes_that_are_text_are_shown_as_text_and_long_answers_say_so(tmp_path: Path) -> None:
    async with lake(tmp_path) as (url, _), browser_page(url) as page:
        await page.goto(f"{url}/console/query")
        await run(page, "SELECT raw FROM shop.orders WHERE id < 2 ORDER BY id")
        cells = page.locator("#result tbody td")
        await expect(cells.nth(0)).to_have_text("/wA=")
        await expect(cells.nth(1)).to_have_text('{"page": "/"}')
        # What is not shown is not kept quiet about.
        await run(page, "SELECT a.id FROM shop.orders AS a, shop.orders AS b LIMIT 600")
        await expect(page.locator("#result tbody tr")).to_have_count(501)
        await expect(page.locator("#result tbody tr").last).to_contain_text("500 of 600")


async def test_a_phone_cuts_no_list_off(tmp_path: Path) -> None:
    async with lake(tmp_path) as (url, ws_url), browser_page(url) as page:
        await page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
        async with CdcClient(ws_url, source="the-database-of-the-whole-department") as client:
            await (await client.send([insert("shop.more", str(n), {"n": n}) for n in range(50)])).durable()
        for path, seen in (
            ("/console", "#tables [data-key='shop.orders']"),
            ("/console/tables/shop.orders", "#snapshots [data-key]"),
            (f"/console/tables/{LONG}.order_lines_of_last_year_and_the_year_before", "#snapshots [data-key]"),
            ("/console/activity", "#clients [data-key]"),
            ("/console/settings", "#settings tr"),
        ):
            await page.goto(f"{url}{path}")
            await expect(page.locator(seen).first).to_be_visible()
            # Rows of a table are as wide as they are, and scroll.
            assert set(await page.evaluate(CUT_OFF)) <= {"rows-panel"}, path
            assert await page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
            assert await page.locator("td.empty").evaluate_all(
                "(all) => all.every((e) => e.scrollWidth <= e.clientWidth)"
            )
            if path == "/console":
                # Tables of one name in two namespaces are told apart.
                await expect(page.locator("#tables [data-key='shop.orders'] small")).to_be_visible()
        # A figure is never broken in two.
        value = page.locator("#settings [data-key='maxBufferSize'] td").nth(1)
        assert await value.evaluate("(each) => each.offsetHeight") < 60
        await page.click("#tree-panel > summary")
        await expect(page.locator("#tree a[title='shop.empty']")).to_contain_text("0")
        await keep(page, "tree-phone")


async def test_producers_and_sync_clients_are_told_with_sequence_and_lag(tmp_path: Path) -> None:
    async with lake(tmp_path / "data") as (url, ws_url), browser_page(url) as page:
        async with CdcClient(ws_url, source="shop-db") as client:
            for n in range(3):
                await (await client.send([insert("shop.more", str(n), {"n": n})])).durable()
        ada = LocalDB.open(tmp_path / "ada.db", tables=[Table("todos", {"title": "text"})], client_id="ada")
        sync = SyncCoordinator(ada, HttpTransport(url, "team"))
        sync.tracker.insert("todos", "r1", {"title": "Buy milk"})
        await sync.sync_once()
        await page.goto(f"{url}/console/activity")
        cells = page.locator("#clients [data-key='producer shop-db'] td")
        # By name, kind, sequence, what is in the tables, and what waits: no pipeline runs here.
        for number, text in enumerate(("shop-db", "producer", "3", "–", "3")):
            await expect(cells.nth(number)).to_have_text(text)
        other = page.locator("#clients [data-key^='sync']")
        await expect(other).to_contain_text("ada")
        await expect(other.locator("td").nth(2)).to_have_text("1")
        await keep(page, "clients")
        await sync.close()
        ada.close()


async def test_settings_are_changed_and_put_back_on_the_page(tmp_path: Path) -> None:
    async with lake(tmp_path) as (url, _), browser_page(url) as page:
        await page.goto(f"{url}/console/settings")
        told = page.locator("#settings-told")

        async def change(name: str, value: str) -> None:
            await page.click(f"#settings [data-key='{name}'] button")
            await page.fill(f"input[aria-label='{name}']", value)
            await page.click("text=Save")

        await change("maxConnections", "many")
        await expect(told).to_contain_text("maxConnections")
        await expect(page.locator("#settings [data-key='maxConnections']")).to_contain_text("10000")
        await change("maxConnections", "77")
        row = page.locator("#settings [data-key='maxConnections']")
        await expect(row).to_contain_text("77")
        await expect(row).to_contain_text("changed")
        await change("autoCompact", "false")
        await expect(page.locator("#settings [data-key='autoCompact'] td").nth(1)).to_have_text("false")
        await change("whitelistedIps", "127.0.0.0/8, 10.1.0.0/16")
        await expect(page.locator("#settings [data-key='whitelistedIps']")).to_contain_text("10.1.0.0/16")
        await keep(page, "settings-changed")
        await row.locator("text=As in the file").click()
        await expect(row).to_contain_text("10000")
        await expect(row).not_to_contain_text("changed")


@pytest.mark.parametrize(("role", "shown"), [("reader", []), ("writer", ["Flush"]), ("admin", ["Flush", "Compact"])])
async def test_buttons_are_there_for_those_who_may_press_them(tmp_path: Path, role: str, shown: list[str]) -> None:
    async with gateway_on_socket(tmp_path, gateway_config=SECURED) as (_, ws_url):
        url = ws_url.replace("ws://", "http://").removesuffix("/ws")
        await asyncio.to_thread(make_empty, url)
        async with browser_page(url) as page:
            await page.goto(f"{url}/console/tables/shop.orders")
            await page.fill("#token", token(role))
            await page.click("button")
            await expect(page.locator(".page-head .button")).to_have_text("Query it")
            assert await page.locator(".page-head button").all_inner_texts() == shown
            await page.click("nav >> text=Activity")
            await expect(page.locator("#jobs")).to_be_visible()
            more = ["Look at every table"] if "Compact" in shown else []
            assert await page.locator("#jobs-panel .buttons button").all_inner_texts() == [*shown[:1], *more]


async def test_what_is_missing_or_down_is_said_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    config = Config(server=ServerConfig(port=0), log=LogConfig(flush_interval_s=1.0))
    server = ServerProcess(tmp_path, config)
    await server.start()
    async with browser_page(server.url) as page:
        await page.goto(f"{server.url}/console")
        await expect(page.locator("#trouble")).to_contain_text("Spark needs Java 17 or 21")
        await expect(page.locator("#pipeline")).to_have_text("down")
        await expect(page.locator("#state")).to_have_class("pill warn")
        await keep(page, "no-java")
        await page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
        assert await page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        # Drawn anew for the width, and not squeezed into it.
        await until(page, DRAWN)
        await keep(page, "no-java-phone")
        await server.stop()
        await expect(page.locator("#state")).to_have_text("no answer")
        await expect(page.locator("#trouble")).to_contain_text("does not answer")
        await keep(page, "server-down-phone")
