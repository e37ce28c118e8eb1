package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// writers write during failures; see ../scenarios.md.
type writers struct {
	name   string
	things *mongo.Collection
	over   atomic.Bool

	lock         sync.Mutex
	Acknowledged []string `json:"acknowledged"`
	Failed       []string `json:"failed"`
}

// writeUntilStopped runs three writers until a line arrives, then prints the acknowledged documents
// and the errors.
func writeUntilStopped(client *mongo.Client, database, name string) {
	all := &writers{name: name, things: client.Database(database).Collection("things"), Acknowledged: []string{}, Failed: []string{}}
	var running sync.WaitGroup
	for number := range 3 {
		running.Go(func() {
			if err := all.write(number); err != nil {
				all.lock.Lock()
				defer all.lock.Unlock()
				all.Failed = append(all.Failed, err.Error())
			}
		})
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Scan()
	all.over.Store(true)
	running.Wait()
	must(json.NewEncoder(os.Stdout).Encode(all))
	// Keep the connections open until the test has counted them.
	lines.Scan()
}

func (all *writers) write(number int) error {
	for count := 0; !all.over.Load(); count++ {
		key := fmt.Sprintf("%s %d %d", all.name, number, count)
		itself := bson.D{{Key: "_id", Value: key}}
		if _, err := all.things.InsertOne(ctx, bson.D{{Key: "_id", Value: key}, {Key: "n", Value: 0}}); err != nil {
			return fmt.Errorf("insert %s: %w", key, err)
		}
		changed, err := all.things.UpdateOne(ctx, itself, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
		if err != nil || changed.MatchedCount != 1 {
			return fmt.Errorf("update %s: %v: %w", key, changed, err)
		}
		var found struct{ N int }
		if err := all.things.FindOne(ctx, itself).Decode(&found); err != nil || found.N != 1 {
			return fmt.Errorf("find %s: %v: %w", key, found, err)
		}
		all.lock.Lock()
		all.Acknowledged = append(all.Acknowledged, key)
		all.lock.Unlock()
	}
	return nil
}
