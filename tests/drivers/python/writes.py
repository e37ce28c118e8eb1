"""Writes: inserts, updates, deletes, bulk writes, files, unacknowledged and large documents."""

import io
from hashlib import sha256

from bson import encode
from gridfs import GridFSBucket
from pymongo import (
    DeleteMany, DeleteOne, InsertOne, ReplaceOne, ReturnDocument, UpdateMany, UpdateOne, WriteConcern,
)
from pymongo.collation import Collation

from outcome import step

MIB = 1024 * 1024


def thing(n):
    return {"_id": n, "text": f"text {n % 10}", "group": n % 7}


def inserts(db):
    majority = db.things.with_options(write_concern=WriteConcern("majority"))
    step("insert one", lambda: db.things.insert_one(thing(0)).inserted_id)
    step("insert many", lambda: majority.insert_many(
        [thing(n) for n in range(1, 300)], ordered=False, bypass_document_validation=True,
    ).inserted_ids)
    # A separate step, because servers before 4.4 refuse the comment.
    step("insert comment", lambda: db.commented.insert_many([{"_id": 1}], comment="matrix").inserted_ids)


def updates(db):
    things = db.things
    seen = {"$set": {"seen": True}}

    def case(name, method, *arguments, **options):
        step(f"update {name}", lambda: getattr(things, method)(*arguments, **options).raw_result)

    case("one", "update_one", {"_id": 1}, seen)
    case("many", "update_many", {"group": 2}, seen)
    case("upsert", "update_one", {"_id": "new"}, {"$set": {"list": [1, 5, 9]}}, upsert=True)
    case("arrayFilters", "update_one", {"_id": "new"}, {"$inc": {"list.$[big]": 1}}, array_filters=[{"big": {"$gt": 4}}])
    case("pipeline", "update_one", {"_id": "new"}, [{"$set": {"sum": {"$sum": "$list"}}}])
    step("update read", lambda: things.find_one({"_id": "new"}))
    case("replace", "replace_one", {"_id": "new"}, {"replaced": 1})
    case("collation", "update_many", {"text": "TEXT 3"}, seen, collation=Collation("en", strength=2))
    case("hint", "update_one", {"_id": 4}, seen, hint=[("_id", 1)])


def find_and_modify(db):
    things = db.things
    more = {"$inc": {"n": 1}}
    after = ReturnDocument.AFTER
    step("modify before", lambda: things.find_one_and_update({"_id": 10}, more))
    step("modify after", lambda: things.find_one_and_update({"_id": 10}, more, return_document=after))
    step("modify sorted", lambda: things.find_one_and_update(
        {"group": 4}, more, sort=[("_id", -1)], projection={"n": 1}, return_document=after))
    step("modify upsert", lambda: things.find_one_and_update(
        {"_id": "upserted"}, more, upsert=True, return_document=after))
    step("modify replace", lambda: things.find_one_and_replace({"_id": "upserted"}, {"replaced": 2}))
    step("modify delete", lambda: things.find_one_and_delete({"_id": "upserted"}))
    step("modify nothing", lambda: things.find_one_and_delete({"_id": "upserted"}))


def deletes(db):
    step("delete one", lambda: db.things.delete_one({"_id": 20}).raw_result)
    step("delete many", lambda: db.things.delete_many({"group": 5}).raw_result)
    step("delete hint", lambda: db.things.delete_one({"_id": 21}, hint=[("_id", 1)]).raw_result)


def bulks(db):
    for name, ordered in (("ordered", True), ("unordered", False)):
        models = [
            InsertOne({"_id": f"{name} 1"}), InsertOne({"_id": f"{name} 2"}),
            UpdateOne({"_id": f"{name} 1"}, {"$set": {"x": 1}}), UpdateMany({"group": 1}, {"$set": {"bulk": name}}),
            UpdateOne({"_id": f"{name} 3"}, {"$set": {"x": 1}}, upsert=True),
            ReplaceOne({"_id": f"{name} 2"}, {"x": 2}), DeleteOne({"_id": f"{name} 1"}), DeleteMany({"x": 2}),
        ]
        failing = [
            InsertOne({"_id": f"{name} 4"}), InsertOne({"_id": 1}),
            UpdateOne({"_id": 2}, {"$nope": 1}), DeleteOne({"_id": f"{name} 4"}),
        ]
        step(f"bulk {name}", lambda: db.things.bulk_write(models, ordered=ordered).bulk_api_result)
        step(f"bulk {name} with an error", lambda: db.things.bulk_write(failing, ordered=ordered).bulk_api_result)


def gridfs(db):
    bucket = GridFSBucket(db, chunk_size_bytes=100 * 1024)
    content = bytes(n % 251 for n in range(350 * 1024))
    step("gridfs upload", lambda: bucket.upload_from_stream_with_id(
        "file", "name", io.BytesIO(content), metadata={"a": 1}))

    def download():
        whole = bucket.open_download_stream("file").read()
        return [len(whole), sha256(whole).hexdigest()]

    def download_range():
        stream = bucket.open_download_stream("file")
        stream.seek(150_000)
        part = stream.read(100_000)
        return [len(part), sha256(part).hexdigest()]

    step("gridfs download", download)
    step("gridfs range", download_range)
    step("gridfs list", lambda: list(db.fs.files.find()))
    step("gridfs delete", lambda: bucket.delete("file"))
    step("gridfs deleted", lambda: bucket.open_download_stream("file").read())
    step("gridfs chunks", lambda: db.fs.chunks.count_documents({}))


def unacknowledged(db):
    silent = db.get_collection("unacknowledged", write_concern=WriteConcern(w=0))

    def both():
        # The writes run one by one on one connection of the driver's pool, so their order is kept.
        acknowledged = [silent.insert_one({"_id": n}).acknowledged for n in range(50)]
        return [any(acknowledged), db.unacknowledged.count_documents({})]

    step("unacknowledged", both)


def large_batches(db):
    """Compresses commands and replies of several hundred KiB: each document has about 7 KiB."""
    padded = db.padded
    documents = [{"_id": n, "text": " ".join(str(n * word) for word in range(1, 1200))} for n in range(250)]

    def digest(found):
        texts = [each["text"] for each in found]
        return [len(texts), sha256("".join(texts).encode()).hexdigest()]

    step("large batches written", lambda: len(padded.insert_many(documents).inserted_ids))
    step("large batches found", lambda: digest(padded.find(sort=[("_id", 1)])))
    step("large batches of 50", lambda: digest(padded.find(sort=[("_id", -1)], batch_size=50)))
    step("large batches aggregated", lambda: digest(padded.aggregate([{"$sort": {"_id": 1}}], batchSize=90)))


def large(db):
    def sized(name, length):
        empty = len(encode({"_id": name, "bytes": b""}))
        return {"_id": name, "bytes": (bytes(range(256)) * (length // 256 + 1))[:length - empty]}

    def both_ways():
        db.large.insert_one(sized("large", 16 * MIB - 64))
        found = db.large.find_one({"_id": "large"})["bytes"]
        return [len(found), sha256(found).hexdigest()]

    step("large", both_ways)
    step("too large", lambda: db.large.insert_one(sized("too large", 16 * MIB + 1024)).inserted_id)
