package main

import (
	"encoding/json"
	"os"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// tryConnections connects with each connection string, and prints a line for each; see
// ../scenarios.md.
func tryConnections(uris []string) {
	out := json.NewEncoder(os.Stdout)
	out.SetEscapeHTML(false)
	for _, uri := range uris {
		line := struct {
			Step  string `json:"step"`
			Value *int   `json:"value,omitempty"`
			Error string `json:"error,omitempty"`
		}{Step: "connect"}
		if count, err := writtenAndFound(uri); err != nil {
			line.Error = err.Error()
		} else {
			line.Value = &count
		}
		must(out.Encode(line))
	}
}

func writtenAndFound(uri string) (int, error) {
	client, err := connect(options.Client().ApplyURI(uri))
	if err != nil {
		return 0, err
	}
	defer func() { must(client.Disconnect(ctx)) }()
	things := client.Database("tls").Collection("things")
	inserted, err := things.InsertOne(ctx, doc(`{"text": "tls"}`))
	if err != nil {
		return 0, err
	}
	cursor, err := things.Find(ctx, bson.D{field("_id", inserted.InsertedID)})
	if err != nil {
		return 0, err
	}
	var found []bson.Raw
	err = cursor.All(ctx, &found)
	return len(found), err
}
