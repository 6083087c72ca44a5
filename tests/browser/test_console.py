"""The console in a real Chromium, on a server with Spark: what a person sees, clicks and types."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from playwright.async_api import expect

from mainstem.app.process import ServerProcess
from mainstem.client import CdcClient, delete, insert, update
from tests.contract.auth_tokens import SECURED, token
from tests.harness.browser import OVERFLOWING, browser_page, keep, until
from tests.harness.inprocess import gateway_on_socket

READERS: dict[str, Callable[[Path], pa.Table]] = {
    "csv": pacsv.read_csv,
    "parquet": pq.read_table,
    "arrow": lambda path: pa.ipc.open_stream(path.read_bytes()).read_all(),
}


@pytest.fixture(scope="module")
def shop(live_server: ServerProcess) -> ServerProcess:
    """Tables with updates, deletes and a change that does not fit; and a name that no page may take for markup."""
    asyncio.run(fill(live_server))
    return live_server


async def fill(server: ServerProcess) -> None:
    regions = ["north", "south", "east"]
    rows = [insert("console.orders", str(n), {"id": n, "region": regions[n % 3], "price": n * 1.5}) for n in range(300)]
    bad = [insert("console.letters", "page", {"price": "<b>abc</b>", "note": "<i>kept</i>"})]
    async with CdcClient(server.ws_url, source="console") as client:
        named = insert("console.<img src=x>", "1", {"a": 1})
        await (await client.send([*rows, *bad, named, insert("console.rolled", "1", {"a": 1})])).durable()
        assert (await server.flush(timeout_s=240))["complete"]
        gone = [delete("console.orders", str(n)) for n in range(20)]
        again = [update("console.orders", str(n), {"id": n, "region": "west"}) for n in range(20, 60)]
        await (await client.send([*gone, *again, insert("console.rolled", "2", {"a": 2})])).durable()
    assert (await server.flush(timeout_s=240))["complete"]


async def test_a_person_sees_the_tables_and_asks_them(shop: ServerProcess) -> None:
    async with browser_page(shop.url) as page:
        # The root leads here.
        await page.goto(shop.url)
        await expect(page.locator("#state")).to_have_text(re.compile("idle|receiving|flushing"))
        await expect(page.locator("#pipeline")).to_have_text("running")
        await expect(page.locator("#chart-rate path.line").first).to_be_visible()
        await expect(page.locator("#bounds .bar").first).to_be_visible()
        await expect(page.locator("#letters")).to_contain_text("did not fit")
        async with CdcClient(shop.ws_url, source="console-live") as client:
            await (await client.send([insert("console.live", str(n), {"n": n}) for n in range(500)])).durable()
            # It is alive: what comes in is seen without a click.
            await expect(page.locator("#rate")).not_to_have_text("0")
        await page.fill("#tables-filter", "console.orders")
        row = page.locator("#tables [data-key='console.orders']")
        # Live rows: neither the deleted ones nor those that were replaced.
        await expect(row.locator("td").nth(2)).to_have_text("280")
        await row.focus()
        shown = await page.locator("#uptime").inner_text()
        await expect(page.locator("#uptime")).not_to_have_text(shown)
        await expect(row).to_be_focused()
        await keep(page, "overview-light")
        # The charts are the server's: a reload does not empty them.
        await page.reload()
        points = "document.querySelector('#chart-rate path.line')?.getAttribute('d').split('L').length ?? 0"
        await until(page, f"({points}) > 3")
        await page.click("#theme")
        await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        await keep(page, "overview-dark")
        await page.reload()
        await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        await page.click("nav >> text=Activity")
        await expect(page.locator("#clients [data-key='producer console']")).to_contain_text("2")
        await expect(page.locator("#passes tbody tr").first).to_contain_text("s")
        # Spark's own progress, beside what the pipeline says of the pass.
        await expect(page.locator("#passes tbody")).to_contain_text(re.compile(r"\d rows in · .*addBatch"))
        await keep(page, "activity-dark")
        await page.click("nav >> text=Settings")
        await expect(page.locator("#settings [data-key='flushIntervalMs']")).to_contain_text("1000")
        await keep(page, "settings-dark")


async def test_a_table_has_a_page_of_its_own(shop: ServerProcess) -> None:
    async with browser_page(shop.url) as page:
        await page.goto(f"{shop.url}/console")
        await page.fill("#tree-filter", "console.")
        await page.click("#tree a[title='console.orders']")
        await expect(page).to_have_url(f"{shop.url}/console/tables/console.orders")
        await expect(page.locator("#facts")).to_contain_text("280")
        await expect(page.locator("#schema-panel")).to_contain_text("region")
        await expect(page.locator("#files-panel [data-key]").first).to_be_visible()
        await expect(page.locator("#partitions-panel [data-key]").first).to_be_visible()
        await expect(page.locator("#rows-panel tbody tr")).to_have_count(20)
        snapshots = page.locator("#snapshots tbody tr")
        await expect(snapshots.first).to_contain_text("280")
        await snapshots.nth(1).locator("[data-do=diff]").click()
        await snapshots.nth(0).locator("[data-do=diff]").click()
        await expect(page.locator(".diff")).to_contain_text("rows: 300 → 280 (-20)")
        await page.fill("#changes-panel input", "25")
        await page.press("#changes-panel input", "Enter")
        await expect(page.locator("#changes-panel tbody tr")).to_have_count(2)
        await keep(page, "table-light")
        await page.go_back()
        await expect(page.locator("#chart-lag svg")).to_be_visible()
        await page.click("#tree a[title='console.rolled']")
        await expect(snapshots).to_have_count(2)
        await snapshots.nth(1).locator("[data-do=rollback]").click()
        await page.click("#confirm-rollback")
        await expect(page.locator(".diff")).to_contain_text("again")
        await expect(snapshots.nth(1)).to_contain_text("current")
        await expect(page.locator("#facts b").first).to_have_text("1")
        # A table's name is text, whatever it is.
        await page.click("#tree a[title*='img']")
        await expect(page.locator("#table-name")).to_have_text("console.<img src=x>")
        assert await page.locator("main img").count() == 0


async def test_dead_letters_are_mended_on_the_page(shop: ServerProcess) -> None:
    async with browser_page(shop.url) as page:
        await page.goto(f"{shop.url}/console/tables/console.letters?show=letters")
        row = page.locator("#letters-list tbody tr", has=page.locator("td", has_text="page")).first
        await expect(row).to_contain_text("<b>abc</b>")
        await row.locator("button").click()
        await page.fill("#mend-columns", '{"price": 12.5}')
        await keep(page, "letters-light")
        await page.click("text=Replay it")
        await expect(page.locator("#letters-told")).to_contain_text("1 replayed")
        await expect(row).to_contain_text("replayed")
        await shop.flush()
        await page.click("#rows-panel button")
        await expect(page.locator("#rows-panel")).to_contain_text("12.50")


async def test_a_query_is_written_run_plotted_and_saved(shop: ServerProcess) -> None:
    async with browser_page(shop.url, "dark") as page:
        await page.goto(f"{shop.url}/console/query")
        await page.fill("#sql", "")
        await until(page, "performance.getEntriesByName(`${location.origin}/v1/overview?limit=1000`).length > 0")
        await page.type("#sql", "SELECT region, count(*) AS n FROM console.ord")
        await expect(page.locator("#completions li").first).to_contain_text("console.orders")
        await page.press("#sql", "Tab")
        await page.type("#sql", " GROUP BY region ORDER BY 1")
        await expect(page.locator(".colours .keyword").first).to_have_text("SELECT")
        await page.press("#sql", "Control+Enter")
        await expect(page.locator("#result tbody tr")).to_have_count(4)
        # One value for each of a few texts: that is a plot.
        await expect(page.locator("#plot rect.mark")).to_have_count(4)
        await keep(page, "query-dark")
        for name in ("csv", "parquet", "arrow"):
            async with page.expect_download() as saved:
                await page.click(f"[data-format={name}]")
            path = await (await saved.value).path()
            table = READERS[name](path)
            assert table.num_rows == 4 and table.column_names == ["region", "n"], name
        # An error stands at its place, and clears what was shown.
        await page.fill("#sql", "SELECT region\nFORM console.orders")
        await page.click("#run")
        await expect(page.locator("#query-error")).to_contain_text("console")
        await expect(page.locator(".colours .wrong").first).to_be_visible()
        await expect(page.locator("#result tbody tr")).to_have_count(0)
        await expect(page.locator("#plot-panel")).to_be_hidden()
        await expect(page.locator("#result-tools")).to_be_hidden()
        await keep(page, "query-wrong-dark")
        # Text stays text, a null is a gap, and nothing is plotted that was not asked for.
        await page.fill(
            "#sql",
            "SELECT '1999' AS label, 1 AS n, 2 AS m UNION ALL SELECT '2000', NULL, 3 UNION ALL SELECT '2001', 4, 5",
        )
        await page.click("#run")
        await expect(page.locator("#result tbody tr")).to_have_count(3)
        await expect(page.locator("#plot-panel")).to_be_hidden()
        await page.click("#plot-it")
        await expect(page.locator("#plot rect.mark")).to_have_count(2)
        await expect(page.locator("#plot")).to_contain_text("1999")
        await page.fill("#sql", "SELECT '<img src=x onerror=alert(1)>' AS html, NULL AS nothing")
        await page.click("#run")
        await expect(page.locator("#result tbody td").first).to_have_text("<img src=x onerror=alert(1)>")
        assert await page.locator("#result img").count() == 0
        await page.reload()
        await expect(page.locator("#history option").nth(1)).to_contain_text("onerror")


async def test_a_phone_shows_the_figures_that_matter(shop: ServerProcess) -> None:
    async with browser_page(shop.url) as page:
        await page.set_viewport_size({"width": 390, "height": 844})
        await page.goto(f"{shop.url}/console")
        await expect(page.locator("#lag")).not_to_have_text("–")
        await page.click("#tree-panel > summary")
        await expect(page.locator("#tree a[title='console.orders']")).to_be_visible()


@pytest.mark.parametrize(("size", "width", "height"), [("desktop", 1360, 1000), ("phone", 390, 844)])
async def test_every_page_fits_its_width(shop: ServerProcess, size: str, width: int, height: int) -> None:
    """Screenshots of every page, to be looked at; nothing that is pressed or read lies outside of what is seen."""
    async with browser_page(shop.url) as page:
        await page.set_viewport_size({"width": width, "height": height})
        for path, name, seen in (
            ("/console", "overview", "#chart-rate svg"),
            ("/console/tables/console.orders", "table", "#snapshots [data-do=rollback]"),
            ("/console/tables/console.letters?show=letters", "letters", "#letters-list tbody tr"),
            ("/console/tables/console.none", "no-such-table", ".trouble:not([hidden])"),
            ("/console/query?sql=SELECT%20id%2C%20price%20FROM%20console.orders%20LIMIT%205", "query", "#sql"),
            ("/console/activity", "activity", "#clients [data-key]"),
            ("/console/settings", "settings", "#settings tbody tr"),
            ("/schema", "api", "details"),
        ):
            await page.goto(f"{shop.url}{path}")
            await expect(page.locator(seen).first).to_be_visible()
            if name == "query":
                await page.click("#run")
                await expect(page.locator("#result tbody tr")).to_have_count(5)
            assert await page.evaluate("document.documentElement.scrollWidth") <= width, name
            assert await page.evaluate(OVERFLOWING) == [], name
            await keep(page, f"{size}-{name}")


async def test_a_list_keeps_what_is_selected_and_its_widths(shop: ServerProcess) -> None:
    async with browser_page(shop.url) as page:
        await page.goto(f"{shop.url}/console")
        cell = page.locator("#tables [data-key='console.orders'] td").first
        await expect(cell).to_contain_text("orders")
        await cell.evaluate("(each) => getSelection().selectAllChildren(each)")
        selected = await page.evaluate("String(getSelection())")
        widths = "[...document.querySelectorAll('#tables th')].map((each) => each.offsetWidth)"
        before = await page.evaluate(widths)
        async with CdcClient(shop.ws_url, source="console-widths") as client:
            await (await client.send([insert("console.widths", "1", {"n": 1})])).persisted()
        await expect(page.locator("#tables [data-key='console.widths']")).to_be_visible()
        assert await page.evaluate("String(getSelection())") == selected != ""
        assert all(now >= was for now, was in zip(await page.evaluate(widths), before, strict=True))


async def test_the_api_page_lists_every_operation(live_server: ServerProcess) -> None:
    async with browser_page(live_server.url) as page:
        await page.goto(f"{live_server.url}/schema")
        await expect(page.locator("details").first).to_be_visible()
        paths = await page.locator("details code").all_inner_texts()
        assert {"/status", "/v1/query", "/v1/config", "/v1/compaction/run"} <= set(paths)
        await page.locator("summary", has_text="/v1/query/plan").click()
        await expect(page.locator("details[open] pre").first).to_contain_text("sql")
        await keep(page, "api")


async def test_a_secured_console_asks_for_a_token_and_keeps_it(tmp_path: Path) -> None:
    async with gateway_on_socket(tmp_path, gateway_config=SECURED) as (_, ws_url):
        url = ws_url.replace("ws://", "http://").removesuffix("/ws")
        async with browser_page(url) as page:
            answer = await page.goto(f"{url}/console")
            assert answer is not None and answer.status == 401
            await page.fill("#token", "nonsense")
            await page.click("button")
            await expect(page.locator("#trouble")).to_contain_text("does not take")
            await keep(page, "sign-in")
            await page.fill("#token", token("reader", "sales"))
            await page.click("button")
            await expect(page.locator("#state")).to_have_text(re.compile("idle|receiving"))
            # What only an admin may see says so.
            await expect(page.locator("#errors")).to_contain_text("admin")
            (cookie,) = await page.context.cookies()
            assert (cookie["name"], cookie["httpOnly"], cookie["sameSite"]) == ("mainstem_token", True, "Strict")
            await page.click("#sign-out")
            await expect(page.locator("#token")).to_be_visible()


@pytest.mark.parametrize("path", ["/console/console.html", "/console/nothing.js", "/console/..%2fconsole.py"])
async def test_only_the_files_of_the_console_are_served(live_server: ServerProcess, path: str) -> None:
    import httpx

    async with httpx.AsyncClient(base_url=live_server.url, timeout=60) as http:
        assert (await http.get(path)).status_code == 404


async def test_a_table_in_delta_is_put_back_on_its_page(shop: ServerProcess) -> None:
    for n in (1, 2):
        async with CdcClient(shop.ws_url, source=f"console-put-back-{n}") as client:
            await (await client.send([insert("console.put_back", str(n), {"a": n})])).durable()
        assert (await shop.flush(timeout_s=240))["complete"]
    async with browser_page(shop.url) as page:
        await page.goto(f"{shop.url}/console/tables/console.put_back")
        versions = page.locator("#snapshots tbody tr")
        await expect(versions.first).to_contain_text("current")
        rows = versions.filter(has=page.locator("td:nth-child(4)", has_text=re.compile("^1$")))
        await rows.first.locator("[data-do=rollback]").click()
        await expect(page.locator(".diff")).to_contain_text("do not come again")
        await page.click("#confirm-rollback")
        await expect(page.locator(".diff")).to_contain_text("again. Rolling back to")
        await expect(versions.first).to_contain_text("restore")
        await expect(page.locator("#facts b").first).to_have_text("1")
        # Of a history there is no way back.
        await page.goto(f"{shop.url}/console/tables/console.put_back_history")
        await expect(versions.first).to_be_visible()
        assert await page.locator("[data-do=rollback]").count() == 0
