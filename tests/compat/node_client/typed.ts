// What a TypeScript program of Node sees of the package.
import { LocalDB, type RowView } from "@mainstem/client";
import { CdcProducer, type Receipt } from "@mainstem/client/cdc";
import { FileStore } from "@mainstem/client/node";

export async function rows(file: string): Promise<RowView[]> {
  const db = await LocalDB.open({ name: "typed", backend: await FileStore.open(file) });
  return db.all("todos");
}

export async function send(url: string): Promise<Receipt> {
  const producer = await CdcProducer.connect({ url, source: "typed" });
  return producer.send([{ operation: "INSERT", table: "t", rowId: 1, after: { n: 1 } }]);
}
