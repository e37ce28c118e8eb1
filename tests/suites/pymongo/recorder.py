"""A pytest plugin that writes one JSON line when a test starts and one when it has ended.

run.py reads the lines while pytest runs. If a process hangs or dies, the outcome of one test is
lost, not those of the whole file.
"""

import json
import os

OUTPUT = "SUITE_RECORD"
DONE = "SUITE_DONE"
MESSAGE_CHARACTERS = 300

# These tests connect to the driver's default address, localhost:27017.
DEFAULT_ADDRESS_CLASSES = ("TestErrorPropagationAfterEncounteringMultipleErrors",)


class Recorder:
    def __init__(self, path, done):
        self.file = open(path, "a", encoding="utf-8", buffering=1)
        self.done = done
        self.outcome = None
        self.message = ""

    def pytest_collection_modifyitems(self, config, items):
        """Deselects the tests that an earlier process of this file has finished."""
        kept = [item for item in items if item.nodeid not in self.done]
        deselected = [item for item in items if item.nodeid in self.done]
        if deselected:
            config.hook.pytest_deselected(items=deselected)
            items[:] = kept

    def pytest_collectreport(self, report):
        if report.failed:
            self.write({"test": report.nodeid, "outcome": "error", "message": one_line(report)})

    def pytest_runtest_logstart(self, nodeid):
        self.outcome, self.message = None, ""
        self.write({"test": nodeid, "outcome": "started"})

    def pytest_runtest_setup(self, item):
        if item.cls and item.cls.__name__ in DEFAULT_ADDRESS_CLASSES:
            from pymongo import AsyncMongoClient, MongoClient

            for client in (AsyncMongoClient, MongoClient):
                client.HOST, client.PORT = os.environ["DB_IP"], int(os.environ["DB_PORT"])

    def pytest_runtest_logreport(self, report):
        if report.skipped:
            self.outcome, self.message = "skipped", one_line(report)
        elif report.failed and self.outcome in (None, "passed"):
            self.outcome = "failed" if report.when == "call" else "error"
            self.message = one_line(report)
        elif report.passed and report.when == "call":
            self.outcome = "passed"

    def pytest_runtest_logfinish(self, nodeid):
        self.write({"test": nodeid, "outcome": self.outcome or "error", "message": self.message})

    def write(self, line):
        self.file.write(json.dumps(line) + "\n")


def one_line(report):
    """The failure's message, or the reason why the test was skipped."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash:
        text = crash.message
    elif isinstance(report.longrepr, tuple):
        text = report.longrepr[-1]
    else:
        text = str(report.longrepr)
    return " ".join(text.split())[:MESSAGE_CHARACTERS]


def pytest_configure(config):
    path = os.environ.get(OUTPUT)
    if path:
        with open(os.environ[DONE], encoding="utf-8") as done:
            recorder = Recorder(path, set(json.load(done)))
        config.pluginmanager.register(recorder, "suite-recorder")
