"""What a step came to, as one line of JSON."""

from bson import json_util
from gridfs.errors import GridFSError
from pymongo.errors import PyMongoError

from versions import LEFT_OUT


def step(name, action):
    """Does a step and prints what it came to; anything but an error of the driver's API ends the program."""
    if name in LEFT_OUT:
        return
    try:
        outcome = {"value": action()}
    except (PyMongoError, GridFSError) as error:
        outcome = {"error": told(error)}
    line = json_util.dumps({"step": name, **outcome}, json_options=json_util.CANONICAL_JSON_OPTIONS)
    print(line, flush=True)


def told(error):
    details = getattr(error, "details", None)
    outcome = {
        "type": type(error).__name__,
        "code": getattr(error, "code", None),
        "codeName": (details or {}).get("codeName"),
        "labels": sorted(error._error_labels) if isinstance(error, PyMongoError) else [],
        # The rest of the message is the reply again, as Python writes it; it is told whole beside it.
        "message": str(error).split(", full error: ")[0],
    }
    # An error in a transaction's bulk write keeps the driver's own objects in its details.
    return outcome if details is None else {**outcome, "details": details}
