import { fileURLToPath } from "node:url";
import { defineConfig } from "vite";

const entry = (name: string): string => fileURLToPath(new URL(`./src/${name}.ts`, import.meta.url));

export default defineConfig({
  build: {
    lib: { entry: { index: entry("index"), react: entry("react"), node: entry("node"), cdc: entry("cdc") }, formats: ["es"] },
    target: "es2022",
    sourcemap: true,
    rollupOptions: { external: ["react", /^node:/] },
  },
});
