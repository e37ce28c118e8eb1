#!/usr/bin/env python3
"""Starts a replica set of three members for PyMongo's tests, and stops it on Ctrl-C or SIGTERM.

The members accept test commands, because the tests use fail points. With a user name, the set has
access control and this user, with the role root.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

MEMBERS = 3
START_SECONDS = 60
STOP_SECONDS = 20

# This code runs in the work folder's Python, which has PyMongo.
INITIATE = """
import os, sys, time
from pymongo import MongoClient
ports = [int(port) for port in sys.argv[1:4]]
deadline = time.monotonic() + float(sys.argv[4])
client = MongoClient("127.0.0.1", ports[0], directConnection=True, serverSelectionTimeoutMS=30000)
members = [{"_id": n, "host": f"127.0.0.1:{port}", "priority": 2 if n == 0 else 1} for n, port in enumerate(ports)]
# The timeout is long, because members may reply slowly on a busy machine. No test kills a member,
# so no test waits for an election.
settings = {"electionTimeoutMillis": 30000}
client.admin.command("replSetInitiate", {"_id": "rs0", "members": members, "settings": settings})
while not client.admin.command("hello")["isWritablePrimary"]:
    if time.monotonic() > deadline:
        sys.exit("no primary in time")
    time.sleep(0.1)
user = os.environ.get("SUITE_USER")
if user:
    client.admin.command("createUser", user, pwd=os.environ["SUITE_PASSWORD"], roles=["root"],
                         writeConcern={"w": len(ports)})
"""


def main():
    arguments = parse_arguments()
    folder = Path(tempfile.mkdtemp(prefix="pymongo-suite-"))
    ports = [arguments.port + index for index in range(MEMBERS)]
    members = []
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    signal.signal(signal.SIGINT, lambda *_: stopped.set())
    try:
        members = [start_member(arguments, folder, port) for port in ports]
        initiate(arguments, ports)
        print(f"ready: 127.0.0.1:{ports[0]}, replica set rs0, ports {ports[0]} to {ports[-1]}", flush=True)
        while not stopped.wait(1):
            ended = [port for port, member in zip(ports, members) if member.poll() is not None]
            if ended:
                sys.exit(f"the server at port {ended[0]} has ended; its log is in {folder}")
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        stop(members)
        if stopped.is_set():
            shutil.rmtree(folder, ignore_errors=True)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path, help="the folder that install.py created")
    parser.add_argument("--mongod", default=os.environ.get("SEAWALL_MONGOD", "mongod"), help="the server's binary")
    parser.add_argument("--port", type=int, default=27117, help="port of the first member; the others follow")
    parser.add_argument("--user", help="run with access control and this user")
    parser.add_argument("--password", default="password", help="password of the user")
    return parser.parse_args()


def start_member(arguments, folder, port):
    data = folder / str(port)
    data.mkdir()
    command = [
        arguments.mongod, "--replSet", "rs0", "--port", str(port), "--bind_ip", "127.0.0.1", "--dbpath", str(data),
        "--logpath", str(data / "log"), "--wiredTigerCacheSizeGB", "0.25", "--oplogSize", "256",
        "--setParameter", "enableTestCommands=1", "--setParameter", "diagnosticDataCollectionEnabled=false",
    ]
    if arguments.user:
        key = folder / "key"
        if not key.exists():
            key.write_text("QSBrZXkgZm9yIHRlc3RzIG9ubHkgb2YgdGhpcyBzZXQ=\n")
            key.chmod(0o600)
        command += ["--keyFile", str(key)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def initiate(arguments, ports):
    environment = dict(os.environ)
    environment.pop("SUITE_USER", None)
    if arguments.user:
        environment.update(SUITE_USER=arguments.user, SUITE_PASSWORD=arguments.password)
    python = arguments.work / "venv" / "bin" / "python"
    command = [str(python), "-c", INITIATE, *map(str, ports), str(START_SECONDS)]
    subprocess.run(command, env=environment, check=True, timeout=2 * START_SECONDS)


def stop(members):
    for member in members:
        member.terminate()
    for member in members:
        try:
            member.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            member.kill()
            member.wait()


if __name__ == "__main__":
    main()
