package main

import (
	"maps"
	"slices"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// bulks sends mixed models in one call. Each kind of bulk runs once without an error and once with
// an error in the middle.
func (p *program) bulks() {
	bulk("bulk ordered", p.filled("ordered", 20), true)
	bulk("bulk unordered", p.filled("unordered", 20), false)
}

func bulk(name string, collection *mongo.Collection, ordered bool) {
	with := options.BulkWrite().SetOrdered(ordered).SetComment(name)
	step(name)(bulkResult(collection.BulkWrite(ctx, mixed(), with)))
	step(name + ": error")(bulkResult(collection.BulkWrite(ctx, failing(), with)))
	step(name + ": afterwards")(all(collection.Find(ctx, bson.D{}, options.Find().SetSort(byID))))
}

func mixed() []mongo.WriteModel {
	return []mongo.WriteModel{
		insertOne(`{"_id": "a", "n": 0}`),
		updateOne(`{"_id": 1}`, `{"$set": {"one": true}}`),
		mongo.NewUpdateManyModel().SetFilter(doc(`{"group": 2}`)).SetUpdate(doc(`{"$set": {"many": true}}`)),
		updateOne(`{"_id": "b"}`, `{"$set": {"made": true}}`).SetUpsert(true),
		mongo.NewReplaceOneModel().SetFilter(doc(`{"_id": 3}`)).SetReplacement(doc(`{"replaced": true}`)),
		mongo.NewDeleteOneModel().SetFilter(doc(`{"_id": 4}`)),
		mongo.NewDeleteManyModel().SetFilter(doc(`{"group": 5}`)),
		insertOne(`{"_id": "c"}`),
	}
}

func failing() []mongo.WriteModel {
	return []mongo.WriteModel{
		insertOne(`{"_id": "d"}`),
		updateOne(`{"_id": "d"}`, `{"$set": {"x": 1}}`),
		insertOne(`{"_id": "a"}`),
		updateOne(`{"_id": "a"}`, `{"$inc": {"n": 1}}`),
		updateOne(`{"_id": 6}`, `{"$inc": {"text": 1}}`),
		mongo.NewDeleteOneModel().SetFilter(doc(`{"_id": 8}`)),
	}
}

func insertOne(document string) *mongo.InsertOneModel {
	return mongo.NewInsertOneModel().SetDocument(doc(document))
}

func updateOne(filter, update string) *mongo.UpdateOneModel {
	return mongo.NewUpdateOneModel().SetFilter(doc(filter)).SetUpdate(doc(update))
}

func bulkResult(result *mongo.BulkWriteResult, err error) (any, error) {
	if result == nil {
		return nil, err
	}
	upserted := bson.D{}
	for _, index := range slices.Sorted(maps.Keys(result.UpsertedIDs)) {
		upserted = append(upserted, field(strconv.FormatInt(index, 10), result.UpsertedIDs[index]))
	}
	return bson.D{
		acknowledged(result),
		field("insertedCount", result.InsertedCount),
		field("matchedCount", result.MatchedCount),
		field("modifiedCount", result.ModifiedCount),
		field("deletedCount", result.DeletedCount),
		field("upsertedCount", result.UpsertedCount),
		field("upsertedIds", upserted),
	}, err
}
