package main

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

func (p *program) aggregations() {
	things := p.things()
	step("aggregate: grouped in batches")(all(things.Aggregate(ctx,
		docs(`{"$group": {"_id": "$group", "n": {"$sum": 1}, "sum": {"$sum": "$_id"}}}`, `{"$sort": {"_id": 1}}`),
		options.Aggregate().SetBatchSize(2).SetAllowDiskUse(true).SetComment("grouped"))))
	step("aggregate: $lookup")(all(things.Aggregate(ctx, docs(
		`{"$match": {"_id": {"$lt": 3}}}`,
		`{"$lookup": {"from": "updates", "localField": "_id", "foreignField": "_id", "as": "updated"}}`,
		`{"$sort": {"_id": 1}}`))))
	step("aggregate: $facet")(all(things.Aggregate(ctx, docs(
		`{"$facet": {"count": [{"$count": "n"}], "last": [{"$sort": {"_id": -1}}, {"$limit": 2}]}}`))))
	step("aggregate: $out")(p.writtenOut(`{"$match": {"group": 4}}`, `{"$out": "out"}`))
	step("aggregate: $merge")(p.writtenOut(`{"$match": {"_id": {"$lte": 11}}}`, `{"$set": {"merged": true}}`,
		`{"$merge": {"into": "out", "whenMatched": "merge", "whenNotMatched": "discard"}}`))
	if !p.stable {
		step("aggregate: explain")(keys(p.command(`{"explain": {
			"aggregate": "things", "cursor": {},
			"pipeline": [{"$match": {"group": 4}}, {"$group": {"_id": "$text"}}]
		}}`)))
	}
}

// writtenOut runs a pipeline that writes to the collection "out", then reads that collection.
func (p *program) writtenOut(stages ...string) (any, error) {
	if _, err := all(p.things().Aggregate(ctx, docs(stages...))); err != nil {
		return nil, err
	}
	return all(p.db.Collection("out").Find(ctx, bson.D{}, options.Find().SetSort(byID)))
}

// keys returns only a reply's field names, because the types of the values vary.
func keys(result *mongo.SingleResult) (any, error) {
	reply, err := result.Raw()
	if err != nil {
		return nil, err
	}
	elements, err := reply.Elements()
	must(err)
	names := []string{}
	for _, element := range elements {
		names = append(names, element.Key())
	}
	slices.Sort(names)
	return names, nil
}
