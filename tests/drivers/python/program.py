"""The steps of an application with PyMongo; see ../scenarios.md.

The program skips `unacknowledged` in an explicit session, because PyMongo refuses such a write and
sends nothing. With PyMongo 3, the program skips more steps: see versions.py.
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
    # If the package of a compressor is missing, PyMongo only warns and does not compress. Then the
    # run would not test compression, so the warning is an error.
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
