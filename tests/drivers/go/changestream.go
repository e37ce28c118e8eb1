package main

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// changeStream reads each event before it makes the next change.
func (p *program) changeStream() {
	watched := p.filled("watched", 3)
	id := doc(`{"_id": "watched"}`)
	events, err := watched.Watch(ctx, mongo.Pipeline{}, options.ChangeStream().SetFullDocument(options.UpdateLookup))
	must(err)

	_, err = watched.InsertOne(ctx, doc(`{"_id": "watched", "n": 1}`))
	must(err)
	step("change stream: insert")(next(events))
	_, err = watched.UpdateOne(ctx, id, doc(`{"$set": {"n": 2, "added": "now"}}`))
	must(err)
	step("change stream: update")(next(events))
	second := slices.Clone(events.ResumeToken())
	_, err = watched.DeleteOne(ctx, id)
	must(err)
	step("change stream: delete")(next(events))
	must(events.Close(ctx))

	resumed, err := watched.Watch(ctx, mongo.Pipeline{}, options.ChangeStream().SetResumeAfter(bson.Raw(second)))
	must(err)
	step("change stream: resumed")(next(resumed))
	must(resumed.Close(ctx))
}

func next(events *mongo.ChangeStream) (any, error) {
	events.Next(ctx)
	return events.Current, events.Err()
}
