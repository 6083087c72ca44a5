"""The todo app in real browsers on the real server: two people offline and back, judged by screens, table and client.

Screenshots go to clients/typescript/out/.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser, BrowserContext, Locator, Page, async_playwright, expect

from mainstem.app.demo.todo import page_address, page_server
from mainstem.app.process import ServerProcess
from mainstem.client import HttpTransport, LocalDB, SyncCoordinator, Table, connect_duckdb

TYPESCRIPT = Path(__file__).parents[2] / "clients" / "typescript"
SCREENSHOTS = TYPESCRIPT / "out"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
TIMEOUT_MS = 60_000
CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason="needs Chromium"),
    pytest.mark.skipif(shutil.which("npm") is None, reason="the page is built with npm"),
]


@pytest.fixture(scope="module")
def page_url() -> Iterator[str]:
    if not (TYPESCRIPT / "node_modules").exists():
        subprocess.run(["npm", "ci", "--silent"], cwd=TYPESCRIPT, check=True)
    subprocess.run(["npm", "run", "--silent", "build:todo"], cwd=TYPESCRIPT, check=True, stdout=subprocess.DEVNULL)
    with page_server(TYPESCRIPT / "apps" / "todo" / "dist") as url:
        yield url


class Person:
    """One person's browser profile with the list open."""

    def __init__(self, context: BrowserContext, page: Page) -> None:
        self.context = context
        self.page = page

    @classmethod
    async def open(cls, browser: Browser, address: str) -> "Person":
        context = await browser.new_context(viewport={"width": 760, "height": 680})
        context.set_default_timeout(TIMEOUT_MS)
        page = await context.new_page()
        await page.goto(address)
        await page.get_by_role("heading", name="Todos").wait_for()
        await page.get_by_text("In sync").wait_for()
        return cls(context, page)

    async def offline(self) -> None:
        await self.context.set_offline(True)
        await self.page.get_by_text("Offline").first.wait_for()

    async def online(self) -> None:
        await self.context.set_offline(False)
        await self.page.get_by_text("In sync").wait_for()

    async def add(self, title: str) -> None:
        await self.page.get_by_label("New to-do").fill(title)
        await self.page.keyboard.press("Enter")
        await self.row(title).wait_for()

    async def rename(self, old: str, new: str) -> None:
        await self.row(old).get_by_title("Edit").click()
        await self.page.get_by_label("Edit to-do").fill(new)
        await self.page.keyboard.press("Enter")
        await self.row(new).wait_for()

    async def toggle(self, title: str) -> None:
        await self.row(title).get_by_role("checkbox").click()

    async def remove(self, title: str) -> None:
        await self.row(title).get_by_label(f"Delete {title}").click()
        await self.row(title).wait_for(state="detached")

    def row(self, title: str) -> Locator:
        shown = self.page.get_by_title("Edit").get_by_text(title, exact=True)
        return self.page.locator(".item").filter(has=shown)

    async def shows(self, wanted: list[tuple[str, bool]]) -> None:
        """Wait until the screen has these titles, in this order, done or not."""
        await expect(self.page.locator(".item .title")).to_have_text([title for title, _ in wanted], timeout=TIMEOUT_MS)
        for title, done in wanted:
            await expect(self.row(title).get_by_role("checkbox")).to_be_checked(checked=done, timeout=TIMEOUT_MS)

    async def screenshot(self, name: str) -> None:
        SCREENSHOTS.mkdir(exist_ok=True)
        await self.page.screenshot(path=SCREENSHOTS / f"{name}.png")


async def test_two_people_edit_offline_and_everyone_agrees(
    live_server: ServerProcess, page_url: str, tmp_path: Path
) -> None:
    address = page_address(page_url, live_server.url, "offline")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=TIMEOUT_MS)
        ada, bob = await Person.open(browser, address), await Person.open(browser, address)
        for title in ("deleted by one", "same column", "different columns"):
            await ada.add(title)
        await bob.shows([("different columns", False), ("same column", False), ("deleted by one", False)])
        await ada.offline()
        await bob.offline()
        await ada.rename("different columns", "Ada's text")
        await bob.toggle("different columns")
        await ada.rename("same column", "Ada was first")
        await bob.rename("same column", "Bob was last")
        await ada.rename("deleted by one", "Ada edits")
        await bob.remove("deleted by one")
        await ada.add("added offline")
        await ada.screenshot("server-offline")
        await ada.online()
        await bob.online()
        wanted = [("added offline", False), ("Ada's text", True), ("Bob was last", False)]
        await ada.shows(wanted)
        await bob.shows(wanted)
        await ada.screenshot("server-merged-ada")
        await bob.screenshot("server-merged-bob")
        # A tab that is closed while it sends loses nothing: the next one sends the rest.
        for number in range(20):
            await ada.page.get_by_label("New to-do").fill(f"todo {number}")
            await ada.page.keyboard.press("Enter")
        await ada.row("todo 19").wait_for()
        await ada.page.close(run_before_unload=False)
        await (await ada.context.new_page()).goto(address)
        # Written faster than the list is shown, so their order is anyone's.
        expected = dict([*((f"todo {number}", False) for number in range(20)), *wanted])
        for title in expected:
            await bob.row(title).wait_for()
        await expect(bob.page.locator(".item")).to_have_count(len(expected), timeout=TIMEOUT_MS)
        await browser.close()
    assert await table_of(live_server, "offline") == expected
    assert await replica_of(live_server, "offline", tmp_path) == expected


async def table_of(server: ServerProcess, gateway: str) -> dict[str, Any]:
    """The state table, as DuckDB reads it."""
    async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
        answer = await client.post(f"/admin/flush/{gateway}")
        assert answer.status_code == 200, answer.text
    with connect_duckdb(server.url) as connection:
        return dict(connection.execute(f"SELECT title, done FROM lake.{gateway}.todos").fetchall())


async def replica_of(server: ServerProcess, gateway: str, folder: Path) -> dict[str, Any]:
    """What a new Python client has after its first sync."""
    tables = [Table("todos", {"title": "text", "done": "boolean", "rank": "text"})]
    db = LocalDB.open(folder / "replica.db", tables=tables, client_id="python")
    sync = SyncCoordinator(db, HttpTransport(server.url, gateway))
    await sync.sync_once()
    rows = db.query("SELECT title, done FROM todos")
    await sync.close()
    db.close()
    return {row["title"]: bool(row["done"]) for row in json.loads(json.dumps(rows))}
