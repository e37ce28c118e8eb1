package main

import (
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

var objectID = objectIdentifier{0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0x01, 0x23, 0x45, 0x67}

var majority = options.Collection().SetWriteConcern(writeconcern.Majority())

func (p *program) status() {
	step("status: ping")(single(p.command(`{"ping": 1}`)))
	step("status: users")(part(p.command(`{"connectionStatus": 1}`), "authInfo"))
	step("status: version")(part(p.command(`{"buildInfo": 1}`), "version"))
}

func (p *program) inserts() {
	things := p.db.Collection("things", majority)
	step("insert one")(inserted(things.InsertOne(ctx, smallDocument(0),
		options.InsertOne().SetComment("insert one").SetBypassDocumentValidation(true))))
	step("insert many")(insertedMany(things.InsertMany(ctx, smallDocuments(1, 300),
		options.InsertMany().SetOrdered(false).SetComment("insert many").SetBypassDocumentValidation(true))))
	step("types: written")(inserted(p.db.Collection("types").InsertOne(ctx, everyType())))
	step("types: read")(single(p.db.Collection("types").FindOne(ctx, bson.D{})))
}

func inserted(result *mongo.InsertOneResult, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return bson.D{acknowledged(result), field("insertedId", result.InsertedID)}, nil
}

func insertedMany(result *mongo.InsertManyResult, err error) (any, error) {
	if result == nil {
		return nil, err
	}
	return bson.D{acknowledged(result), field("insertedIds", result.InsertedIDs)}, err
}

func everyType() bson.D {
	return bson.D{
		field("_id", "types"),
		field("doubles", bson.A{1.5, math.Copysign(0, -1), math.SmallestNonzeroFloat64, math.Inf(1), math.Inf(-1), math.NaN()}),
		field("strings", bson.A{"", "naïve Ω 🌊", "null \x00 inside", "\"quoted\"\n\t\\"}),
		field("document", doc(`{"a": {"b": [null, true, {"c": {}}]}, "": "empty name", "a.b": 1, "$c": 2}`)),
		field("empty", bson.A{}),
		field("binary", binaries()),
		field("undefined", undefined{}),
		field("objectId", objectID),
		field("booleans", bson.A{true, false}),
		field("dates", bson.A{dateTime(0), dateTime(1577934245678), dateTime(-1), dateTime(math.MaxInt64)}),
		field("null", nil),
		field("regex", regex{Pattern: "^a/b.*$", Options: "imsx"}),
		field("dbPointer", dbPointer{DB: "db.collection", Pointer: objectID}),
		field("dbRef", bson.D{field("$ref", "collection"), field("$id", objectID), field("$db", "db")}),
		field("code", javaScript("function() { return 1 }")),
		field("symbol", symbol("symbol")),
		field("codeWithScope", codeWithScope{Code: "return x", Scope: doc(`{"x": 1}`)}),
		field("int32", bson.A{int32(math.MinInt32), int32(math.MaxInt32)}),
		field("timestamp", timestamp{T: 1577934245, I: 7}),
		field("int64", bson.A{int64(1), int64(math.MinInt64), int64(math.MaxInt64)}),
		field("decimal128", decimals()),
		field("minKey", minKey{}),
		field("maxKey", maxKey{}),
	}
}

func binaries() bson.A {
	three := []byte{0, 1, 0xff}
	sixteen := []byte{0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff}
	return bson.A{
		binary{Data: []byte{}},
		binary{Subtype: bson.TypeBinaryGeneric, Data: three},
		binary{Subtype: bson.TypeBinaryFunction, Data: three},
		binary{Subtype: bson.TypeBinaryBinaryOld, Data: three},
		binary{Subtype: bson.TypeBinaryUUIDOld, Data: sixteen},
		binary{Subtype: bson.TypeBinaryUUID, Data: sixteen},
		binary{Subtype: bson.TypeBinaryMD5, Data: sixteen},
		binary{Subtype: bson.TypeBinaryUserDefined, Data: three},
	}
}

func decimals() bson.A {
	decimals := bson.A{}
	for _, text := range []string{"1.10", "-0", "9.999999999999999999999999999999999E+6144", "NaN", "Infinity"} {
		decimal, err := parseDecimal128(text)
		must(err)
		decimals = append(decimals, decimal)
	}
	return decimals
}
