"""The same program runs with all versions of PyMongo. This file lists what PyMongo 3 lacks.

requirements.txt pins the newest version, requirements-VERSION.txt an old one.
"""

import pymongo

IS_3 = pymongo.version_tuple[0] == 3

# The steps that PyMongo 3 skips, with the reason.
SKIPPED_STEPS = {
    "find let": "find() has no `let`",
    "insert comment": "insert_many() has no `comment`",
} if IS_3 else {}


def since_4(**options):
    """Passes on options that only PyMongo 4 has. PyMongo 3 makes the call without them."""
    return {} if IS_3 else options
