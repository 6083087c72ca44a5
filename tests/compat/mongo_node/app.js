// A small application of the Node driver and one of mongoose: prints what it saw as one line of JSON.
const { MongoClient } = require("mongodb");
const mongoose = require("mongoose");

async function driver(url) {
  const client = await new MongoClient(url).connect();
  const db = client.db("node");
  const seen = {};
  await db.collection("a").insertMany([{ _id: 1, x: 1 }, { _id: 2, x: 2 }]);
  seen.found = await db.collection("a").find({ x: { $gt: 1 } }).toArray();
  seen.grouped = await db.collection("a").aggregate([{ $group: { _id: null, n: { $sum: "$x" } } }]).toArray();
  const session = client.startSession();
  await session.withTransaction(async () => {
    await db.collection("a").insertOne({ _id: 3 }, { session });
    await db.collection("b").insertOne({ _id: 3 }, { session });
  });
  await session.endSession();
  seen.committed = await db.collection("b").findOne();
  const stream = db.collection("a").watch();
  // The stream begins with its first read.
  await stream.tryNext();
  await db.collection("a").updateOne({ _id: 1 }, { $set: { y: 1 } });
  seen.changed = (await stream.next()).updateDescription.updatedFields;
  await stream.close();
  seen.deleted = (await db.collection("a").deleteOne({ _id: 3 })).deletedCount;
  await client.close();
  return seen;
}

async function models(url) {
  await mongoose.connect(url + "goose");
  const Cat = mongoose.model("Cat", new mongoose.Schema({ name: { type: String, unique: true }, age: Number }));
  await Cat.init();
  await Cat.create({ name: "tom", age: 3 });
  await Cat.updateOne({ name: "tom" }, { $inc: { age: 1 } });
  const age = (await Cat.findOne({ name: "tom" }).lean()).age;
  const code = await Cat.create({ name: "tom" }).then(() => 0, (error) => error.code);
  const grouped = await Cat.aggregate([{ $match: { age: { $gte: 4 } } }, { $group: { _id: "$name", n: { $sum: "$age" } } }]);
  await mongoose.connection.transaction(async (session) => {
    await Cat.create([{ name: "kit", age: 1 }, { name: "pip", age: 2 }], { session, ordered: true });
    await Cat.updateOne({ name: "tom" }, { age: 5 }, { session });
  });
  const failed = await mongoose.connection
    .transaction(async (session) => {
      await Cat.create([{ name: "zoe", age: 1 }], { session });
      throw new Error("given up");
    })
    .then(() => "", (error) => error.message);
  const stream = Cat.watch([{ $match: { operationType: "update" } }], { fullDocument: "updateLookup" });
  let told = false;
  const next = stream.next().finally(() => (told = true));
  // The stream begins with its first read, some time after this: the first write that it tells of is good enough.
  for (let age = 100; !told; age++) await Cat.updateOne({ name: "kit" }, { age });
  const event = await next;
  await stream.close();
  const deleted = (await Cat.deleteMany({ age: { $lt: 5 } })).deletedCount;
  const left = (await Cat.find().sort("name").lean()).map((each) => each.name);
  await mongoose.disconnect();
  return { age, code, grouped, failed, changed: event.fullDocument.name, deleted, left };
}

(async () => {
  const url = process.argv[2];
  console.log(JSON.stringify({ driver: await driver(url), models: await models(url) }));
})().catch((error) => {
  console.error(error);
  process.exit(1);
});
