package main

import (
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

func (p *program) failures() {
	things := p.things()
	step("errors: duplicate key")(inserted(things.InsertOne(ctx, first)))
	step("errors: unknown operator")(all(things.Find(ctx, doc(`{"$nope": 1}`))))
	step("errors: unknown command")(single(p.command(`{"noSuchCommand": 1}`)))
	step("errors: not authorised")(inserted(p.client.Database("elsewhere").Collection("things").InsertOne(ctx, first)))
	step("errors: maxTimeMS")(all(p.db.RunCommandCursor(ctx, doc(`{"find": "things", "maxTimeMS": 50, "filter": {
		"$expr": {"$gte": [{"$reduce": {
			"input": {"$range": [0, 20000]}, "initialValue": 0, "in": {"$add": ["$$value", "$$this"]}
		}}, 0]}
	}}`))))
	step("errors: document validation")(p.invalidDocument())
	step("errors: cursor not found")(single(p.command(`{"getMore": {"$numberLong": "123456789"}, "collection": "things"}`)))
	// The options differ from those of the collection, because later servers report success if they
	// are equal.
	step("errors: collection exists")(nothing(
		p.db.CreateCollection(ctx, "things", options.CreateCollection().SetCollation(ignoringCase))))
	step("errors: index conflict")(p.indexConflict())
	step("errors: write concern")(single(p.command(
		`{"insert": "unmet", "documents": [{"_id": 1}], "writeConcern": {"w": 50, "wtimeout": 100}}`)))
	step("errors: invalid namespace")(inserted(p.db.Collection(".starts with a dot").InsertOne(ctx, first)))
	step("errors: immutable field")(updated(things.UpdateOne(ctx, first, doc(`{"$set": {"_id": 2}}`))))
	step("errors: getMore of an invalid type")(single(p.command(`{"getMore": "text", "collection": "things"}`)))
	step("errors: commit of an unknown transaction")(p.commitOfNone())
}

func (p *program) invalidDocument() (any, error) {
	schema := doc(`{"$jsonSchema": {"required": ["n"], "properties": {"n": {"bsonType": "int"}}}}`)
	must(p.db.CreateCollection(ctx, "validated", options.CreateCollection().SetValidator(schema)))
	return inserted(p.db.Collection("validated").InsertOne(ctx, doc(`{"_id": 1, "n": "text"}`)))
}

func (p *program) indexConflict() (any, error) {
	indexes := p.db.Collection("conflicts").Indexes()
	_, err := indexes.CreateOne(ctx, mongo.IndexModel{Keys: doc(`{"group": 1}`), Options: options.Index().SetName("by")})
	must(err)
	return indexes.CreateOne(ctx, mongo.IndexModel{Keys: doc(`{"text": 1}`), Options: options.Index().SetName("by")})
}

func (p *program) commitOfNone() (any, error) {
	session, within := p.session(options.Session())
	defer session.EndSession(ctx)
	return single(p.client.Database("admin").RunCommand(within,
		doc(`{"commitTransaction": 1, "txnNumber": {"$numberLong": "1000"}, "autocommit": false}`)))
}
