// What a person types into mongosh, as a script. Prints what it saw as one line of JSON.
const seen = {};
db.a.insertMany([{ _id: 1, x: 1, at: ISODate("2026-01-02T03:04:05Z") }, { _id: 2, x: NumberLong(2) }]);
db.a.createIndex({ x: 1 });
seen.found = db.a.find({ x: { $gt: 1 } }, { _id: 1 }).toArray();
seen.grouped = db.a.aggregate([{ $group: { _id: { $year: "$at" }, n: { $sum: 1 } } }, { $sort: { _id: 1 } }]).toArray();
seen.plan = db.a.find({ x: 1 }).explain().queryPlanner.winningPlan.inputStage.stage;
seen.modified = db.a.findOneAndUpdate({ _id: 1 }, { $inc: { x: 10 } }, { returnDocument: "after" }).x;
seen.bulk = db.a.bulkWrite([{ insertOne: { document: { _id: 3 } } }, { deleteOne: { filter: { _id: 2 } } }]).deletedCount;

const session = db.getMongo().startSession();
session.startTransaction();
session.getDatabase("shell").a.insertOne({ _id: 4 });
session.getDatabase("shell").b.insertOne({ _id: 4 });
seen.outside = db.b.countDocuments({});
session.commitTransaction();
seen.committed = db.b.countDocuments({});
session.startTransaction();
session.getDatabase("shell").b.insertOne({ _id: 5 });
session.abortTransaction();
session.endSession();
seen.aborted = db.b.countDocuments({});

const stream = db.a.watch([{ $match: { operationType: "update" } }]);
stream.tryNext();
db.a.updateOne({ _id: 3 }, { $set: { y: 1 } });
let event = null;
while (event === null) event = stream.tryNext();
stream.close();
seen.changed = event.updateDescription.updatedFields;

try {
  db.a.insertOne({ _id: 1 });
} catch (error) {
  seen.code = error.code;
}
seen.collections = db.getCollectionNames().sort();
seen.indexes = db.a.getIndexes().map((each) => each.name);
seen.count = db.a.stats().count;
seen.databases = db.adminCommand({ listDatabases: 1 }).databases.map((each) => each.name).includes("shell");
seen.tools = [db.stats(), db.hostInfo(), db.serverStatus(), db.currentOp(), rs.status(), db.runCommand("ping")].map((each) => each.ok);
db.b.drop();
seen.dropped = db.getCollectionNames();
print(JSON.stringify(seen));
