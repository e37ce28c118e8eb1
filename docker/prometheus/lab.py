"""Processes and traffic of the check: a private mongod, Seawall, Prometheus, and clients."""

import contextlib
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

from pymongo import MongoClient
from pymongo.errors import PyMongoError

HERE = pathlib.Path(__file__).parent
LIMIT_SECONDS = 45
# The check speeds up time: Prometheus scrapes every second instead of after the interval in
# prometheus.yml, and all durations of rules and panels are divided by this factor.
SPEED = 15
RATE = 200
CLIENTS = 8


def fail(message):
    sys.exit(f"docker/prometheus/{pathlib.Path(sys.argv[0]).stem} failed: {message}")


def eventually(condition, what, limit=LIMIT_SECONDS):
    end = time.monotonic() + limit
    while not (result := condition()):
        if time.monotonic() > end:
            fail(f"not within {limit} s: {what() if callable(what) else what}")
        time.sleep(0.2)
    return result


def find_mongod():
    """The path of a mongod."""
    script = pathlib.Path(__file__).parent.parent / "find-mongod"
    return subprocess.run([script], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def free_ports(count):
    """Different ports on loopback that are free now.

    The system automatically assigns only ports from 32768 upwards. So these ports stay free until
    the programs of the check listen.
    """
    ports = []
    for port in random.sample(range(20_000, 32_000), 200):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports.append(port)
        if len(ports) == count:
            return ports
    fail(f"no {count} free ports")


def accepts(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def faster(text):
    """The text of rules or of a query, with all durations divided by `SPEED`."""

    def divided(match):
        seconds = int(match[2]) * {"s": 1, "m": 60, "h": 3600}[match[3]]
        return f"{match[1]}{max(seconds // SPEED, 1)}s"

    return re.sub(r"(\[|offset |for: |_interval: )(\d+)([smh])\b", divided, text)


def is_prometheus_2():
    """True for versions that do not know all keys of prometheus.yml."""
    done = subprocess.run(["prometheus", "--version"], capture_output=True, text=True, check=True)
    return "version 2." in done.stdout + done.stderr


class Lab:
    """Owns all processes, and ends each by its id."""

    def __init__(self, binary, folder, stack):
        self.binary, self.folder, self.stack = str(binary), pathlib.Path(folder), stack
        ports = free_ports(4)
        self.mongod_port, self.port, self.admin_port, self.prometheus_port = ports
        self.admin = f"http://127.0.0.1:{self.admin_port}"
        self.stopping = threading.Event()
        stack.callback(self.stopping.set)

    def start(self, name, command, **options):
        log = self.stack.enter_context(open(self.folder / f"{name}.log", "wb"))
        process = subprocess.Popen(command, stdout=log, stderr=log, **options)
        self.stack.callback(end, process)
        return process

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()[-3000:]

    # --- servers ---------------------------------------------------------------------------------

    def start_mongod(self):
        data = self.folder / "data"
        data.mkdir()
        command = [find_mongod(), "--auth", "--dbpath", str(data), "--bind_ip", "127.0.0.1"]
        command += ["--port", str(self.mongod_port), "--wiredTigerCacheSizeGB", "0.25"]
        self.mongod = self.start("mongod", command)
        eventually(lambda: accepts(self.mongod_port), "mongod listens")
        # The first user can be created without a login, from the same machine.
        with MongoClient(f"mongodb://127.0.0.1:{self.mongod_port}/") as client:
            client.admin.command("createUser", "root", pwd="root", roles=["root"])
        with MongoClient(f"mongodb://root:root@127.0.0.1:{self.mongod_port}/") as client:
            view = {"resource": {"db": "", "collection": ""}, "actions": ["viewUser"]}
            roles = ["clusterMonitor"]
            client.admin.command("createRole", "seawall", privileges=[view], roles=roles)
            client.admin.command("createUser", "seawall", pwd="seawall", roles=["seawall"])
            roles = ["readWriteAnyDatabase"]
            client.admin.command("createUser", "app", pwd="app", roles=roles)

    def write_certificate(self, days):
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"]
        command += ["ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=localhost"]
        command += ["-days", str(days), "-keyout", str(self.folder / "key.pem")]
        command += ["-out", str(self.folder / "certificate.pem")]
        subprocess.run(command, check=True, capture_output=True)

    def write_configuration(self, more=""):
        uri = f"mongodb://seawall:seawall@127.0.0.1:{self.mongod_port}/?authSource=admin"
        (self.folder / "seawall.toml").write_text(f"""
            [listen]
            address = "127.0.0.1:{self.port}"
            [listen.tls]
            mode = "prefer"
            certificate_file = "{self.folder}/certificate.pem"
            key_file = "{self.folder}/key.pem"
            [deployment]
            uri = "{uri}"
            server_selection_timeout_ms = 2000
            [admin]
            address = "127.0.0.1:{self.admin_port}"
            {more}
        """)

    def start_seawall(self):
        command = [self.binary, "serve", "--config", str(self.folder / "seawall.toml")]
        if os.geteuid() == 0:
            command.append("--allow-root")
        self.seawall = self.start("seawall", command)
        # Shorter than the limit of `run`, so that the reason is printed.
        self.run("wait", "--admin", self.admin, "--timeout-s", str(LIMIT_SECONDS - 5))

    def start_prometheus(self):
        for name in ("prometheus.yml", "rules.yml", "alerts.yml"):
            text = faster((HERE / name).read_text())
            text = text.replace("seawall:9910", f"127.0.0.1:{self.admin_port}")
            if is_prometheus_2():
                text = re.sub(r"(?m)^ *always_scrape_classic_histograms: .*\n", "", text)
            (self.folder / name).write_text(text)
        command = ["prometheus", f"--config.file={self.folder}/prometheus.yml"]
        command += [f"--storage.tsdb.path={self.folder}/tsdb"]
        command += [f"--web.listen-address=127.0.0.1:{self.prometheus_port}"]
        self.start("prometheus", command, cwd=self.folder)
        eventually(lambda: accepts(self.prometheus_port), "Prometheus listens")
        eventually(lambda: self.query("up == 1"), "Prometheus scrapes Seawall")

    # --- clients ---------------------------------------------------------------------------------

    def uri(self, user="app", password="app"):
        return f"mongodb://{user}:{password}@127.0.0.1:{self.port}/?authSource=admin"

    def run(self, *arguments, expected=0):
        try:
            done = subprocess.run(
                [self.binary, *arguments], capture_output=True, text=True, timeout=LIMIT_SECONDS
            )
        except subprocess.TimeoutExpired:
            fail(f"seawall {' '.join(arguments)}: timeout\n{self.log('seawall')}")
        if done.returncode != expected:
            text = f"{done.stdout}{done.stderr}\n{self.log('seawall')}"
            fail(f"seawall {' '.join(arguments)}: exit code {done.returncode}: {text}")

    def load(self, kind, uri, *arguments):
        """Starts `seawall load`. It ends after the duration in its arguments."""
        command = [self.binary, "load", kind, uri, "--quiet", *arguments]
        return self.start(f"load-{kind}", command)

    def client(self, **options):
        options = {"serverSelectionTimeoutMS": 5000, "retryReads": False, **options}
        return self.stack.enter_context(MongoClient(self.uri(), **options))

    def repeat(self, work, seconds):
        """Calls `work` on another thread every `seconds` seconds, until the check ends."""

        def loop():
            while not self.stopping.wait(seconds):
                # Errors are ignored here, because the check causes them and Prometheus counts them.
                with contextlib.suppress(PyMongoError):
                    work()

        threading.Thread(target=loop, daemon=True).start()

    # --- Prometheus ------------------------------------------------------------------------------

    def api(self, path, **parameters):
        query = urllib.parse.urlencode(parameters)
        url = f"http://127.0.0.1:{self.prometheus_port}/api/v1/{path}?{query}"
        try:
            with urllib.request.urlopen(url, timeout=LIMIT_SECONDS) as reply:
                return json.load(reply)["data"]
        except urllib.error.HTTPError as error:
            fail(f"{parameters}: {error.read().decode()}")

    def query(self, expression):
        """The values of an expression now, each with its labels."""
        found = self.api("query", query=expression)["result"]
        return [(sample["metric"], float(sample["value"][1])) for sample in found]

    def has_had_data(self, expression, since):
        """True if an expression had a value other than 0 since the time `since`."""
        times = {"start": since, "end": time.time(), "step": 1}
        found = self.api("query_range", query=f"({expression}) != 0", **times)
        return bool(found["result"])

    def firing(self):
        alerts = self.api("alerts")["alerts"]
        return [alert for alert in alerts if alert["state"] == "firing"]


def end(process):
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait()
