#!/usr/bin/env python3
"""Compares two results of run.py, and checks the differences against a list.

A difference is a test that passes directly and does not pass through Seawall. Skipped tests are only
counted: the suite treats Seawall as a mongos, and skips the tests for replica sets. Exits with 1 if a
difference is not in the list, and with 2 if a run is incomplete.
"""

import argparse
import json
import sys
import tomllib
from pathlib import Path

DEFAULT_LIST = Path(__file__).resolve().parent / "differences.toml"
ENTRY_KEYS = {"test", "reason", "versions", "access_control"}


def main():
    arguments = parse_arguments()
    direct = json.loads(arguments.direct.read_text())
    through = json.loads(arguments.through.read_text())
    for key in ("pymongo", "api", "access_control"):
        if direct[key] != through[key]:
            sys.exit(f"the results do not belong together: {key} is {direct[key]} and {through[key]}")
    explained = {entry["test"] for entry in read_entries(arguments.differences) if is_for(entry, direct)}
    differing = {test for test in direct["tests"] if differs(test, direct, through)}
    unexplained = sorted(differing - explained)
    for test in unexplained:
        outcome = through["tests"].get(test, "not run")
        print(f"DIFFERS {test}: {outcome}: {through['messages'].get(test, '')}")
    for test in gone(explained - differing, direct, through):
        print(f"NO LONGER DIFFERS {test}")
    for test, message in sorted(through["second_attempt"].items()):
        if test not in direct["second_attempt"]:
            print(f"second attempt {test}: {message}")
    print_counts(direct, through, differing, unexplained)
    if direct["not_run"] or through["not_run"]:
        print("a run is incomplete")
        sys.exit(2)
    sys.exit(1 if unexplained else 0)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("direct", type=Path, help="the result of the direct run")
    parser.add_argument("through", type=Path, help="the result of the run through Seawall")
    parser.add_argument("differences", type=Path, nargs="?", default=DEFAULT_LIST, help="default: differences.toml")
    return parser.parse_args()


def read_entries(path):
    entries = tomllib.loads(path.read_text()).get("difference", [])
    tests = set()
    for entry in entries:
        if not {"test", "reason"} <= set(entry) <= ENTRY_KEYS or not entry["reason"].strip():
            sys.exit(f"{path}: an entry must have a test and a reason, and no other keys than {sorted(ENTRY_KEYS)}: {entry}")
        if entry["test"] in tests:
            sys.exit(f"{path}: two entries for {entry['test']}")
        tests.add(entry["test"])
    return entries


def is_for(entry, result):
    """True if the entry applies to this version of PyMongo and this access control setting."""
    versions = entry.get("versions", [result["pymongo"]])
    access_control = entry.get("access_control", result["access_control"])
    return result["pymongo"] in versions and access_control == result["access_control"]


def differs(test, direct, through):
    return direct["tests"][test] == "passed" and through["tests"].get(test, "not run") not in ("passed", "skipped")


def gone(tests, direct, through):
    """The listed tests that pass directly and through Seawall, except tests that a partial run skips."""
    return sorted(test for test in tests if direct["tests"].get(test) == through["tests"].get(test) == "passed")


def print_counts(direct, through, differing, unexplained):
    def count(result, *outcomes):
        return sum(1 for outcome in result["tests"].values() if outcome in outcomes)

    passed = [test for test, outcome in direct["tests"].items() if outcome == "passed"]
    both = sum(1 for test in passed if through["tests"].get(test) == "passed")
    only_skipped = sum(1 for test in passed if through["tests"].get(test) == "skipped")
    print(
        f"PyMongo {direct['pymongo']}: {count(direct, 'passed')} passed directly, {count(through, 'passed')} through"
        f" Seawall, {both} both ways; {len(differing)} differ, {len(unexplained)} of them unexplained; {only_skipped}"
        f" passed directly and are skipped through Seawall; skipped {count(direct, 'skipped')} and"
        f" {count(through, 'skipped')}, failed {count(direct, 'failed', 'error')} and"
        f" {count(through, 'failed', 'error')}; {direct['seconds']} s and {through['seconds']} s"
    )


if __name__ == "__main__":
    main()
