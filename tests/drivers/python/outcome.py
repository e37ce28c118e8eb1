"""The outcome of a step, as one line of JSON."""

from bson import json_util
from gridfs.errors import GridFSError
from pymongo.errors import PyMongoError

from versions import SKIPPED_STEPS


def step(name, action):
    """Runs a step and prints its outcome. Any error that does not come from the driver ends the program."""
    if name in SKIPPED_STEPS:
        return
    try:
        outcome = {"value": action()}
    except (PyMongoError, GridFSError) as error:
        outcome = {"error": error_fields(error)}
    line = json_util.dumps({"step": name, **outcome}, json_options=json_util.CANONICAL_JSON_OPTIONS)
    print(line, flush=True)


def error_fields(error):
    details = getattr(error, "details", None)
    outcome = {
        "type": type(error).__name__,
        "code": getattr(error, "code", None),
        "codeName": (details or {}).get("codeName"),
        "labels": sorted(error._error_labels) if isinstance(error, PyMongoError) else [],
        # The rest of the message is the reply in Python's notation. The line contains the whole
        # reply anyway.
        "message": str(error).split(", full error: ")[0],
    }
    # An error of a bulk write in a transaction has objects of the driver in its details.
    return outcome if details is None else {**outcome, "details": details}
