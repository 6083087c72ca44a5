import java.time.Duration;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.ConsumerGroupState;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.*;

/** Asks a broker for everything that Kafka's own clients can ask, and fails where an answer is not the right one. */
public class AskEverything {
    private static final TopicPartition PLACE = new TopicPartition("asked", 0);
    private static String bootstrap;

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        try (Admin admin = Admin.create(settings())) {
            topics(admin);
            produce();
            for (String protocol : List.of("classic", "consumer")) consume(admin, protocol);
            transactions(admin);
            groups(admin);
            records(admin);
            admin.deleteTopics(List.of("asked")).all().get();
        }
        System.out.println("done");
    }

    private static Properties settings() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        return settings;
    }

    private static void check(boolean holds, Object said) {
        if (!holds) throw new AssertionError(String.valueOf(said));
    }

    private static void topics(Admin admin) throws Exception {
        admin.createTopics(List.of(new NewTopic("asked", 1, (short) 1))).all().get();
        admin.createPartitions(Map.of("asked", NewPartitions.increaseTo(2))).all().get();
        TopicDescription asked = admin.describeTopics(List.of("asked")).allTopicNames().get().get("asked");
        check(asked.partitions().size() == 2, asked);
        check(admin.listTopics().names().get().contains("asked"), "no such topic");
        check(admin.describeCluster().nodes().get().size() == 1, "one broker");
        check(admin.listPartitionReassignments().reassignments().get().isEmpty(), "no reassignments");
        check(admin.describeFeatures().featureMetadata().get().finalizedFeatures().containsKey("group.version"), "features");
        ConfigResource of = new ConfigResource(ConfigResource.Type.TOPIC, "asked");
        AlterConfigOp op = new AlterConfigOp(new ConfigEntry("retention.ms", "123456789"), AlterConfigOp.OpType.SET);
        admin.incrementalAlterConfigs(Map.of(of, List.of(op))).all().get();
        String kept = admin.describeConfigs(List.of(of)).all().get().get(of).get("retention.ms").value();
        check(kept.equals("123456789"), kept);
        int broker = admin.describeCluster().nodes().get().iterator().next().id();
        var folders = admin.describeLogDirs(List.of(broker)).allDescriptions().get().get(broker).values();
        check(folders.size() == 1, folders);
        var replicas = folders.iterator().next().replicaInfos();
        check(replicas.containsKey(new TopicPartition("asked", 0)), replicas);
    }

    private static Properties producing() {
        Properties settings = settings();
        settings.put("key.serializer", StringSerializer.class.getName());
        settings.put("value.serializer", StringSerializer.class.getName());
        return settings;
    }

    private static void produce() throws Exception {
        try (Producer<String, String> producer = new KafkaProducer<>(producing())) {
            for (int n = 0; n < 10; n++)
                producer.send(new ProducerRecord<>("asked", 0, 1000L + n, "k", "v" + n)).get();
        }
    }

    private static Properties consuming(String group) {
        Properties settings = settings();
        settings.put("group.id", group);
        settings.put("key.deserializer", StringDeserializer.class.getName());
        settings.put("value.deserializer", StringDeserializer.class.getName());
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        return settings;
    }

    private static void consume(Admin admin, String protocol) throws Exception {
        Properties settings = consuming("asking-" + protocol);
        settings.put("group.protocol", protocol);
        try (Consumer<String, String> consumer = new KafkaConsumer<>(settings)) {
            consumer.subscribe(List.of("asked"));
            int found = 0;
            long until = System.currentTimeMillis() + 30_000;
            while (found < 10 && System.currentTimeMillis() < until) found += consumer.poll(Duration.ofMillis(200)).count();
            check(found == 10, found);
            consumer.commitSync();
            long last = consumer.committed(Set.of(PLACE)).get(PLACE).offset();
            check(last == 10, last);
            long middle = consumer.offsetsForTimes(Map.of(PLACE, 1004L)).get(PLACE).offset();
            check(middle == 4, middle);
            // The offset and the epoch of a position are checked with the broker.
            consumer.seek(PLACE, new OffsetAndMetadata(3, Optional.of(0), ""));
            found = 0;
            while (found < 7 && System.currentTimeMillis() < until) found += consumer.poll(Duration.ofMillis(200)).count();
            check(found == 7, found);
            ConsumerGroupDescription said = admin.describeConsumerGroups(List.of("asking-" + protocol)).all().get().get("asking-" + protocol);
            check(said.members().size() == 1, said);
            long beats = System.currentTimeMillis() + 4_000;
            while (System.currentTimeMillis() < beats) consumer.poll(Duration.ofMillis(200));
        }
    }

    private static void transactions(Admin admin) throws Exception {
        Properties settings = producing();
        settings.put("transactional.id", "asking");
        try (Producer<String, String> producer = new KafkaProducer<>(settings)) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>("asked", 0, 2000L, "k", "in a transaction")).get();
            check(admin.describeProducers(List.of(PLACE)).all().get().get(PLACE).activeProducers().size() >= 1, "producers");
            check(admin.listTransactions().all().get().size() == 1, "one transaction");
            TransactionDescription said = admin.describeTransactions(List.of("asking")).all().get().get("asking");
            check(said.topicPartitions().contains(PLACE), said);
            producer.sendOffsetsToTransaction(Map.of(PLACE, new OffsetAndMetadata(5)), new ConsumerGroupMetadata("asking-txn"));
            producer.commitTransaction();
        }
        admin.fenceProducers(List.of("asking")).all().get();
    }

    private static void groups(Admin admin) throws Exception {
        check(admin.listGroups().all().get().size() >= 3, "groups");
        Map<TopicPartition, OffsetAndMetadata> kept = admin.listConsumerGroupOffsets("asking-txn").partitionsToOffsetAndMetadata().get();
        check(kept.get(PLACE).offset() == 5, kept);
        admin.alterConsumerGroupOffsets("asking-classic", Map.of(PLACE, new OffsetAndMetadata(1))).all().get();
        admin.deleteConsumerGroupOffsets("asking-classic", Set.of(PLACE)).all().get();
        check(admin.describeClassicGroups(List.of("asking-classic")).all().get().size() == 1, "a classic group");
        admin.deleteConsumerGroups(List.of("asking-classic", "asking-consumer", "asking-txn")).all().get();
    }

    private static long offset(Admin admin, OffsetSpec spec) throws Exception {
        return admin.listOffsets(Map.of(PLACE, spec)).partitionResult(PLACE).get().offset();
    }

    private static void records(Admin admin) throws Exception {
        // Ten records, one in a transaction, and its marker.
        check(offset(admin, OffsetSpec.latest()) == 12, offset(admin, OffsetSpec.latest()));
        check(offset(admin, OffsetSpec.forTimestamp(1007)) == 7, offset(admin, OffsetSpec.forTimestamp(1007)));
        check(offset(admin, OffsetSpec.earliestLocal()) == 0, offset(admin, OffsetSpec.earliestLocal()));
        check(offset(admin, OffsetSpec.latestTiered()) == -1, offset(admin, OffsetSpec.latestTiered()));
        check(offset(admin, OffsetSpec.maxTimestamp()) >= 10, offset(admin, OffsetSpec.maxTimestamp()));
        long low = admin.deleteRecords(Map.of(PLACE, RecordsToDelete.beforeOffset(4))).lowWatermarks().get(PLACE).get().lowWatermark();
        check(low == 4, low);
        check(offset(admin, OffsetSpec.earliest()) == 4, offset(admin, OffsetSpec.earliest()));
    }
}
