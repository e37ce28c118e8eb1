"""Indexes, collections, views and statistics."""

from pymongo import ASCENDING, IndexModel

from outcome import step


def administration(db, api):
    things = db.things
    step("create indexes", lambda: things.create_indexes([
        IndexModel([("group", ASCENDING), ("text", ASCENDING)]),
        IndexModel("seen", sparse=True, name="sparse"),
    ]))
    step("list indexes", lambda: list(things.list_indexes()))
    step("drop index", lambda: things.drop_index("sparse"))
    step("indexes left", lambda: sorted(things.index_information()))
    step("create with validator", lambda: db.create_collection("strict", validator={"a": {"$exists": True}}).name)
    step("create capped", lambda: db.create_collection("ring", capped=True, size=4096, max=10).name)
    step("create view", lambda: db.create_collection(
        "view", viewOn="things", pipeline=[{"$match": {"group": 1}}, {"$project": {"group": 1}}]).name)
    step("list collections", lambda: sorted(db.list_collections(), key=lambda found: found["name"]))
    step("read view", lambda: list(db.view.find(sort=[("_id", 1)], limit=3)))
    if api == "plain":
        step("collection statistics", lambda: db.command("collStats", "strict"))
    step("database statistics", lambda: db.command("dbStats")["ok"])
