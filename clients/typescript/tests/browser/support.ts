/** Chromium, the development gateway with the built todo app, and the things a person does on the page. */
import { mkdir } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { chromium, type Browser, type BrowserContext, type Locator, type Page } from "playwright-core";
import { DevServer, type DevServerOptions } from "../../dev/server.js";

const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];
const OUT = fileURLToPath(new URL("../../out/", import.meta.url));

export function launch(): Promise<Browser> {
  return chromium.launch({ executablePath: process.env["CHROMIUM"] ?? "/usr/bin/chromium", headless: true, args: FLAGS });
}

export function serveTodo(options: DevServerOptions = {}): Promise<DevServer> {
  return DevServer.start({ statics: fileURLToPath(new URL("../../apps/todo/dist/", import.meta.url)), ...options });
}

/** One person's browser profile with the list open. */
export class Person {
  constructor(
    readonly context: BrowserContext,
    readonly page: Page,
  ) {}

  static async open(browser: Browser, server: DevServer, colorScheme: "light" | "dark" = "light"): Promise<Person> {
    const context = await browser.newContext({ viewport: { width: 760, height: 680 }, colorScheme });
    const page = await context.newPage();
    await page.goto(server.url);
    await page.getByRole("heading", { name: "Todos" }).waitFor();
    return new Person(context, page);
  }

  async offline(): Promise<void> {
    // The page hears of it and drops its connection, which Chromium itself would let live on.
    await this.context.setOffline(true);
    await this.page.getByText(/^Offline/).waitFor();
  }

  async online(): Promise<void> {
    await this.context.setOffline(false);
    await this.page.getByText("In sync").waitFor({ timeout: 60_000 });
  }

  async add(title: string): Promise<void> {
    await this.page.getByLabel("New to-do").fill(title);
    await this.page.keyboard.press("Enter");
    await this.row(title).waitFor();
  }

  async rename(from: string, to: string): Promise<void> {
    await this.row(from).getByTitle("Edit").click();
    await this.page.getByLabel("Edit to-do").fill(to);
    await this.page.keyboard.press("Enter");
    await this.row(to).waitFor();
  }

  async toggle(title: string): Promise<void> {
    await this.row(title).getByRole("checkbox").click();
  }

  async remove(title: string): Promise<void> {
    await this.row(title).getByLabel(`Delete ${title}`).click();
    await this.row(title).waitFor({ state: "detached" });
  }

  row(title: string): Locator {
    return this.page.locator(".item").filter({ has: this.page.getByTitle("Edit").getByText(title, { exact: true }) });
  }

  /** What is on the screen: "[x] title", in order. */
  async screen(): Promise<string[]> {
    return this.page.locator(".item").evaluateAll((items) =>
      items.map((item) => `[${item.querySelector("input")?.checked ? "x" : " "}] ${item.querySelector(".title")?.textContent ?? ""}`),
    );
  }

  async waitForScreen(wanted: readonly string[]): Promise<void> {
    let seen: string[] = [];
    for (const end = Date.now() + 20_000; Date.now() < end; ) {
      seen = await this.screen();
      if (JSON.stringify(seen) === JSON.stringify(wanted)) return;
      await this.page.waitForTimeout(50);
    }
    throw new Error(`the screen is not as wanted. expected=${JSON.stringify(wanted)} got=${JSON.stringify(seen)}`);
  }

  /** What axe finds wrong for people who see, hear or move differently. */
  async barriers(): Promise<string[]> {
    await this.page.addScriptTag({ path: fileURLToPath(import.meta.resolve("axe-core/axe.min.js")) });
    const found = await this.page.evaluate<{ id: string; nodes: { html: string }[] }[]>("axe.run().then(({ violations }) => violations)");
    return found.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join(" ")}`);
  }

  async screenshot(name: string): Promise<void> {
    await mkdir(OUT, { recursive: true });
    await this.page.screenshot({ path: `${OUT}${name}.png` });
  }
}
