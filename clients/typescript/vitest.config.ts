import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["tests/**/*.test.{ts,tsx}"],
    exclude: ["tests/browser/**"],
    // Two workers leave room for others on a small machine.
    maxWorkers: 2,
    testTimeout: 30_000,
  },
});
