package main

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// The types and calls that differ between versions 1 and 2 of the driver. VERSION/v1.go has the
// same names for version 1. The test also compiles all other files with version 1, after it has
// removed "/v2" from their imports.

type (
	objectIdentifier = bson.ObjectID
	binary           = bson.Binary
	undefined        = bson.Undefined
	dateTime         = bson.DateTime
	regex            = bson.Regex
	dbPointer        = bson.DBPointer
	javaScript       = bson.JavaScript
	symbol           = bson.Symbol
	codeWithScope    = bson.CodeWithScope
	timestamp        = bson.Timestamp
	minKey           = bson.MinKey
	maxKey           = bson.MaxKey

	findOptions    = options.FindOptionsBuilder
	sessionOptions = options.SessionOptionsBuilder
	clientSession  = *mongo.Session
	gridFSBucket   = *mongo.GridFSBucket
)

var (
	parseDecimal128   = bson.ParseDecimal128
	connect           = mongo.Connect
	updateOneOptions  = options.UpdateOne
	updateManyOptions = options.UpdateMany
	deleteManyOptions = options.DeleteMany
)

func (p *program) bucket() gridFSBucket {
	return p.db.GridFSBucket()
}

func arrayFilters(filters ...any) []any {
	return filters
}

func distinct(collection *mongo.Collection, name string, filter any) (any, error) {
	values := bson.A{}
	err := collection.Distinct(ctx, name, filter).Decode(&values)
	return values, err
}

func dropIndex(indexes mongo.IndexView, name string) error {
	return indexes.DropOne(ctx, name)
}

func dropIndexes(indexes mongo.IndexView) error {
	return indexes.DropAll(ctx)
}

func inTransaction(session clientSession, action func(context.Context) (any, error)) (any, error) {
	return session.WithTransaction(ctx, action)
}

// hasFailed is true if an unacknowledged write has failed.
func hasFailed(err error) bool {
	return err != nil
}

// acknowledged returns the field Acknowledged of the result of any write.
func acknowledged(result any) bson.E {
	switch result := result.(type) {
	case *mongo.InsertOneResult:
		return field("acknowledged", result.Acknowledged)
	case *mongo.InsertManyResult:
		return field("acknowledged", result.Acknowledged)
	case *mongo.UpdateResult:
		return field("acknowledged", result.Acknowledged)
	case *mongo.DeleteResult:
		return field("acknowledged", result.Acknowledged)
	case *mongo.BulkWriteResult:
		return field("acknowledged", result.Acknowledged)
	}
	panic("not the result of a write")
}
