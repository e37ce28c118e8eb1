"""What an application does, by PyMongo; prints one JSON line a step, without what differs between two runs.

Arguments: connection string, database, "stable" or "plain".
"""

import json
import re
import sys
from datetime import datetime, timezone

from bson import Binary, Decimal128, Int64, ObjectId, json_util
from pymongo import (
    ASCENDING,
    DeleteOne,
    InsertOne,
    MongoClient,
    ReadPreference,
    UpdateOne,
    WriteConcern,
)
from pymongo.errors import BulkWriteError, PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.server_api import ServerApi, ServerApiVersion

# Times, counters and identifiers of this run, and what two topologies rightly answer differently.
VOLATILE = {
    "$clusterTime", "operationTime", "electionId", "opTime", "localTime", "id", "connectionId",
    "lsid", "uuid", "topologyVersion", "clusterTime", "_data", "wallTime", "host",
}


def masked(value):
    if isinstance(value, dict):
        return {k: "masked" if k in VOLATILE else masked(v) for k, v in value.items()}
    if isinstance(value, list):
        return [masked(v) for v in value]
    if isinstance(value, str):
        # A refused command is quoted as the server saw it: with the identifiers of this run, and with $client.
        return re.sub(r"(to execute command ).*", r"\1masked", value, flags=re.DOTALL)
    return value


def say(step, value):
    print(json.dumps([step, masked(json.loads(json_util.dumps(value)))]), flush=True)


def attempt(step, action):
    try:
        say(step, action())
    except BulkWriteError as error:
        say(step, {"bulk": error.code, "details": error.details})
    except PyMongoError as error:
        labels = sorted(getattr(error, "_error_labels", []))
        details = getattr(error, "details", None)
        say(step, {"error": type(error).__name__, "code": getattr(error, "code", None),
                   "labels": labels, "details": details})


def documents(db):
    things = db.things
    attempt("insert", lambda: things.insert_many(
        [{"_id": n, "text": "x" * 500, "group": n % 7} for n in range(300)]).inserted_ids)
    attempt("types", lambda: things.insert_one({
        "_id": "types", "oid": ObjectId("0123456789abcdef01234567"), "bytes": Binary(b"\0\xff", 128),
        "decimal": Decimal128("1.10"), "long": Int64(2**53 + 1), "date": datetime(2020, 1, 2, tzinfo=timezone.utc),
        "unicode": "naïve Ω 🌊", "nested": {"a": [None, True, 1.5]},
    }).inserted_id)
    attempt("read types", lambda: things.find_one({"_id": "types"}))
    attempt("batches", lambda: [d["_id"] for d in things.find({"group": 3}, batch_size=5).sort("_id", ASCENDING)])
    attempt("secondary", lambda: from_secondary(things))
    attempt("aggregate", lambda: list(things.aggregate(
        [{"$group": {"_id": "$group", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}], batchSize=2)))
    attempt("update", lambda: things.update_many({"group": 2}, {"$set": {"seen": True}}).raw_result)
    attempt("upsert", lambda: things.update_one({"_id": "new"}, {"$set": {"a": 1}}, upsert=True).raw_result)
    attempt("modify", lambda: things.find_one_and_update({"_id": "new"}, {"$inc": {"a": 1}}, return_document=True))
    attempt("delete", lambda: things.delete_many({"group": 5}).raw_result)
    attempt("large", lambda: things.insert_one({"_id": "large", "bytes": b"\1" * 5_000_000}).acknowledged)
    attempt("read large", lambda: len(things.find_one({"_id": "large"})["bytes"]))
    attempt("bulk", lambda: things.bulk_write(
        [InsertOne({"_id": "b"}), UpdateOne({"_id": "b"}, {"$set": {"x": 1}}), DeleteOne({"_id": "b"})]).bulk_api_result)


def from_secondary(things):
    """Reads its own write, wherever the read goes to."""
    elsewhere = things.with_options(
        read_preference=ReadPreference.SECONDARY_PREFERRED, read_concern=ReadConcern("majority"))
    with things.database.client.start_session(causal_consistency=True) as session:
        things.update_one({"_id": 1}, {"$set": {"mine": True}}, session=session)
        return [elsewhere.find_one({"_id": 1}, session=session), elsewhere.count_documents({}, session=session)]


def failures(db):
    attempt("duplicate", lambda: db.things.insert_one({"_id": 1}))
    attempt("bulk failure", lambda: db.things.bulk_write(
        [InsertOne({"_id": "c"}), InsertOne({"_id": 1}), InsertOne({"_id": "d"})], ordered=False))
    attempt("bad operator", lambda: db.things.find_one({"$nope": 1}))
    attempt("time limit", lambda: list(db.things.find({"$expr": {"$function": {
        "body": "function() { sleep(200) }", "args": [], "lang": "js"}}}, max_time_ms=50)))
    attempt("not allowed", lambda: db.client["elsewhere"].things.insert_one({}))


def unacknowledged(db):
    unacknowledged = db.get_collection("unacknowledged", write_concern=WriteConcern(w=0))

    def both():
        # One after another, so on one connection of the driver's pool: the order holds.
        for n in range(50):
            unacknowledged.insert_one({"_id": n})
        return db.unacknowledged.count_documents({})

    attempt("unacknowledged", both)


def transactions(client, db):
    def commit():
        with client.start_session() as session:
            with session.start_transaction():
                db.things.insert_one({"_id": "t1"}, session=session)
                db.things.update_one({"_id": "t1"}, {"$set": {"x": 2}}, session=session)
            return db.things.find_one({"_id": "t1"}, session=session)

    def abort():
        with client.start_session() as session:
            session.start_transaction()
            db.things.insert_one({"_id": "t2"}, session=session)
            inside = db.things.find_one({"_id": "t2"}, session=session)
            session.abort_transaction()
            return [inside, db.things.find_one({"_id": "t2"})]

    def with_callback():
        with client.start_session(causal_consistency=True) as session:
            session.with_transaction(lambda s: db.things.insert_one({"_id": "t3"}, session=s))
            return db.things.find_one({"_id": "t3"}, session=session)

    attempt("commit", commit)
    attempt("abort", abort)
    attempt("callback", with_callback)


def change_stream(db):
    def watch():
        with db.things.watch(max_await_time_ms=1000) as stream:
            db.things.insert_one({"_id": "watched"})
            db.things.delete_one({"_id": "watched"})
            return [[e["operationType"], e["documentKey"]] for e in (next(stream), next(stream))]

    attempt("watch", watch)


def administration(db):
    attempt("index", lambda: db.things.create_index([("group", 1)]))
    attempt("indexes", lambda: [i["name"] for i in db.things.list_indexes()])
    attempt("collections", lambda: sorted(db.list_collection_names()))
    attempt("ping", lambda: db.command("ping"))
    attempt("count", lambda: db.command("count", "things"))
    attempt("unknown command", lambda: db.command("noSuchCommand"))
    attempt("who", lambda: db.command("connectionStatus")["authInfo"]["authenticatedUsers"])
    attempt("build", lambda: db.command("buildInfo")["version"])
    attempt("drop", lambda: db.client.drop_database(db.name))


def main():
    uri, name, api = sys.argv[1:]
    stable = {"server_api": ServerApi(ServerApiVersion.V1, strict=True)} if api == "stable" else {}
    with MongoClient(uri, **stable) as client:
        db = client[name]
        documents(db)
        failures(db)
        unacknowledged(db)
        transactions(client, db)
        change_stream(db)
        administration(db)


main()
