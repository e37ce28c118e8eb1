package main

import (
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

func (p *program) updates() {
	changed := p.filled("updates", 30)
	_, err := changed.InsertOne(ctx, doc(`{"_id": "array", "marks": [{"n": 1}, {"n": 5}, {"n": 9}]}`))
	must(err)
	step("updates: one")(updated(changed.UpdateOne(ctx, doc(`{"group": 1}`), doc(`{"$set": {"seen": true}}`))))
	step("updates: many")(updated(changed.UpdateMany(ctx, doc(`{"group": 2}`), doc(`{"$inc": {"seen": 1}}`),
		updateManyOptions().SetComment("many"))))
	step("updates: upsert")(updated(changed.UpdateOne(ctx, doc(`{"_id": "new"}`), doc(`{"$setOnInsert": {"made": true}}`),
		updateOneOptions().SetUpsert(true))))
	step("updates: arrayFilters")(updated(changed.UpdateOne(ctx, doc(`{"_id": "array"}`),
		doc(`{"$set": {"marks.$[high].high": true}}`),
		updateOneOptions().SetArrayFilters(arrayFilters(doc(`{"high.n": {"$gte": 5}}`))))))
	step("updates: pipeline")(updated(changed.UpdateMany(ctx, doc(`{"group": 3}`),
		docs(`{"$set": {"both": {"$concat": ["$text", "/", {"$toString": "$group"}]}}}`, `{"$unset": "text"}`))))
	step("updates: replace")(updated(changed.ReplaceOne(ctx, doc(`{"_id": 4}`), doc(`{"replaced": [1, 2]}`),
		options.Replace().SetUpsert(true))))
	step("updates: collation")(updated(changed.UpdateOne(ctx, doc(`{"text": "ITEM 5"}`), doc(`{"$set": {"collated": true}}`),
		updateOneOptions().SetCollation(ignoringCase))))
	step("updates: hint")(updated(changed.UpdateMany(ctx, doc(`{"_id": {"$lt": 3}}`), doc(`{"$set": {"hinted": true}}`),
		updateManyOptions().SetHint(byID))))
	step("updates: afterwards")(all(changed.Find(ctx, bson.D{}, options.Find().SetSort(byID))))
}

func updated(result *mongo.UpdateResult, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return bson.D{
		acknowledged(result),
		field("matchedCount", result.MatchedCount),
		field("modifiedCount", result.ModifiedCount),
		field("upsertedCount", result.UpsertedCount),
		field("upsertedId", result.UpsertedID),
	}, nil
}

func (p *program) findAndModify() {
	modified := p.filled("modified", 20)
	step("find and modify: update before")(single(modified.FindOneAndUpdate(ctx, doc(`{"group": 1}`), doc(`{"$set": {"a": 1}}`),
		options.FindOneAndUpdate().SetSort(doc(`{"_id": -1}`)))))
	step("find and modify: update after")(single(modified.FindOneAndUpdate(ctx, doc(`{"group": 1}`), doc(`{"$inc": {"a": 1}}`),
		options.FindOneAndUpdate().SetSort(doc(`{"_id": -1}`)).SetProjection(doc(`{"text": 0}`)).
			SetReturnDocument(options.After))))
	step("find and modify: replace")(single(modified.FindOneAndReplace(ctx, doc(`{"_id": 2}`), doc(`{"replaced": true}`),
		options.FindOneAndReplace().SetReturnDocument(options.After))))
	step("find and modify: delete")(single(modified.FindOneAndDelete(ctx, doc(`{"group": 3}`),
		options.FindOneAndDelete().SetSort(byID).SetProjection(doc(`{"text": 1}`)))))
	step("find and modify: upsert")(single(modified.FindOneAndUpdate(ctx, doc(`{"_id": "new"}`), doc(`{"$set": {"a": 1}}`),
		options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.After))))
	step("find and modify: upsert before")(single(modified.FindOneAndReplace(ctx, doc(`{"_id": "newer"}`), doc(`{"a": 1}`),
		options.FindOneAndReplace().SetUpsert(true))))
	step("find and modify: nothing found")(single(modified.FindOneAndDelete(ctx, doc(`{"_id": "nowhere"}`))))
}

func (p *program) deletes() {
	left := p.filled("deletes", 30)
	step("deletes: one")(deleted(left.DeleteOne(ctx, doc(`{"group": 1}`))))
	step("deletes: many")(deleted(left.DeleteMany(ctx, doc(`{"group": 2}`))))
	step("deletes: hint")(deleted(left.DeleteMany(ctx, doc(`{"_id": {"$gte": 25}}`),
		deleteManyOptions().SetHint(byID).SetComment("hint"))))
	step("deletes: afterwards")(all(left.Find(ctx, bson.D{}, options.Find().SetSort(byID).SetProjection(byID))))
}

func deleted(result *mongo.DeleteResult, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return bson.D{acknowledged(result), field("deletedCount", result.DeletedCount)}, nil
}
