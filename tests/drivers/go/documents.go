package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

func (p *program) things() *mongo.Collection {
	return p.db.Collection("things")
}

// filled creates a step's own collection with the small documents from 0 to count - 1.
func (p *program) filled(name string, count int) *mongo.Collection {
	collection := p.db.Collection(name)
	_, err := collection.InsertMany(ctx, smallDocuments(0, count))
	must(err)
	return collection
}

func (p *program) command(text string) *mongo.SingleResult {
	return p.db.RunCommand(ctx, doc(text))
}

func smallDocument(id int) bson.D {
	return bson.D{
		field("_id", int32(id)), field("text", fmt.Sprintf("item %d", id)), field("group", int32(id%7)),
	}
}

func smallDocuments(from, to int) []any {
	var documents []any
	for id := from; id < to; id++ {
		documents = append(documents, smallDocument(id))
	}
	return documents
}

func field(name string, value any) bson.E {
	return bson.E{Key: name, Value: value}
}

// doc parses a document in extended JSON.
func doc(text string) bson.D {
	var document bson.D
	must(bson.UnmarshalExtJSON([]byte(text), false, &document))
	return document
}

func docs(texts ...string) []bson.D {
	var documents []bson.D
	for _, text := range texts {
		documents = append(documents, doc(text))
	}
	return documents
}

// all returns a cursor's documents in their order.
func all(cursor *mongo.Cursor, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	found := []bson.Raw{}
	err = cursor.All(ctx, &found)
	return found, err
}

func single(result *mongo.SingleResult) (any, error) {
	return result.Raw()
}

// part returns one field of a reply.
func part(result *mongo.SingleResult, name string) (any, error) {
	reply, err := result.Raw()
	if err != nil {
		return nil, err
	}
	return reply.LookupErr(name)
}

// nothing returns an empty result for a call that returns only an error.
func nothing(err error) (any, error) {
	return bson.D{}, err
}

// after runs the next call unless the previous one has failed.
func after(err error, next func() (any, error)) (any, error) {
	if err != nil {
		return nil, err
	}
	return next()
}

// content makes bytes that depend only on the length. All chunks of the bytes differ from each
// other.
func content(length int) []byte {
	bytes := make([]byte, length)
	for at := range bytes {
		bytes[at] = byte(at*31 + at/251)
	}
	return bytes
}

// digest returns the length and the hash of bytes that are too many to print.
func digest(bytes []byte) bson.D {
	sum := sha256.Sum256(bytes)
	return bson.D{field("length", len(bytes)), field("sha256", hex.EncodeToString(sum[:]))}
}
