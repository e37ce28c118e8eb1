package main

import (
	"context"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

const limit = 16 * 1024 * 1024

func (p *program) unacknowledged() {
	session, within := p.session(options.Session())
	defer session.EndSession(ctx)
	step("unacknowledged: in a session")(p.unanswered(within, "silent"))
	step("unacknowledged")(p.unanswered(ctx, "unacknowledged"))
}

// unanswered runs unacknowledged writes one by one, so all of them use the same connection of the
// driver's pool. The count runs after all writes.
func (p *program) unanswered(within context.Context, name string) (any, error) {
	silent := p.db.Collection(name, options.Collection().SetWriteConcern(writeconcern.Unacknowledged()))
	for id := range 50 {
		if _, err := silent.InsertOne(within, smallDocument(id)); hasFailed(err) {
			return nil, err
		}
	}
	return counted(p.db.Collection(name).CountDocuments(within, bson.D{}))
}

// largeBatches compresses commands and replies of several hundred KiB. Each document has about 7
// KiB.
func (p *program) largeBatches() {
	padded := p.db.Collection("padded")
	var documents []any
	for id := range 250 {
		documents = append(documents, bson.D{field("_id", int32(id)), field("text", padding(id))})
	}
	step("large batches: written")(insertedMany(padded.InsertMany(ctx, documents)))
	step("large batches: found")(textsDigest(padded.Find(ctx, bson.D{}, options.Find().SetSort(byID))))
	step("large batches: found in batches of 50")(textsDigest(padded.Find(ctx, bson.D{},
		options.Find().SetSort(doc(`{"_id": -1}`)).SetBatchSize(50))))
	step("large batches: aggregated")(textsDigest(padded.Aggregate(ctx, docs(`{"$sort": {"_id": 1}}`),
		options.Aggregate().SetBatchSize(90))))
}

func padding(id int) string {
	words := make([]string, 1200)
	for at := range words {
		words[at] = strconv.Itoa(id * at)
	}
	return strings.Join(words, " ")
}

// textsDigest reads a cursor to its end and returns the digest of its documents' texts.
func textsDigest(cursor *mongo.Cursor, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	var found []struct{ Text string }
	if err := cursor.All(ctx, &found); err != nil {
		return nil, err
	}
	var texts strings.Builder
	for _, each := range found {
		texts.WriteString(each.Text)
	}
	return bson.D{field("documents", len(found)), field("texts", digest([]byte(texts.String())))}, nil
}

func (p *program) large() {
	large := p.db.Collection("large")
	step("large: written")(inserted(large.InsertOne(ctx, sized("fits", limit-64))))
	step("large: read")(p.largeRead())
	step("large: refused")(inserted(large.InsertOne(ctx, sized("refused", limit+1024))))
}

func (p *program) largeRead() (any, error) {
	read, err := p.db.Collection("large").FindOne(ctx, doc(`{"_id": "fits"}`)).Raw()
	if err != nil {
		return nil, err
	}
	_, bytes := read.Lookup("bytes").Binary()
	return append(digest(bytes), field("size", len(read))), nil
}

// sized makes a document of this many bytes of BSON. Its last field pads it.
func sized(id string, size int) bson.D {
	document := bson.D{field("_id", id), field("bytes", []byte{})}
	empty, err := bson.Marshal(document)
	must(err)
	document[1].Value = content(size - len(empty))
	return document
}
