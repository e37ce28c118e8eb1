package main

import (
	"errors"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

func (p *program) cursors() {
	step("cursors: closed before its end")(p.closedEarly())
	step("cursors: tailable")(p.tailed())
}

func (p *program) closedEarly() (any, error) {
	cursor, err := p.things().Find(ctx, bson.D{}, options.Find().SetSort(byID).SetBatchSize(5))
	if err != nil {
		return nil, err
	}
	seen, err := taken(cursor, 7)
	return seen, errors.Join(err, cursor.Close(ctx))
}

func (p *program) tailed() (any, error) {
	err := p.db.CreateCollection(ctx, "tailed", options.CreateCollection().SetCapped(true).SetSizeInBytes(65536))
	if err != nil {
		return nil, err
	}
	tailed := p.filled("tailed", 3)
	cursor, err := tailed.Find(ctx, bson.D{}, options.Find().SetCursorType(options.TailableAwait))
	if err != nil {
		return nil, err
	}
	before, err := taken(cursor, 3)
	if err != nil {
		return nil, err
	}
	if _, err := tailed.InsertMany(ctx, smallDocuments(3, 5)); err != nil {
		return nil, err
	}
	after, err := taken(cursor, 2)
	return append(before, after...), errors.Join(err, cursor.Close(ctx))
}

// taken copies the documents, because the cursor reuses its buffer.
func taken(cursor *mongo.Cursor, count int) ([]bson.Raw, error) {
	var taken []bson.Raw
	for len(taken) < count && cursor.Next(ctx) {
		taken = append(taken, slices.Clone(cursor.Current))
	}
	return taken, cursor.Err()
}
