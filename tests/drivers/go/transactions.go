package main

import (
	"context"
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

func (p *program) transactions() {
	accounts := p.filled("accounts", 3)
	step("transactions: commit")(p.committed(accounts))
	step("transactions: abort")(p.aborted(accounts))
	step("transactions: callback")(p.callback(accounts))
	p.writeConflict(accounts)
	p.afterAbort(accounts)
}

// committed reads its own insert in the transaction, outside of it before the commit, and after the
// commit.
func (p *program) committed(accounts *mongo.Collection) (any, error) {
	session, within := p.session(options.Session())
	defer session.EndSession(ctx)
	// Without this read, a 4.2 server may choose a snapshot from before the collection was created.
	if _, err := accounts.CountDocuments(within, doc(`{}`)); err != nil {
		return nil, err
	}
	must(session.StartTransaction(options.Transaction().
		SetReadConcern(readconcern.Snapshot()).SetWriteConcern(writeconcern.Majority())))
	id := doc(`{"_id": "commit"}`)
	if _, err := accounts.InsertOne(within, id); err != nil {
		return nil, err
	}
	if _, err := accounts.UpdateOne(within, id, countUp); err != nil {
		return nil, err
	}
	inside, err := accounts.FindOne(within, id).Raw()
	if err != nil {
		return nil, err
	}
	outside, err := orNull(accounts.FindOne(ctx, id))
	if err != nil {
		return nil, err
	}
	if err := session.CommitTransaction(ctx); err != nil {
		return nil, err
	}
	after, err := accounts.FindOne(within, id).Raw()
	return bson.A{inside, outside, after}, err
}

func (p *program) aborted(accounts *mongo.Collection) (any, error) {
	session, within := p.session(options.Session())
	defer session.EndSession(ctx)
	must(session.StartTransaction())
	id := doc(`{"_id": "abort"}`)
	if _, err := accounts.InsertOne(within, id); err != nil {
		return nil, err
	}
	inside, err := accounts.FindOne(within, id).Raw()
	if err != nil {
		return nil, err
	}
	if err := session.AbortTransaction(ctx); err != nil {
		return nil, err
	}
	after, err := orNull(accounts.FindOne(within, id))
	return bson.A{inside, after}, err
}

func (p *program) callback(accounts *mongo.Collection) (any, error) {
	session, _ := p.session(options.Session())
	defer session.EndSession(ctx)
	return inTransaction(session, func(within context.Context) (any, error) {
		id := doc(`{"_id": "callback"}`)
		if _, err := accounts.InsertOne(within, id); err != nil {
			return nil, err
		}
		if _, err := accounts.UpdateMany(within, doc(`{"_id": {"$gte": ""}}`), countUp); err != nil {
			return nil, err
		}
		return single(accounts.FindOne(within, id))
	})
}

func (p *program) writeConflict(accounts *mongo.Collection) {
	one, inOne := p.session(options.Session())
	defer one.EndSession(ctx)
	other, inOther := p.session(options.Session())
	defer other.EndSession(ctx)
	must(one.StartTransaction())
	must(other.StartTransaction())
	step("transactions: first of two")(updated(accounts.UpdateOne(inOne, first, countUp)))
	step("transactions: write conflict")(updated(accounts.UpdateOne(inOther, first, countUp)))
	must(other.AbortTransaction(ctx))
	step("transactions: repeated and committed")(after(one.CommitTransaction(ctx), func() (any, error) {
		must(other.StartTransaction())
		if _, err := accounts.UpdateOne(inOther, first, countUp); err != nil {
			return nil, err
		}
		return after(other.CommitTransaction(ctx), func() (any, error) { return single(accounts.FindOne(ctx, first)) })
	}))
}

func (p *program) afterAbort(accounts *mongo.Collection) {
	failed, within := p.session(options.Session())
	defer failed.EndSession(ctx)
	must(failed.StartTransaction())
	// The server itself aborts a transaction when one of its writes fails.
	step("transactions: failed write")(inserted(accounts.InsertOne(within, first)))
	step("transactions: operation in the aborted transaction")(single(accounts.FindOne(within, first)))
	step("transactions: commit of the aborted transaction")(nothing(failed.CommitTransaction(ctx)))

	left, within := p.session(options.Session())
	defer left.EndSession(ctx)
	must(left.StartTransaction())
	_, err := accounts.UpdateOne(within, first, countUp)
	must(err)
	step("transactions: operation after abort")(after(left.AbortTransaction(ctx), func() (any, error) {
		return single(accounts.FindOne(within, first))
	}))
}

// orNull returns null for a missing document.
func orNull(result *mongo.SingleResult) (any, error) {
	document, err := result.Raw()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return nil, nil
	}
	return document, err
}
