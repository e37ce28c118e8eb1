"""The steps of an application with PyMongo; see ../scenarios.md.

The program skips `unacknowledged` in an explicit session, because PyMongo refuses it before it
sends anything. With PyMongo 3 it skips a few more steps: see versions.py.
"""

import sys
import warnings

from pymongo import MongoClient
from pymongo.server_api import ServerApi, ServerApiVersion

import administration
import failures
import reads
import sessions
import writes
from outcome import step


def status(client):
    step("status ping", lambda: client.admin.command("ping"))
    step("status users", lambda: client.admin.command("connectionStatus")["authInfo"])
    step("status version", lambda: client.admin.command("buildInfo")["version"])


def main():
    uri, name, api = sys.argv[1:]
    # Without its package, PyMongo would ignore a compressor and the run would prove nothing.
    warnings.filterwarnings("error", message=".*(ompress|Unsupported)")
    stable = {"server_api": ServerApi(ServerApiVersion.V1, strict=True)} if api == "stable" else {}
    with MongoClient(uri, **stable) as client:
        db = client[name]
        status(client)
        writes.inserts(db)
        reads.types(db)
        reads.find_options(db)
        reads.concerns_and_preferences(db)
        reads.counts(db)
        writes.updates(db)
        writes.find_and_modify(db)
        writes.deletes(db)
        writes.bulks(db)
        reads.aggregate(db, api)
        reads.cursors(db)
        sessions.causal_and_snapshot(db)
        sessions.transactions(db)
        sessions.change_stream(db)
        writes.gridfs(db)
        writes.unacknowledged(db)
        writes.large_batches(db)
        writes.large(db)
        failures.errors(db)
        administration.administration(db, api)
        step("drop", lambda: client.drop_database(name))


main()
