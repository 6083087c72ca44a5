/**
 * Lets the page itself open without a network: the newest copy where there is one to be had, else the last one seen.
 *
 * The list's data is not its business; that is in IndexedDB. Sync requests pass it by.
 */
const CACHE = "todo-page";

self.addEventListener("install", (event) => {
  event.waitUntil(keepPage().then(() => self.skipWaiting()));
});

self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));

self.addEventListener("fetch", (event) => {
  const { request } = event;
  const url = new URL(request.url);
  if (request.method !== "GET" || url.origin !== self.location.origin || url.pathname.includes("/sync/")) return;
  event.respondWith(newest(request));
});

async function newest(request) {
  const cache = await caches.open(CACHE);
  try {
    const response = await fetch(request);
    if (response.ok) await cache.put(request, response.clone());
    return response;
  } catch (error) {
    const kept = await cache.match(request, { ignoreSearch: request.mode === "navigate" });
    if (kept) return kept;
    throw error;
  }
}

/** The page and the files that it names, so that the very first visit is enough. */
async function keepPage() {
  const page = await fetch("./", { cache: "no-cache" });
  const text = await page.clone().text();
  const files = [...text.matchAll(/(?:src|href)="(\.\/[^"]+)"/g)].map((match) => match[1]);
  const cache = await caches.open(CACHE);
  await cache.put("./", page);
  await cache.addAll(files);
}
