#!/usr/bin/env python3
"""Runs PyMongo's own tests against one address, and writes the outcome of each test to a JSON file.

Each test file runs in a separate process. A test that takes too long fails. If a process hangs or
dies, its current test fails, and the rest of the file runs in another process. Tests that fail run
once more, alone, and the second outcome counts, because some of PyMongo's tests depend on timing.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent

# How long a process may be silent after a test's limit. It must be long enough for pytest to end
# the test itself.
SILENCE_SECONDS = 30
# Maximum number of processes per file.
PROCESSES_PER_FILE = 5
# pytest's exit status: all passed, some failed, no tests left to run.
NORMAL_ENDS = (0, 1, 5)
POLL_SECONDS = 0.2
KILL_SECONDS = 10

MARKERS = {"sync": "default or auth", "async": "default_async or auth"}


def main():
    arguments = parse_arguments()
    # Without this handler the tests would outlive this program.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    suite = Suite(arguments)
    started = time.monotonic()
    suite.run(arguments.selectors or suite.files())
    if not arguments.once:
        suite.run_again()
    seconds = round(time.monotonic() - started)
    write_result(arguments, suite, seconds)
    counts = {name: suite.count(name) for name in ("passed", "failed", "error", "skipped")}
    print(f"{counts}, {len(suite.second)} passed in the second attempt, {seconds} s", flush=True)
    if suite.not_run:
        sys.exit(f"out of time; not run: {' '.join(suite.not_run)}")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path, help="the folder that install.py created")
    parser.add_argument("address", help="HOST:PORT")
    parser.add_argument("output", type=Path, help="the JSON file to write")
    parser.add_argument("--user", help="a user with the role root; omit it for a deployment without access control")
    parser.add_argument("--password", default="password")
    parser.add_argument("--api", choices=("sync", "async"), default="sync", help="which suite; default: sync")
    parser.add_argument("--test-seconds", type=int, default=100, help="limit for one test (100)")
    parser.add_argument("--total-seconds", type=int, default=5400, help="limit for the run (5400)")
    parser.add_argument("--once", action="store_true", help="do not run failing tests a second time")
    parser.add_argument("selectors", nargs="*", help="pytest's selectors, such as test/test_bulk.py; default: all")
    return parser.parse_args()


def write_result(arguments, suite, seconds):
    result = {
        "pymongo": (arguments.work / "installed").read_text(),
        "api": arguments.api,
        "access_control": bool(arguments.user),
        "seconds": seconds,
        "not_run": suite.not_run,
        "second_attempt": suite.second,
        "tests": dict(sorted(suite.tests.items())),
        "messages": {test: suite.messages[test] for test in sorted(suite.messages)},
    }
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")


class Suite:
    def __init__(self, arguments):
        self.arguments = arguments
        self.folder = (arguments.work / "suite").resolve()
        self.deadline = time.monotonic() + arguments.total_seconds
        self.tests = {}
        self.messages = {}
        self.second = {}
        self.not_run = []

    def files(self):
        folder = self.folder / "test" / ("asynchronous" if self.arguments.api == "async" else "")
        return [str(path.relative_to(self.folder)) for path in sorted(folder.glob("test_*.py"))]

    def count(self, outcome):
        return sum(1 for found in self.tests.values() if found == outcome)

    def run(self, selectors):
        for selector in selectors:
            if time.monotonic() > self.deadline:
                self.not_run.append(selector)
                continue
            started = time.monotonic()
            found = self.run_file([selector], selector)
            self.keep(found)
            failed = sum(1 for outcome, _ in found.values() if outcome in ("failed", "error"))
            print(f"{selector}: {len(found)}, {failed} failed, {time.monotonic() - started:.0f} s", flush=True)

    def run_again(self):
        """Runs each failed test once more. If no time is left, the outcome of the first attempt stays."""
        files = {}
        for test, outcome in self.tests.items():
            if outcome in ("failed", "error") and "::" in test:
                files.setdefault(test.split("::")[0], []).append(test)
        for name, tests in files.items():
            if time.monotonic() > self.deadline:
                print(f"{name}: no time for a second attempt", flush=True)
                continue
            found = self.run_file(tests, name)
            for test in tests:
                if found.get(test, ("", ""))[0] == "passed":
                    self.second[test] = self.messages.pop(test, "")
                    self.tests[test] = "passed"

    def keep(self, found):
        for test, (outcome, message) in found.items():
            self.tests[test] = outcome
            if outcome != "passed":
                self.messages[test] = message

    def run_file(self, selectors, name):
        """Runs the selected tests in as many processes as needed. Returns {test: (outcome, message)}."""
        found = {}
        for _ in range(PROCESSES_PER_FILE):
            status, running = self.run_process(selectors, found)
            if running is None:
                if status not in NORMAL_ENDS:
                    found[f"{name}::(between tests)"] = ("error", f"pytest ended with {status}")
                return found
            found[running] = ("error", f"the process {status} in this test")
        found[name] = ("error", f"{PROCESSES_PER_FILE} processes hung or died")
        return found

    def run_process(self, selectors, found):
        """Runs one pytest. Returns how it ended, and the current test if pytest hung or died."""
        with tempfile.TemporaryDirectory(prefix="pymongo-suite-") as folder:
            record = Path(folder) / "record"
            record.touch()
            (Path(folder) / "done").write_text(json.dumps(sorted(found)))
            with open(Path(folder) / "output", "w+b") as output:
                process = subprocess.Popen(
                    self.command(selectors), cwd=self.folder, env=self.environment(record, folder),
                    stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                )
                try:
                    is_silent = self.wait(process, record)
                finally:
                    end_group(process)
                running = read_record(record, found)
                if process.returncode not in NORMAL_ENDS and not is_silent:
                    output.seek(0)
                    sys.stderr.write(output.read()[-4000:].decode(errors="replace"))
        if is_silent:
            return "was silent for too long", running or f"{selectors[0]}::(between tests)"
        return ("died" if running else process.returncode), running

    def wait(self, process, record):
        """Waits for the end of the process. Returns true if it hangs."""
        limit = self.arguments.test_seconds + SILENCE_SECONDS
        size, last = 0, time.monotonic()
        while process.poll() is None:
            now = time.monotonic()
            if (grown := record.stat().st_size) != size:
                size, last = grown, now
            if now - last > limit or now > self.deadline + limit:
                return True
            time.sleep(POLL_SECONDS)
        return False

    def command(self, selectors):
        return [
            str(self.folder.parent / "venv" / "bin" / "python"), "-m", "pytest", "-p", "recorder", "-o", "addopts=",
            "-m", MARKERS[self.arguments.api], "-q", "--timeout", str(self.arguments.test_seconds),
            "--timeout-method", "signal", "-p", "no:cacheprovider", *selectors,
        ]

    def environment(self, record, folder):
        host, _, port = self.arguments.address.rpartition(":")
        environment = {key: value for key, value in os.environ.items() if key in ("PATH", "LANG", "LC_ALL")}
        environment.update(
            HOME=folder, TMPDIR=folder, PYTHONPATH=str(HERE), PYTHONDONTWRITEBYTECODE="1",
            DB_IP=host, DB_PORT=port, SUITE_RECORD=str(record), SUITE_DONE=str(Path(folder) / "done"),
        )
        if self.arguments.user:
            environment.update(DB_USER=self.arguments.user, DB_PASSWORD=self.arguments.password)
        return environment


def end_group(process):
    """Kills the process and the processes that its tests have forked."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait(KILL_SECONDS)


def read_record(record, found):
    """Adds the recorded outcomes to those found. Returns the test that has started but not ended."""
    running = None
    for line in record.read_text().splitlines(keepends=True):
        if not line.endswith("\n"):
            # The line was cut off when the process was killed.
            break
        entry = json.loads(line)
        if entry["outcome"] == "started":
            running = entry["test"]
        else:
            found[entry["test"]] = (entry["outcome"], entry["message"])
            running = None
    return running


if __name__ == "__main__":
    main()
