"""Reads: types, options, concerns, preferences, aggregation and cursors."""

import re
from datetime import datetime, timezone

from bson import (
    Binary, Code, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp,
)
from pymongo import ReadPreference
from pymongo.collation import Collation
from pymongo.cursor import CursorType
from pymongo.read_concern import ReadConcern

from outcome import step


def types(db):
    document = {
        "_id": "types", "double": 1.5, "infinite": float("-inf"), "string": "naïve Ω 🌊", "embedded": {"a": {}},
        "array": [None, True, [1]], "binary": Binary(b"\0\xff", 128), "generic": b"bytes",
        "uuid": Binary(bytes(range(16)), 4), "id": ObjectId("0123456789abcdef01234567"), "boolean": False,
        "date": datetime(2020, 1, 2, 3, 4, 5, 678000, timezone.utc), "null": None,
        "regex": Regex("^a.*", re.IGNORECASE | re.MULTILINE), "reference": DBRef("things", 1),
        "code": Code("function() {}"), "scoped": Code("x", {"x": 1}), "int": 42, "timestamp": Timestamp(5, 6),
        "long": Int64(2**53 + 1), "decimal": Decimal128("-1.10E-300"), "min": MinKey(), "max": MaxKey(),
    }

    def both_ways():
        db.types.insert_one(document)
        return db.types.find_one({"_id": "types"})

    step("types", both_ways)


def find_options(db):
    things = db.things
    brief = {"text": 0}

    def case(name, **options):
        options.setdefault("projection", brief)
        step(f"find {name}", lambda: list(things.find(**options)))

    case("projection", filter={"_id": {"$lt": 3}}, projection={"_id": 0, "group": 1})
    case("sort", sort=[("group", -1), ("_id", 1)], skip=2, limit=5)
    case("collation", filter={"text": "TEXT 5"}, collation=Collation("en", strength=2))
    case("hint", filter={"_id": {"$gt": 295}}, hint=[("_id", 1)])
    case("min and max", min={"_id": 3}, max={"_id": 6}, hint=[("_id", 1)])
    case("returnKey", filter={"_id": {"$lt": 3}}, return_key=True, hint=[("_id", 1)])
    case("showRecordId", filter={"_id": {"$lt": 3}}, show_record_id=True)
    case("let", filter={"$expr": {"$eq": ["$_id", "$$wanted"]}}, let={"wanted": 7})
    case("allowDiskUse", sort=[("text", 1)], limit=2, allow_disk_use=True)
    case("comment", filter={"_id": 1}, comment={"why": "matrix"})
    case("maxTimeMS", filter={"_id": 1}, max_time_ms=10_000)
    case("singleBatch", limit=-3, sort=[("_id", 1)])
    case("batches", filter={"group": 3}, batch_size=5, sort=[("_id", 1)])


def concerns_and_preferences(db):
    for level in ("local", "majority", "available"):
        things = db.things.with_options(read_concern=ReadConcern(level))
        step(f"read concern {level}", lambda: things.find_one({"_id": 1}))

    def after_write(mode):
        things = db.things.with_options(read_preference=getattr(ReadPreference, mode))
        with db.client.start_session(causal_consistency=True) as session:
            db.things.update_one({"_id": 2}, {"$set": {"read by": mode}}, session=session)
            return things.find_one({"_id": 2}, session=session)

    for mode in ("PRIMARY", "PRIMARY_PREFERRED", "SECONDARY", "SECONDARY_PREFERRED", "NEAREST"):
        step(f"read preference {mode}", lambda: after_write(mode))


def counts(db):
    step("count with filter", lambda: db.things.count_documents({"group": 1}))
    step("estimated count", lambda: db.things.estimated_document_count())
    step("distinct", lambda: db.things.distinct("group"))


def aggregate(db, api):
    things = db.things
    grouped = [{"$group": {"_id": "$group", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}]

    def case(name, pipeline, **options):
        step(f"aggregate {name}", lambda: list(things.aggregate(pipeline, **options)))

    case("grouped", grouped, batchSize=2)
    case("lookup", [
        {"$match": {"_id": {"$lt": 2}}}, {"$project": {"text": 0}},
        {"$lookup": {"from": "types", "localField": "group", "foreignField": "int", "as": "found"}},
    ])
    case("facet", [{"$facet": {"groups": grouped, "count": [{"$count": "n"}]}}])
    case("out", [*grouped, {"$out": "groups"}])
    case("merge", [{"$match": {"group": {"$ne": None}}}, *grouped, {"$set": {"n": 0}}, {"$merge": {"into": "groups", "on": "_id"}}])
    step("aggregate written", lambda: list(db.groups.find().sort("_id")))
    if api == "plain":
        explain = {"explain": {"aggregate": "things", "pipeline": grouped, "cursor": {}}}
        step("aggregate explain", lambda: sorted(db.command(explain)))


def cursors(db):
    def closed_early():
        with db.things.find({}, {"_id": 1}, batch_size=2).sort("_id", 1) as cursor:
            seen = [next(cursor), next(cursor), next(cursor)]
        return [seen, cursor.alive]

    step("cursor closed before its end", closed_early)
    step("cursor create capped", lambda: db.create_collection("capped", capped=True, size=65536).name)

    def tailed():
        db.capped.insert_many([{"_id": n} for n in range(3)])
        with db.capped.find(cursor_type=CursorType.TAILABLE_AWAIT).max_await_time_ms(5000) as cursor:
            seen = [next(cursor) for _ in range(3)]
            db.capped.insert_one({"_id": 3})
            return [*seen, next(cursor)]

    step("cursor tailable", tailed)
