package main

import (
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
)

var (
	byID         = doc(`{"_id": 1}`)
	ignoringCase = &options.Collation{Locale: "en", Strength: 2}
)

func (p *program) findOptions() {
	find := func(option, filter string, with *findOptions) {
		step("find options: " + option)(all(p.things().Find(ctx, doc(filter), with)))
	}
	below := `{"_id": {"$lt": 3}}`
	find("projection", `{"group": 3}`, options.Find().SetProjection(doc(`{"text": 1, "_id": 0}`)))
	find("sort, skip and limit", `{"group": 3}`, options.Find().SetSort(doc(`{"_id": -1}`)).SetSkip(2).SetLimit(3))
	find("collation", `{"text": "ITEM 5"}`, options.Find().SetCollation(ignoringCase))
	find("hint", below, options.Find().SetHint(byID))
	find("min and max", `{}`, options.Find().SetHint(byID).SetMin(doc(`{"_id": 10}`)).SetMax(doc(`{"_id": 13}`)))
	find("returnKey", below, options.Find().SetHint(byID).SetReturnKey(true))
	find("showRecordId", below, options.Find().SetSort(byID).SetShowRecordID(true))
	find("let", `{"$expr": {"$eq": ["$_id", "$$wanted"]}}`, options.Find().SetLet(doc(`{"wanted": 5}`)))
	find("allowDiskUse", `{"group": 1}`, options.Find().SetSort(doc(`{"text": 1}`)).SetLimit(3).SetAllowDiskUse(true))
	find("comment", `{"_id": 4}`, options.Find().SetComment("from a test"))
	step("find options: maxTimeMS")(all(p.db.RunCommandCursor(ctx,
		doc(`{"find": "things", "filter": {"_id": 4}, "maxTimeMS": 10000}`))))
	find("singleBatch", `{"group": 3}`, options.Find().SetSort(byID).SetLimit(-4))
	find("batch size", `{"group": 3}`, options.Find().SetSort(byID).SetBatchSize(5))
}

func (p *program) readConcerns() {
	for _, level := range []*readconcern.ReadConcern{readconcern.Local(), readconcern.Majority(), readconcern.Available()} {
		things := p.db.Collection("things", options.Collection().SetReadConcern(level))
		step("read concerns: " + level.Level)(all(things.Find(ctx, doc(`{"_id": {"$lt": 3}}`), options.Find().SetSort(byID))))
	}
}

func (p *program) readPreferences() {
	for _, mode := range []*readpref.ReadPref{
		readpref.Primary(), readpref.PrimaryPreferred(), readpref.Secondary(), readpref.SecondaryPreferred(), readpref.Nearest(),
	} {
		step("read preferences: " + mode.Mode().String())(p.readOwnWrite(mode))
	}
}

// readOwnWrite reads its own write on any member, because its session is causally consistent.
func (p *program) readOwnWrite(mode *readpref.ReadPref) (any, error) {
	session, err := p.client.StartSession(options.Session().SetCausalConsistency(true))
	must(err)
	defer session.EndSession(ctx)
	within := mongo.NewSessionContext(ctx, session)
	own := bson.D{field("_id", mode.Mode().String())}
	if _, err := p.db.Collection("preferences", majority).InsertOne(within, own); err != nil {
		return nil, err
	}
	read := options.Collection().SetReadConcern(readconcern.Majority()).SetReadPreference(mode)
	return single(p.db.Collection("preferences", read).FindOne(within, own))
}

func (p *program) counts() {
	step("counts: filter")(counted(p.things().CountDocuments(ctx, doc(`{"group": {"$in": [1, 2]}}`))))
	step("counts: estimated")(counted(p.things().EstimatedDocumentCount(ctx)))
	step("counts: distinct")(distinct(p.things(), "group", doc(`{"_id": {"$gte": 5}}`)))
}

func counted(count int64, err error) (any, error) {
	return count, err
}
