/** The todo app in a real browser, as two people use it. Screenshots go to out/. */
import type { Browser } from "playwright-core";
import { afterAll, afterEach, beforeAll, expect, it } from "vitest";
import type { DevServer } from "../../dev/server.js";
import { Invalid } from "../../src/errors.js";
import { valuesOf } from "../../src/model/merge.js";
import { launch, Person, serveTodo } from "./support.js";

let browser: Browser;
let server: DevServer;
beforeAll(async () => {
  browser = await launch();
});
afterAll(() => browser.close());
afterEach(async () => {
  await Promise.all(browser.contexts().map((context) => context.close()));
  await server.stop();
});

const serverTitles = (): unknown[] =>
  [...server.gateway("todos").table("todos").values()].flatMap((row) => valuesOf(row)?.["title"] ?? []).sort();

it("adds, edits, completes, moves, deletes and undoes, live between two people", async () => {
  server = await serveTodo();
  const [ada, bob] = [await Person.open(browser, server), await Person.open(browser, server, "dark")];
  await ada.screenshot("todo-empty");
  for (const title of ["Call the plumber", "Water the plants", "Buy milk"]) await ada.add(title);
  await bob.waitForScreen(["[ ] Buy milk", "[ ] Water the plants", "[ ] Call the plumber"]);
  await bob.rename("Buy milk", "Buy oat milk");
  await bob.toggle("Water the plants");
  await ada.waitForScreen(["[ ] Buy oat milk", "[x] Water the plants", "[ ] Call the plumber"]);
  await bob.screenshot("todo-dark");
  await ada.row("Call the plumber").getByTitle("Edit").focus();
  await ada.page.keyboard.press("Alt+ArrowUp");
  await bob.waitForScreen(["[ ] Buy oat milk", "[ ] Call the plumber", "[x] Water the plants"]);
  await bob.remove("Call the plumber");
  await ada.waitForScreen(["[ ] Buy oat milk", "[x] Water the plants"]);
  await bob.page.getByRole("button", { name: "Undo" }).click();
  await ada.waitForScreen(["[ ] Buy oat milk", "[ ] Call the plumber", "[x] Water the plants"]);
  await ada.page.getByRole("button", { name: "Clear done" }).click();
  await bob.waitForScreen(["[ ] Buy oat milk", "[ ] Call the plumber"]);
});

it.each(["light", "dark"] as const)("has no barriers that axe can find, in %s", async (scheme) => {
  server = await serveTodo({
    accept: ({ columns, deltaId }) => {
      if (columns.some(({ value }) => value === "forbidden")) throw new Invalid("not allowed", "schema_mismatch", deltaId);
    },
  });
  const ada = await Person.open(browser, server, scheme);
  expect(await ada.barriers()).toEqual([]);
  for (const title of ["forbidden", "one", "two", "three"]) await ada.add(title);
  await ada.toggle("one");
  await ada.page.getByText("The server refused an edit").waitFor();
  await ada.offline();
  await ada.rename("two", "zwei");
  await ada.remove("three");
  expect(await ada.barriers()).toEqual([]);
  await ada.page.getByLabel("Sync settings").click();
  expect(await ada.barriers()).toEqual([]);
  await ada.screenshot(`todo-settings-${scheme}`);
});

it("moves a row with the mouse", async () => {
  server = await serveTodo();
  const ada = await Person.open(browser, server);
  for (const title of ["three", "two", "one"]) await ada.add(title);
  const handle = (await ada.row("one").getByLabel(/^Move one/).boundingBox())!;
  const target = (await ada.row("three").boundingBox())!;
  await ada.page.mouse.move(handle.x + 5, handle.y + 10);
  await ada.page.mouse.down();
  await ada.page.mouse.move(handle.x + 5, target.y + target.height / 2, { steps: 5 });
  await ada.screenshot("todo-dragging");
  await ada.page.mouse.move(handle.x + 5, target.y + target.height - 2);
  await ada.page.mouse.up();
  await ada.waitForScreen(["[ ] two", "[ ] three", "[ ] one"]);
});

