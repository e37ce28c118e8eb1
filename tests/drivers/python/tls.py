"""TLS connections with PyMongo; see ../scenarios.md."""

import json
import sys

from bson import ObjectId
from pymongo import MongoClient
from pymongo.errors import PyMongoError


def written_and_found(uri):
    with MongoClient(uri) as client:
        things = client["tls"]["things"]
        key = ObjectId()
        things.insert_one({"_id": key, "text": "tls"})
        return len(list(things.find({"_id": key})))


def messages_of(error):
    """The messages of the error and of its causes."""
    messages = []
    while error is not None:
        messages.append(f"{type(error).__name__}: {error}")
        error = error.__cause__
    return "; ".join(messages)


for uri in sys.argv[1:]:
    try:
        outcome = {"value": written_and_found(uri)}
    except PyMongoError as error:
        outcome = {"error": messages_of(error)}
    print(json.dumps({"step": "connect", **outcome}), flush=True)
