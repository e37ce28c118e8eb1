"""Steps in which an error is expected."""

from bson import Int64
from pymongo import WriteConcern

from outcome import step
from versions import since_4


def errors(db):
    things = db.things
    added = {"input": {"$range": [0, 20_000]}, "initialValue": 0, "in": {"$add": ["$$value", "$$this"]}}
    slow = {"$expr": {"$gte": [{"$reduce": added}, 0]}}
    step("error duplicate key", lambda: things.insert_one({"_id": 1}))
    step("error unknown operator", lambda: things.find_one({"$nope": 1}))
    step("error unknown command", lambda: db.command("noSuchCommand"))
    step("error not authorised", lambda: db.client["elsewhere"].things.insert_one({"_id": 1}))
    step("error maxTimeMS", lambda: list(things.find(slow, max_time_ms=50)))
    step("error create validated", lambda: db.create_collection("validated", validator={"n": {"$type": "int"}}).name)
    step("error document validation", lambda: db.validated.insert_one({"_id": 1, "n": "text"}))
    step("error cursor not found", lambda: db.command({"getMore": Int64(123456789), "collection": "things"}))
    step("error collection exists", lambda: db.create_collection(
        "validated", validator={"n": {"$type": "string"}}, **since_4(check_exists=False)))
    step("error index", lambda: things.create_index([("group", 1)], name="conflict"))
    step("error index conflict", lambda: things.create_index([("text", 1)], name="conflict"))
    unmet = things.with_options(write_concern=WriteConcern(w=50, wtimeout=100))
    step("error write concern", lambda: unmet.insert_one({"_id": "unmet"}))
    step("error invalid namespace", lambda: db.command("find", ""))
    step("error immutable field", lambda: things.update_one({"_id": 1}, {"$set": {"_id": 2}}))
    step("error cursor of a wrong type", lambda: db.command({"getMore": "text", "collection": "things"}))

    def never_begun():
        with db.client.start_session() as session:
            command = {"commitTransaction": 1, "txnNumber": Int64(1000), "autocommit": False}
            db.client.admin.command(command, session=session)

    step("error transaction never begun", never_begun)
