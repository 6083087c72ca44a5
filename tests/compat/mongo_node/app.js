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
  await mongoose.disconnect();
  return { age, code };
}

(async () => {
  const url = process.argv[2];
  console.log(JSON.stringify({ driver: await driver(url), models: await models(url) }));
})().catch((error) => {
  console.error(error);
  process.exit(1);
});
