package main

import (
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

func (p *program) indexes() {
	indexes := p.filled("indexed", 10).Indexes()
	listed := func() (any, error) { return all(indexes.List(ctx)) }
	step("administration: create indexes")(created(indexes.CreateMany(ctx, []mongo.IndexModel{
		{Keys: doc(`{"group": 1, "text": -1}`)},
		{Keys: doc(`{"text": 1}`), Options: options.Index().SetUnique(true).
			SetName("unique").SetPartialFilterExpression(doc(`{"group": {"$gt": 1}}`))},
		{Keys: doc(`{"made": 1}`), Options: options.Index().SetExpireAfterSeconds(3600).SetCollation(ignoringCase)},
	})))
	step("administration: list indexes")(listed())
	step("administration: drop index")(after(dropIndex(indexes, "unique"), listed))
	step("administration: drop indexes")(after(dropIndexes(indexes), listed))
	step("administration: drop a missing index")(nothing(dropIndex(indexes, "unique")))
}

func created(names []string, err error) (any, error) {
	return names, err
}

func (p *program) collections() {
	step("administration: create with validator")(nothing(p.db.CreateCollection(ctx, "checked", options.CreateCollection().
		SetValidator(doc(`{"n": {"$gte": 0}}`)).SetValidationLevel("moderate").SetValidationAction("warn"))))
	step("administration: create capped")(nothing(p.db.CreateCollection(ctx, "capped", options.CreateCollection().
		SetCapped(true).SetSizeInBytes(4096).SetMaxDocuments(10))))
	step("administration: view")(p.view())
	step("administration: list collections")(p.listed())
}

func (p *program) view() (any, error) {
	stages := docs(`{"$match": {"group": 1}}`, `{"$project": {"text": 1}}`)
	if err := p.db.CreateView(ctx, "view", "things", stages); err != nil {
		return nil, err
	}
	return all(p.db.Collection("view").Find(ctx, doc(`{"_id": {"$lt": 40}}`), options.Find().SetSort(byID)))
}

// listed sorts by name, because servers return them in any order.
func (p *program) listed() (any, error) {
	cursor, err := p.db.ListCollections(ctx, bson.D{})
	if err != nil {
		return nil, err
	}
	collections := []bson.Raw{}
	err = cursor.All(ctx, &collections)
	slices.SortFunc(collections, func(a, b bson.Raw) int {
		return strings.Compare(a.Lookup("name").StringValue(), b.Lookup("name").StringValue())
	})
	return collections, err
}

func (p *program) statistics() {
	if !p.stable {
		step("administration: collStats")(p.emptyStats())
	}
	step("administration: dbStats")(part(p.command(`{"dbStats": 1}`), "ok"))
}

func (p *program) emptyStats() (any, error) {
	if err := p.db.CreateCollection(ctx, "empty"); err != nil {
		return nil, err
	}
	result := p.command(`{"collStats": "empty"}`)
	names, err := keys(result)
	if err != nil {
		return nil, err
	}
	stats, err := result.Raw()
	printed := bson.D{field("keys", names)}
	for _, name := range []string{"ns", "count", "size", "storageSize", "nindexes", "capped", "ok"} {
		printed = append(printed, field(name, stats.Lookup(name)))
	}
	return printed, err
}

func (p *program) drop() {
	step("drop")(after(p.db.Drop(ctx), p.listed))
}