it("merges what two people did offline, column by column", async () => {
  server = await serveTodo();
  const [ada, bob] = [await Person.open(browser, server), await Person.open(browser, server)];
  for (const title of ["deleted by one", "same column", "different columns"]) await ada.add(title);
  await bob.waitForScreen(["[ ] different columns", "[ ] same column", "[ ] deleted by one"]);
  await ada.offline();
  await bob.offline();
  await ada.rename("different columns", "Ada's text");
  await bob.toggle("different columns");
  await ada.rename("same column", "Ada was first");
  await bob.rename("same column", "Bob was last");
  await ada.rename("deleted by one", "Ada edits");
  await bob.remove("deleted by one");
  await ada.add("added offline");
  expect(await ada.page.locator(".mark.pending").count()).toBe(4);
  await ada.screenshot("todo-offline");
  await ada.online();
  await bob.online();
  const wanted = ["[ ] added offline", "[x] Ada's text", "[ ] Bob was last"];
  await ada.waitForScreen(wanted);
  await bob.waitForScreen(wanted);
  await bob.screenshot("todo-merged");
  expect(await bob.page.locator(".mark.merged").count()).toBeGreaterThan(0);
  expect(await ada.page.locator(".mark.pending").count()).toBe(0);
  expect(serverTitles()).toEqual(["Ada's text", "Bob was last", "added offline"]);
  // On a phone: what was merged is told in words, and one's own text can be taken back.
  await ada.page.setViewportSize({ width: 390, height: 760 });
  await ada.offline();
  await ada.rename("Bob was last", "Ada's own words");
  await bob.rename("Bob was last", "Bob's words");
  await ada.online();
  await ada.row("Bob's words").getByRole("button", { name: "merged" }).click();
  await ada.page.getByText("You had written “Ada's own words”.").waitFor();
  expect(await ada.page.evaluate("document.documentElement.scrollWidth")).toBeLessThanOrEqual(390);
  expect(await ada.barriers()).toEqual([]);
  await ada.screenshot("todo-merged-phone");
  await ada.page.getByRole("button", { name: "Take mine back" }).click();
  await bob.waitForScreen(["[ ] added offline", "[x] Ada's text", "[ ] Ada's own words"]);
  expect(await ada.row("Ada's own words").locator(".merged").count()).toBe(0);
});

it("opens and works without a network, and sends what it has when there is one", async () => {
  server = await serveTodo();
  const ada = await Person.open(browser, server);
  await ada.page.evaluate("navigator.serviceWorker.ready.then(() => undefined)");
  await ada.offline();
  await ada.add("written offline");
  await ada.page.reload();
  await ada.waitForScreen(["[ ] written offline"]);
  expect(serverTitles()).toEqual([]);
  await ada.online();
  await ada.waitForScreen(["[ ] written offline"]);
  expect(serverTitles()).toEqual(["written offline"]);
});

it("is a list of this device's own where no server is set", async () => {
  server = await serveTodo();
  const ada = await Person.open(browser, server);
  await ada.page.goto(`${server.url}/?server=`);
  await ada.add("mine alone");
  await ada.page.getByText("On this device").waitFor();
  await ada.page.reload();
  await ada.waitForScreen(["[ ] mine alone"]);
  expect(await ada.page.locator(".mark").count()).toBe(0);
  expect(serverTitles()).toEqual([]);
});

it("keeps windows of one browser in step, and lets another one lead when one is closed", async () => {
  server = await serveTodo();
  const ada = await Person.open(browser, server);
  const page = await ada.context.newPage();
  await page.goto(server.url);
  const second = new Person(ada.context, page);
  await ada.add("from the first window");
  await second.waitForScreen(["[ ] from the first window"]);
  await second.add("from the second window");
  await ada.waitForScreen(["[ ] from the second window", "[ ] from the first window"]);
  await ada.page.close();
  await second.add("after the first was closed");
  await second.page.getByText("In sync").waitFor();
  await expect.poll(serverTitles).toEqual(["after the first was closed", "from the first window", "from the second window"]);
});

it("loses nothing when a tab is closed mid-push", async () => {
  server = await serveTodo();
  const ada = await Person.open(browser, server);
  await ada.page.getByText("In sync").waitFor();
  for (let index = 0; index < 30; index++) {
    await ada.page.getByLabel("New to-do").fill(`todo ${index}`);
    await ada.page.keyboard.press("Enter");
  }
  await ada.row("todo 29").waitFor();
  await ada.page.close({ runBeforeUnload: false });
  const page = await ada.context.newPage();
  await page.goto(server.url);
  await page.getByText("In sync").waitFor();
  await expect.poll(() => serverTitles().length).toBe(30);
  expect(new Set(serverTitles()).size).toBe(30);
  expect(server.gateway("todos").deltaCount).toBe(30);
});

it("shows what the server refused, and sends it again", async () => {
  let strict = true;
  server = await serveTodo({
    accept: ({ columns, deltaId }) => {
      if (strict && columns.some(({ value }) => value === "forbidden")) throw new Invalid("that word is not allowed", "schema_mismatch", deltaId);
    },
  });
  const ada = await Person.open(browser, server);
  await ada.add("forbidden");
  await ada.add("fine");
  await ada.page.getByText("The server refused an edit").waitFor();
  await expect.poll(serverTitles).toEqual(["fine"]);
  await ada.screenshot("todo-refused");
  strict = false;
  await ada.page.getByRole("button", { name: "Send again" }).click();
  await expect.poll(serverTitles).toEqual(["fine", "forbidden"]);
  await ada.page.getByText("The server refused an edit").waitFor({ state: "detached" });
});
