import static com.mongodb.client.model.Filters.eq;
import static com.mongodb.client.model.Filters.gt;
import static com.mongodb.client.model.Updates.inc;
import static com.mongodb.client.model.Updates.set;

import com.mongodb.MongoWriteException;
import com.mongodb.client.ClientSession;
import com.mongodb.client.MongoChangeStreamCursor;
import com.mongodb.client.MongoClient;
import com.mongodb.client.MongoClients;
import com.mongodb.client.MongoCollection;
import com.mongodb.client.MongoDatabase;
import com.mongodb.client.model.Accumulators;
import com.mongodb.client.model.Aggregates;
import com.mongodb.client.model.FindOneAndUpdateOptions;
import com.mongodb.client.model.IndexOptions;
import com.mongodb.client.model.Indexes;
import com.mongodb.client.model.ReturnDocument;
import com.mongodb.client.model.changestream.ChangeStreamDocument;
import com.mongodb.client.model.changestream.FullDocument;
import java.util.ArrayList;
import java.util.Date;
import java.util.List;
import org.bson.Document;
import org.bson.types.Decimal128;

/** A small application of the Java driver. Prints what it saw as one line of JSON. */
public class App {
    public static void main(String[] arguments) {
        Document seen = new Document();
        try (MongoClient client = MongoClients.create(arguments[0])) {
            MongoDatabase db = client.getDatabase("java");
            MongoCollection<Document> a = db.getCollection("a");
            documents(a, seen);
            transaction(client, db, a, seen);
            changes(a, seen);
        }
        System.out.println(seen.toJson());
    }

    private static void documents(MongoCollection<Document> a, Document seen) {
        Document first = new Document("_id", 1).append("x", 1).append("price", Decimal128.parse("1.50"));
        a.insertMany(List.of(first.append("at", new Date(0)), new Document("_id", 2).append("x", 2L)));
        a.createIndex(Indexes.ascending("x"), new IndexOptions().unique(true).sparse(true));
        seen.append("found", a.find(gt("x", 1)).into(new ArrayList<>()));
        seen.append("same", first.equals(a.find(eq("_id", 1)).first()));
        seen.append(
                "grouped",
                a.aggregate(List.of(Aggregates.group(null, Accumulators.sum("n", "$x")))).into(new ArrayList<>()));
        FindOneAndUpdateOptions after = new FindOneAndUpdateOptions().returnDocument(ReturnDocument.AFTER);
        seen.append("modified", a.findOneAndUpdate(eq("_id", 1), inc("x", 10), after).getInteger("x"));
        try {
            a.insertOne(new Document("x", 11));
        } catch (MongoWriteException error) {
            seen.append("code", error.getCode());
        }
        seen.append("deleted", a.deleteOne(eq("_id", 2)).getDeletedCount());
    }

    private static void transaction(MongoClient client, MongoDatabase db, MongoCollection<Document> a, Document seen) {
        MongoCollection<Document> b = db.getCollection("b");
        try (ClientSession session = client.startSession()) {
            session.withTransaction(() -> {
                a.insertOne(session, new Document("_id", 3));
                b.insertOne(session, new Document("_id", 3));
                return null;
            });
            session.startTransaction();
            b.insertOne(session, new Document("_id", 4));
            session.abortTransaction();
        }
        seen.append("committed", b.countDocuments());
    }

    private static void changes(MongoCollection<Document> a, Document seen) {
        try (MongoChangeStreamCursor<ChangeStreamDocument<Document>> stream =
                a.watch().fullDocument(FullDocument.UPDATE_LOOKUP).cursor()) {
            a.updateOne(eq("_id", 3), set("y", 1));
            ChangeStreamDocument<Document> event = stream.next();
            seen.append("changed", event.getUpdateDescription().getUpdatedFields().toString());
            seen.append("full", event.getFullDocument());
        }
    }
}
