"""The console in a real Chromium: what a person sees, clicks and types. Screenshots are kept in `out/console`."""

import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Page, async_playwright, expect

from mainstem.app.process import ServerProcess
from mainstem.client import CdcClient, insert
from tests.contract.auth_tokens import SECURED, token
from tests.harness.inprocess import gateway_on_socket

OUT = Path(__file__).parents[2] / "out" / "console"
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
# A loaded machine draws slowly.
PATIENCE_MS = 60_000
expect.set_options(timeout=PATIENCE_MS)


@asynccontextmanager
async def browser_page(url: str, theme: str = "light") -> AsyncIterator[Page]:
    """A page that fails the test where a script fails, or where anything is asked of another host."""
    assert CHROMIUM is not None, "these tests need Chromium: `make test` installs it"
    troubles: list[str] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=PATIENCE_MS)
        page = await browser.new_page(
            viewport={"width": 1360, "height": 1000}, color_scheme="dark" if theme == "dark" else "light"
        )
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: troubles.append(f"script: {error}"))
        page.on("request", lambda asked: None if asked.url.startswith(url) else troubles.append(f"asked {asked.url}"))
        page.on("console", lambda told: troubles.append(told.text) if "Content Security" in told.text else None)
        yield page
        await browser.close()
    assert troubles == []


async def keep(page: Page, name: str) -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / f"{name}.png"
    await page.screenshot(path=path, full_page=True)
    assert path.stat().st_size > 10_000


async def filled(server: ServerProcess) -> None:
    rows = [
        insert("console.orders", str(n), {"id": n, "region": ["north", "south", "east"][n % 3], "amount": n * 1.5})
        for n in range(300)
    ]
    async with CdcClient(server.ws_url, source="console") as client:
        await (await client.send(rows)).durable()
    assert (await server.flush())["complete"]


async def test_a_person_sees_the_tables_and_asks_them(live_server: ServerProcess) -> None:
    await filled(live_server)
    async with browser_page(live_server.url) as page:
        await page.goto(f"{live_server.url}/console")
        await expect(page.locator("#state")).to_have_text(re.compile("idle|receiving|flushing"))
        await expect(page.locator("#pipeline")).to_have_text("running")
        await expect(page.locator("#chart-rate svg")).to_be_visible()
        await expect(page.locator("#bounds .bar").first).to_be_visible()
        async with CdcClient(live_server.ws_url, source="console-live") as client:
            await (await client.send([insert("console.live", str(n), {"n": n}) for n in range(500)])).durable()
            # It is alive: what comes in is seen without a click.
            await expect(page.locator("#rate")).not_to_have_text("0")
        await page.fill("#tables-filter", "console.orders")
        row = page.locator("[data-table='console.orders']")
        await expect(row).to_contain_text("300")
        await row.click()
        detail = page.locator("tr.detail")
        await expect(detail).to_contain_text("region")
        await expect(detail).to_contain_text("Snapshots")
        await page.fill("#sql", "SELECT region, sum(amount) AS total FROM console.orders GROUP BY region ORDER BY 1")
        await page.press("#sql", "Control+Enter")
        await expect(page.locator("#result tbody tr")).to_have_count(3)
        await expect(page.locator("#result tbody tr").first).to_contain_text("east")
        await expect(page.locator("#plot rect.mark")).to_have_count(3)
        await page.select_option("#plot-kind", "line")
        await expect(page.locator("#plot path.line")).to_have_count(1)
        await keep(page, "tables-light")
        await page.click("#theme")
        await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        await keep(page, "tables-dark")
        await page.reload()
        await expect(page.locator("html")).to_have_attribute("data-theme", "dark")


async def test_what_is_wrong_is_shown(live_server: ServerProcess) -> None:
    async with browser_page(live_server.url, "dark") as page:
        await page.goto(f"{live_server.url}/console")
        await page.fill("#sql", "DROP TABLE everything")
        await page.click("#run")
        await expect(page.locator("#query-error")).to_be_visible()
        await expect(page.locator("#query-error")).not_to_have_text("")
        # What a table holds is shown as text, and never runs.
        await page.fill("#sql", "SELECT '<img src=x onerror=alert(1)>' AS html, NULL AS nothing")
        await page.click("#run")
        await expect(page.locator("#result tbody td").first).to_have_text("<img src=x onerror=alert(1)>")
        await expect(page.locator("#query-error")).to_be_hidden()
        assert await page.locator("#result img").count() == 0


async def test_a_narrow_screen_is_enough(live_server: ServerProcess) -> None:
    async with browser_page(live_server.url) as page:
        await page.set_viewport_size({"width": 390, "height": 844})
        await page.goto(f"{live_server.url}/console")
        await expect(page.locator("#chart-rate svg")).to_be_visible()
        wide = await page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 390
        await keep(page, "narrow")


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
