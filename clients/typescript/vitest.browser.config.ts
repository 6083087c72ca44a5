import { defineConfig } from "vitest/config";

// Needs Chromium: CHROMIUM names it where it is not /usr/bin/chromium.
export default defineConfig({
  test: { include: ["tests/browser/**/*.test.ts"], testTimeout: 120_000, hookTimeout: 60_000, fileParallelism: false },
});
