package main

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
)

var (
	first   = doc(`{"_id": 1}`)
	countUp = doc(`{"$inc": {"n": 1}}`)
)

func (p *program) sessions() {
	p.filled("sessions", 3)
	step("sessions: causal consistency")(p.causal())
	step("sessions: snapshot")(p.snapshot())
}

// session starts a session. It returns the session and the context that runs operations in it.
func (p *program) session(with *sessionOptions) (clientSession, context.Context) {
	session, err := p.client.StartSession(with)
	must(err)
	return session, mongo.NewSessionContext(ctx, session)
}

func (p *program) causal() (any, error) {
	session, within := p.session(options.Session().SetCausalConsistency(true))
	defer session.EndSession(ctx)
	if _, err := p.db.Collection("sessions", majority).UpdateOne(within, first, countUp); err != nil {
		return nil, err
	}
	read := p.db.Collection("sessions", options.Collection().SetReadConcern(readconcern.Majority()))
	own, err := read.FindOne(within, first).Raw()
	if err != nil {
		return nil, err
	}
	count, err := read.CountDocuments(within, bson.D{})
	return bson.A{own, count}, err
}

// snapshot reads in the snapshot, writes outside of it, reads in the snapshot again, then reads
// outside of it.
func (p *program) snapshot() (any, error) {
	session, within := p.session(options.Session().SetSnapshot(true))
	defer session.EndSession(ctx)
	counted := p.db.Collection("sessions", majority)
	before, err := counted.FindOne(within, first).Raw()
	if err != nil {
		return nil, err
	}
	if _, err := counted.UpdateOne(ctx, first, countUp); err != nil {
		return nil, err
	}
	again, err := counted.FindOne(within, first).Raw()
	if err != nil {
		return nil, err
	}
	after, err := counted.FindOne(ctx, first).Raw()
	return bson.A{before, again, after}, err
}
