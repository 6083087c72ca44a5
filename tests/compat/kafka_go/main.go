// Writes, shares, copies in transactions and administers with franz-go, and says as JSON what it saw.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const count = 200

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func client(more ...kgo.Opt) *kgo.Client {
	made, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(os.Args[1])}, more...)...)
	must(err)
	return made
}

// write sends the numbers with an idempotent producer, and gives the offsets that they got.
func write(ctx context.Context) []int64 {
	producer := client(kgo.DefaultProduceTopic("go-in"), kgo.ProducerBatchCompression(kgo.ZstdCompression()))
	defer producer.Close()
	var records []*kgo.Record
	for n := 0; n < count; n++ {
		records = append(records, kgo.StringRecord(strconv.Itoa(n)))
	}
	results := producer.ProduceSync(ctx, records...)
	must(results.FirstErr())
	var offsets []int64
	for _, result := range results {
		offsets = append(offsets, result.Record.Offset)
	}
	return offsets
}

// copyAll copies from topic to topic, each poll in a transaction of its own. The first one is aborted.
func copyAll(ctx context.Context) {
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(os.Args[1]), kgo.TransactionalID("go-copy"), kgo.ConsumerGroup("go-copy"),
		kgo.ConsumeTopics("go-in"), kgo.DefaultProduceTopic("go-out"), kgo.RequireStableFetchOffsets(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	must(err)
	defer session.Close()
	aborts := true
	for copied := 0; copied < count; {
		fetched := session.PollRecords(ctx, 50)
		must(fetched.Err())
		must(session.Begin())
		fetched.EachRecord(func(record *kgo.Record) {
			session.Produce(ctx, kgo.SliceRecord(record.Value), nil)
		})
		committed, err := session.End(ctx, kgo.TransactionEndTry(!aborts))
		must(err)
		if committed {
			copied += fetched.NumRecords()
		}
		aborts = false
	}
}

// read gives everything of the copy that is committed.
func read(ctx context.Context) []int {
	consumer := client(kgo.ConsumeTopics("go-out"), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	defer consumer.Close()
	var found []int
	for len(found) < count {
		fetched := consumer.PollFetches(ctx)
		must(fetched.Err())
		fetched.EachRecord(func(record *kgo.Record) {
			number, err := strconv.Atoi(string(record.Value))
			must(err)
			found = append(found, number)
		})
	}
	sort.Ints(found)
	return found
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	admin := kadm.NewClient(client())
	defer admin.Close()
	for _, topic := range []string{"go-in", "go-out"} {
		_, err := admin.CreateTopic(ctx, 2, 1, map[string]*string{"retention.ms": kadm.StringPtr("-1")}, topic)
		must(err)
	}
	offsets := write(ctx)
	copyAll(ctx)
	found := read(ctx)
	lags, err := admin.Lag(ctx, "go-copy")
	must(err)
	ends, err := admin.ListEndOffsets(ctx, "go-in")
	must(err)
	var end int64
	ends.Each(func(each kadm.ListedOffset) { end += each.Offset })
	_, err = admin.DeleteGroups(ctx, "go-copy")
	must(err)
	said := map[string]any{"written": len(offsets), "found": found, "lag": lags["go-copy"].Lag.Total(), "end": end}
	must(json.NewEncoder(os.Stdout).Encode(said))
}
