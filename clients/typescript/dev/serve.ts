/** `npm run gateway`: the development gateway and, where it was built, the todo app, until Ctrl-C. */
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { DevServer } from "./server.js";

const { values } = parseArgs({
  options: { port: { type: "string", default: "8182" }, host: { type: "string", default: "127.0.0.1" } },
});
const statics = fileURLToPath(new URL("../apps/todo/dist/", import.meta.url));
const server = await DevServer.start({ port: Number(values.port), host: values.host, statics });
console.log(`Todo app and development gateway: ${server.url}/`);
console.log("Open it in two windows. What the gateway knows is gone when it stops; what the pages know is not.");
process.once("SIGINT", () => void server.stop());
process.once("SIGTERM", () => void server.stop());
