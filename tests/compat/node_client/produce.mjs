// A producer as people write one, on the installed package: node produce.mjs WS_URL TABLE. Its connection is broken twice.
import { CdcProducer, insert, remove, update } from "@mainstem/client/cdc";
import { WebSocket } from "ws";

const [url, table] = process.argv.slice(2);
let left = 12;

class Breaking extends WebSocket {
  send(...words) {
    super.send(...words);
    if (--left === 0) this.terminate();
  }
}

const producer = await CdcProducer.connect({ url, source: `node-${table}`, WebSocket: Breaking });
const receipts = [];
for (let batch = 0; batch < 50; batch++) {
  if (batch === 30) left = 3;
  const changes = Array.from({ length: 20 }, (_, n) => insert(table, `k${batch * 20 + n}`, { n: batch * 20 + n, note: "new" }));
  receipts.push(await producer.send([...changes, update(table, `k${batch * 20}`, { note: "paid" }), remove(table, `k${batch * 20 + 1}`)]));
}
const durable = await Promise.all(receipts.map((receipt) => receipt.durable()));
await producer.flush();
await Promise.all(receipts.map((receipt) => receipt.persisted()));
const refused = await producer.send([insert("", "k", {})]);
const reason = await refused.durable().then(() => "taken", (error) => error.name);
const closing = await producer.close().then(() => "silent", (error) => error.name);
console.log(JSON.stringify({ durable: durable.length, connections: producer.connections, reason, closing }));
