"""Writers during failures, with PyMongo; see ../scenarios.md."""

import json
import sys
import threading

from pymongo import MongoClient

uri, database, name = sys.argv[1:]
over = threading.Event()
acknowledged = []


def write(things, number):
    count = 0
    while not over.is_set():
        key = f"{name} {number} {count}"
        things.insert_one({"_id": key, "n": 0})
        changed = things.update_one({"_id": key}, {"$inc": {"n": 1}})
        if changed.matched_count != 1:
            raise RuntimeError(f"{key} was not found for its update")
        found = things.find_one({"_id": key})
        if found is None or found["n"] != 1:
            raise RuntimeError(f"{key} was read as {found}")
        acknowledged.append(key)
        count += 1


def written(things, number, failed):
    try:
        write(things, number)
    except Exception as error:  # An application would see any error.
        failed.append(f"{type(error).__name__}: {error}")


def main():
    failed = []
    with MongoClient(uri) as client:
        things = client[database]["things"]
        writers = [threading.Thread(target=written, args=(things, number, failed)) for number in range(3)]
        for writer in writers:
            writer.start()
        sys.stdin.readline()
        over.set()
        for writer in writers:
            writer.join()
        print(json.dumps({"acknowledged": acknowledged, "failed": failed}), flush=True)
        # Keep the connections open until the test has counted them.
        sys.stdin.read()


main()
