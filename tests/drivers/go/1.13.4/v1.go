package main

import (
	"context"
	"errors"
	"io"

	"go.mongodb.org/mongo-driver/bson"
	"go.mongodb.org/mongo-driver/bson/primitive"
	"go.mongodb.org/mongo-driver/mongo"
	"go.mongodb.org/mongo-driver/mongo/gridfs"
	"go.mongodb.org/mongo-driver/mongo/options"
)

// The types and calls of version 1 of the driver, with the names of ../v2.go. The test compiles
// this file with the other files of that folder. Those files need version 1.13 or later of the
// driver.
//
// This version runs all steps. Its write results have no field Acknowledged, so null is printed for
// it.

type (
	objectIdentifier = primitive.ObjectID
	binary           = primitive.Binary
	undefined        = primitive.Undefined
	dateTime         = primitive.DateTime
	regex            = primitive.Regex
	dbPointer        = primitive.DBPointer
	javaScript       = primitive.JavaScript
	symbol           = primitive.Symbol
	codeWithScope    = primitive.CodeWithScope
	timestamp        = primitive.Timestamp
	minKey           = primitive.MinKey
	maxKey           = primitive.MaxKey

	findOptions    = options.FindOptions
	sessionOptions = options.SessionOptions
	clientSession  = mongo.Session
)

var (
	parseDecimal128   = primitive.ParseDecimal128
	updateOneOptions  = options.Update
	updateManyOptions = options.Update
	deleteManyOptions = options.Delete
)

func connect(settings *options.ClientOptions) (*mongo.Client, error) {
	return mongo.Connect(ctx, settings)
}

func arrayFilters(filters ...any) options.ArrayFilters {
	return options.ArrayFilters{Filters: filters}
}

func distinct(collection *mongo.Collection, name string, filter any) (any, error) {
	return collection.Distinct(ctx, name, filter)
}

func dropIndex(indexes mongo.IndexView, name string) error {
	_, err := indexes.DropOne(ctx, name)
	return err
}

func dropIndexes(indexes mongo.IndexView) error {
	_, err := indexes.DropAll(ctx)
	return err
}

func inTransaction(session clientSession, action func(context.Context) (any, error)) (any, error) {
	return session.WithTransaction(ctx, func(within mongo.SessionContext) (any, error) { return action(within) })
}

// hasFailed is true if an unacknowledged write has failed. The driver also returns an error for a
// successful write.
func hasFailed(err error) bool {
	return err != nil && !errors.Is(err, mongo.ErrUnacknowledgedWrite)
}

func acknowledged(any) bson.E {
	return field("acknowledged", nil)
}

// gridFSBucket has the methods of version 2, which take a context.
type gridFSBucket struct {
	bucket *gridfs.Bucket
}

func (p *program) bucket() gridFSBucket {
	bucket, err := gridfs.NewBucket(p.db)
	must(err)
	return gridFSBucket{bucket}
}

func (b gridFSBucket) UploadFromStreamWithID(
	_ context.Context, id any, name string, from io.Reader, with *options.UploadOptions,
) error {
	return b.bucket.UploadFromStreamWithID(id, name, from, with)
}

func (b gridFSBucket) DownloadToStream(_ context.Context, id any, to io.Writer) (int64, error) {
	return b.bucket.DownloadToStream(id, to)
}

func (b gridFSBucket) OpenDownloadStream(_ context.Context, id any) (*gridfs.DownloadStream, error) {
	return b.bucket.OpenDownloadStream(id)
}

func (b gridFSBucket) Find(_ context.Context, filter any) (*mongo.Cursor, error) {
	return b.bucket.Find(filter)
}

func (b gridFSBucket) Delete(_ context.Context, id any) error {
	return b.bucket.Delete(id)
}
