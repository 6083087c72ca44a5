/** A producer of changes beside sync: `@mainstem/client/cdc`. */
export { insert, remove, update } from "./cdc/changes.js";
export type { Change, Columns } from "./cdc/changes.js";
export { CdcProducer } from "./cdc/producer.js";
export type { CdcProducerOptions } from "./cdc/producer.js";
export type { Durable, Receipt } from "./cdc/receipt.js";
export { Denied, Invalid, MainstemError, Overloaded, Unreachable } from "./errors.js";
