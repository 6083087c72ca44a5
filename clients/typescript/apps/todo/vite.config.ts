import { fileURLToPath } from "node:url";
import { defineConfig } from "vite";

const source = (name: string): string => fileURLToPath(new URL(`../../src/${name}.ts`, import.meta.url));

export default defineConfig({
  root: fileURLToPath(new URL(".", import.meta.url)),
  base: "./",
  resolve: {
    alias: [
      { find: "@mainstem/client/react", replacement: source("react") },
      { find: "@mainstem/client", replacement: source("index") },
    ],
  },
  build: { target: "es2022", emptyOutDir: true },
});
