"""A real Chromium for the tests of the console. Screenshots are kept in `out/console`."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import Page, async_playwright, expect

# Where screenshots are kept, to be looked at.
OUT = Path(__file__).parents[2] / "out" / "console"
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
# A loaded machine draws slowly.
PATIENCE_MS = 60_000
expect.set_options(timeout=PATIENCE_MS)

# What is pressed or read as a title, and lies outside of what is seen.
OVERFLOWING = """() => [...document.querySelectorAll('button, .button, select, input, textarea, h1, h2, nav a')]
  .filter((each) => each.checkVisibility())
  .map((each) => [each.textContent || each.id, each.getBoundingClientRect()])
  .filter(([, at]) => at.width && (at.right > innerWidth + 1 || at.left < -1)).map(([words]) => words)"""


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
    # The header is above what is shown: it would stand in the middle of the whole page.
    await page.evaluate("scrollTo(0, 0)")
    await page.screenshot(path=path, full_page=True)
    assert path.stat().st_size > 10_000


async def until(page: Page, condition: str) -> None:
    """Playwright's own wait evaluates texts in the page from its second look on, which the page's policy forbids."""
    async with asyncio.timeout(PATIENCE_MS / 1000):
        while not await page.evaluate(condition):
            await asyncio.sleep(0.05)
