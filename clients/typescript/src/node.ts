/** What only Node has: `@mainstem/client/node`. */
export { FileStore } from "./store/file.js";
export type { FileStoreOptions } from "./store/file.js";
