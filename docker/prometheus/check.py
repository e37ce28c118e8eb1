"""Runs every rule and every query of the dashboards on a real Prometheus that scrapes a Seawall.

Started by `check`. In the steady state each query has plausible values and no alert fires. Then
this script causes faults, and the alerts for them must fire. It also measures a scrape with many
shapes.
"""

import contextlib
import itertools
import json
import math
import pathlib
import re
import statistics
import sys
import tempfile
import threading
import time
import urllib.request

from pymongo import CursorType, MongoClient
from pymongo.errors import PyMongoError

import dashboards
from lab import CLIENTS, RATE, Lab, eventually, fail, faster

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
STEADY_SECONDS = 28
# The maximum duration and size of a scrape, as docs/metrics.md promises.
SCRAPE_SECONDS, SCRAPE_BYTES = 0.2, 5_000_000
KNOWN_SHAPES, EXPORTED_SHAPES = 10_000, 200

# Plausible values in the steady state, by unit.
BOUNDS = {
    "Bps": (0, 1e8),
    "bytes": (0, 2e9),
    "cps": (0, 1e4),
    "none": (0, 1e3),
    "operations": (0, 1e5),
    "ops": (0, 5e3),
    "percentunit": (0, 1),
    "s": (0, 20),
}
# Narrower bounds, where the steady load determines the value.
EXACT = {
    "overview: Instances: reached": (1, 1),
    "overview: Instances: ready": (1, 1),
    "overview: Operations: Operations": (RATE * 0.6, RATE * 1.6),
    "overview: Failed operations: Failed operations": (0, 0.01),
    "overview: Firing alerts: Firing alerts": (0, 0),
    "overview: Clients and server connections: clients": (CLIENTS, CLIENTS + 20),
    "overview: Clients and server connections: server connections": (1, 60),
    "overview: Instances and configurations: {{instance}}": (1, 1),
    "shapes: Share of other shapes: Share of other shapes": (0, 0.01),
    "shapes: Shapes: Shapes": (4, 30),
    "storms: Storm: Storm": (0, 0),
    "storms: Storms that began: Storms that began": (0, 0),
    "storms: Logins saved: Logins saved": (0, 1),
    "servers: Certificates: {{file}}": (360 * 86400, 366 * 86400),
    "shapes: Mismatches: mismatches": (0, 0),
    "servers: Recurring stalls: {{instance}}": (0, 0),
}
# Queries without data in the steady state, because their event does not happen. The faults cause
# the event.
CAUSED_LATER = {
    "overview: Errors by code: {{code}}",
    "storms: Storms: active, {{instance}}",
    "storms: Storms: since the start, {{instance}}",
    "storms: Clients that left: {{stage}}",
    "storms: Refused operations: {{reason}}",
    "servers: Failed connections: {{server}}, {{reason}}",
    "servers: Reloads: {{result}}",
    "servers: Foreign operations: {{kind}}",
    "servers: Injected faults: {{kind}}",
}
ENDED = "storms: Established and ended connections"
# Queries that may have no data in the whole check, each with the reason.
MAY_BE_EMPTY = {
    f"{ENDED}: {{{{server}}}}, {{{{reason}}}}": "the first event of a series has no rate",
    "overview: Streamed operations: {{command}}": "few seconds have a large command",
    "shapes: Operations without a row of their own: {{level}}": "each shape may have its own row",
    "shapes: Evicted rows and learned names: evicted rows": "there may be enough rows",
    "shapes: Evicted rows and learned names: learned prefixes": "no field name is data",
    "shapes: Mismatches: mismatches": "only two shapes with the same hash cause it",
    "storms: New connections: refused": "no limit of connections is reached",
    "storms: New connections: delayed": "only a data plane without CPU time causes it",
    "storms: Refused connections: {{reason}}": "no limit of connections is reached",
    "storms: Delayed logins: delayed": "only a storm on a slow server causes it",
    "storms: Changes of the limit: {{server}}, {{reason}}": "the limit may need no change",
    "storms: Work for clients that left: {{server}}, reply read, {{result}}": "clients are patient",
    "storms: Work for clients that left: {{server}}, read ended": "clients are patient",
    "servers: Repeated operations: {{server}}": "a standalone cannot fail over",
    "servers: Retried writes: {{command}}": "a standalone has no retryable writes",
    "servers: Write errors: write concern, {{code}}": "a standalone satisfies all write concerns",
    "servers: Not observed: {{reason}}": "Seawall may be able to parse everything",
    "servers: Exports to a collector: {{result}}": "there is no collector; see otlp.py",
    "servers: Exports to a collector: rejected points": "there is no collector; see otlp.py",
}
# Rules of events, which have no data in the steady state. True: the faults always cause data.
# False: the faults may cause none. For example, a standalone cannot fail over.
EVENTS = {
    "instance:seawall_operation_errors:rate5m": True,
    "instance:seawall_operations_shed:increase5m": True,
    "server:seawall_pool_clears:increase5m": True,
    "server:seawall_operations_repeated:increase5m": False,
    "instance:seawall_foreign_operations:increase5m": True,
    "instance:seawall_faults_injected:increase5m": True,
    "instance:seawall_client_connections_refused:increase5m": False,
    "instance:seawall_fingerprint_mismatch:increase5m": False,
}
# Alerts that the faults cause. The unit tests of promtool cover all alerts.
CAUSED_BY_LOAD = {
    "SeawallLoginStorm",
    "SeawallClientStorm",
    "SeawallPoolExhausted",
    "SeawallOperationsShed",
    "SeawallOperationErrors",
    "SeawallReloadFailed",
    "SeawallForeignOperations",
    "SeawallFaultsInjected",
}


def main():
    check_files()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        lab = Lab(sys.argv[1], folder, stack)
        lab.write_certificate(days=365)
        lab.start_mongod()
        lab.write_configuration()
        lab.start_seawall()
        lab.start_prometheus()
        start = time.time()
        steady(lab)
        queries = dashboards.targets()
        check_queries(lab, queries)
        check_rules(lab)
        check_silence(lab, start)
        check_scrapes(lab)
        cause_faults(lab)
        stop_servers(lab)
        for query in queries:
            if query.name in CAUSED_LATER and not lab.has_had_data(variables(query), start):
                fail(f"{query.name} had no data when its event happened: {variables(query)}")
        for rule, is_caused in EVENTS.items():
            if is_caused and not lab.has_had_data(rule, start):
                fail(f"{rule} had no data when its event happened")
        print(f"{len(CAUSED_LATER)} queries and the rules of events had data after the faults")
    print("docker/prometheus/check passed")


# --- without processes ---------------------------------------------------------------------------


def check_files():
    """Checks that need no Prometheus: structure of the dashboards, names, links, unit tests."""
    problems = list(dashboards.problems())
    if problems:
        fail("\n".join(problems))
    documented = metrics_of((ROOT / "docs" / "metrics.md").read_text(), r"^\| `(seawall_\w+)`")
    rules = (HERE / "rules.yml").read_text()
    alerts = (HERE / "alerts.yml").read_text()
    expressions = [target.expression for target in dashboards.targets()] + [rules, alerts]
    recorded = metrics_of(rules, r"record: (\S+)")
    # The name of a recorded series has colons; its parts are not metrics.
    text = re.sub(r"\w+:seawall_\w+:\w+", "", "\n".join(expressions))
    used = {
        re.sub(r"(?<=_seconds)_(bucket|count|sum)$", "", name)
        for name in metrics_of(text, r"\b(seawall_\w+)")
        if name not in ("seawall_rates", "seawall_events", "seawall_critical", "seawall_warning")
    }
    if used - documented:
        fail(f"unknown metrics: {sorted(used - documented)}")
    if documented - used:
        fail(f"metrics that neither a rule nor a panel uses: {sorted(documented - used)}")
    unknown = metrics_of("\n".join(expressions), r"\b(\w+:seawall_\w+:\w+)") - recorded
    if unknown:
        fail(f"alerts or panels use rules that do not exist: {sorted(unknown)}")

    headings = re.findall(r"^#+ (.*)$", (ROOT / "docs" / "operations.md").read_text(), re.M)
    anchors = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    table = (ROOT / "docs" / "metrics.md").read_text()
    tests = (HERE / "tests" / "alerts.yml").read_text()
    names = re.findall(r"alert: (\w+)", alerts)
    links = re.findall(r"runbook_url: docs/operations.md#(\S+)", alerts)
    if len(links) != len(names):
        fail(f"{len(names)} alerts have {len(links)} links to a runbook")
    for name, link in zip(names, links, strict=True):
        if link not in anchors:
            fail(f"{name}: docs/operations.md has no heading {link}")
        if f'ALERTS{{alertname="{name}", alertstate="firing"' not in tests:
            fail(f"{name} fires in no unit test")
        if f"| `{name}` |" not in table:
            fail(f"docs/metrics.md does not list {name}")
    queries = len(dashboards.targets())
    print(f"{len(documented)} metrics, {len(names)} alerts, {queries} queries: names are valid")


def metrics_of(text, pattern):
    return set(re.findall(pattern, text, re.M))


# --- the steady state ----------------------------------------------------------------------------


def steady(lab):
    """Applies the steady load until the time windows of all queries are full. The traffic continues
    afterwards."""
    mix = ["--mix", "find=80,insert=10,update=10", "--connections", str(CLIENTS)]
    rate = ["--rate", str(RATE), "--duration-s", str(STEADY_SECONDS + 20)]
    lab.steady_load = lab.load("steady", lab.uri(), *mix, *rate)
    client = lab.client()
    things = client.load.things

    def connect():
        with MongoClient(lab.uri(), serverSelectionTimeoutMS=2000) as short:
            short.load.things.find_one()

    def work():
        things.insert_one({"large": "x" * 1_200_000})
        with contextlib.suppress(PyMongoError):
            things.insert_many([{"_id": "twice"}, {"_id": "twice"}])

    def follow():
        with tail.find(cursor_type=CursorType.TAILABLE_AWAIT) as cursor:
            list(cursor.max_await_time_ms(500))

    tail = client.load.create_collection("tail", capped=True, size=4096)
    tail.insert_one({})
    lab.repeat(connect, 0.4)
    lab.repeat(work, 0.8)
    lab.repeat(follow, 1)
    time.sleep(STEADY_SECONDS)


def variables(query):
    """The expression of a query as Grafana would send it, with all values of each variable."""
    values = {"job": ".*", "instance": ".*", "shape": ".*", "__rate_interval": "60s"}
    text = query.expression
    for name, value in values.items():
        text = text.replace(f"${name}", value)
    return faster(text)


def check_queries(lab, queries):
    print(f"\nqueries of the dashboards after {STEADY_SECONDS} s of {RATE} operations/s")
    problems, empty = [], 0
    for query in queries:
        found = lab.query(variables(query))
        values = [value for _, value in found]
        low, high = EXACT.get(query.name, BOUNDS[query.unit])
        if not found:
            empty += 1
            if query.name not in CAUSED_LATER and query.name not in MAY_BE_EMPTY:
                problems.append(f"{query.name} has no data: {variables(query)}")
        elif query.name in CAUSED_LATER and any(values):
            problems.append(f"{query.name} has data in the steady state: {found}")
        elif not all(low <= value <= high for value in values):
            problems.append(f"{query.name} has values below {low} or above {high}: {found}")
        shown = f"{min(values):.4g} to {max(values):.4g}" if found else "no data"
        print(f"  {query.name}: {len(found)} series, {shown}")
    known = {query.name for query in queries}
    named = EXACT.keys() | CAUSED_LATER | MAY_BE_EMPTY.keys()
    problems += [f"no query is named {name}" for name in named - known]
    if problems:
        fail("\n".join(problems))
    print(f"{len(queries)} queries: {len(queries) - empty} have data, {empty} have none")


def check_rules(lab):
    rules = [rule for group in lab.api("rules")["groups"] for rule in group["rules"]]
    recorded = 0
    for rule in rules:
        if rule["health"] != "ok":
            fail(f"the rule {rule['name']} is not healthy: {rule}")
        found = lab.query(rule["query"])
        if rule["type"] == "alerting":
            if found and rule["state"] == "firing":
                fail(f"{rule['name']} has data: {found}")
            continue
        recorded += 1
        found = lab.query(rule["name"])
        if bool(found) == (rule["name"] in EVENTS):
            fail(f"{rule['name']} in the steady state: {found}")
        if not all(math.isfinite(value) and value >= 0 for _, value in found):
            fail(f"{rule['name']} has implausible values: {found}")
    print(f"{recorded} recording rules and {len(rules) - recorded} alerts are evaluated")


def check_silence(lab, start):
    times = {"start": start, "end": time.time(), "step": 1}
    fired = lab.api("query_range", query='ALERTS{alertstate="firing"}', **times)["result"]
    if fired:
        fail(f"alerts in the steady state: {[series['metric'] for series in fired]}")
    print("no alert fired in the steady state")


# --- many shapes ---------------------------------------------------------------------------------


def check_scrapes(lab):
    """Measures scrapes with many known shapes."""
    lab.steady_load.wait()
    names = "amount brand colour depth edge flavour grade height index joint kind length mass note"
    pairs = list(itertools.combinations(names.split(), 2))
    collections = [f"c{number}" for number in range(260)]
    client = lab.client(maxPoolSize=4)
    # Consecutive shapes are in different namespaces: Seawall limits the new rows of a namespace per
    # second.
    shapes = [(name, pair) for pair in pairs for name in collections][: KNOWN_SHAPES + 400]
    # The first shapes are heavy, so the exported shapes stay the same: a series is exported for ten
    # minutes after its shape was among the heaviest.
    heavy = [shape for shape in shapes[:EXPORTED_SHAPES] for _ in range(20)]

    def find(part):
        for name, (first, second) in part:
            client.many[name].find_one({first: 1, second: 1})

    def find_all(queries):
        threads = [
            threading.Thread(target=find, args=(queries[part::4],)) for part in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(read_json(f"{lab.admin}/api/v1/shapes?limit=20000")["shapes"])

    began = time.monotonic()
    known = find_all(heavy + shapes)
    # On a fast machine, some shapes get no row because of the limit for new rows. They get one when
    # they occur again.
    for _ in range(3):
        if known < KNOWN_SHAPES * 0.98:
            known = find_all(shapes)
    seconds = time.monotonic() - began
    print(f"\n{len(shapes)} shapes in {seconds:.0f} s, {known} rows of statistics")
    if known < KNOWN_SHAPES * 0.98:
        fail(f"only {known} shapes are known")

    for name, accept in [("text", "text/plain"), ("protobuf", "application/vnd.google.protobuf")]:
        times, size = [], 0
        for _ in range(7):
            request = urllib.request.Request(f"{lab.admin}/metrics", headers={"Accept": accept})
            began = time.monotonic()
            with urllib.request.urlopen(request) as reply:
                body = reply.read()
            times.append(time.monotonic() - began)
            size = len(body)
        seconds = statistics.median(times)
        print(f"  {name}: {size} bytes in {seconds * 1000:.0f} ms (median of {len(times)})")
        if size > SCRAPE_BYTES or seconds > SCRAPE_SECONDS:
            fail(f"a scrape takes more than {SCRAPE_SECONDS} s or {SCRAPE_BYTES} bytes")
        if name == "text":
            print_sizes(body.decode())
    exported = lab.query("count(seawall_shape_info)")[0][1]
    ((_, seconds),) = lab.query("quantile_over_time(0.5, scrape_duration_seconds[10s])")
    ((_, samples),) = lab.query("scrape_samples_scraped")
    print(f"  Prometheus: {samples:.0f} samples in {seconds * 1000:.0f} ms, {exported:.0f} shapes")
    # Former heavy shapes are exported for ten minutes more.
    if exported > EXPORTED_SHAPES * 3 or seconds > SCRAPE_SECONDS:
        fail("too many shapes are exported, or Prometheus takes too long")


def print_sizes(text):
    """Prints what one more shape and one more namespace add to a scrape."""
    for what, part, one in [
        ("a shape", "seawall_shape_operations_total{", "seawall_shape_"),
        ("a namespace", "seawall_operation_duration_seconds_count{", "seawall_operation"),
    ]:
        lines = text.splitlines()
        count = sum(line.startswith(part) for line in lines)
        size = sum(len(line) + 1 for line in lines if line.startswith(one))
        print(f"  {what} adds {size / count:.0f} bytes ({count} of them)")


def read_json(url):
    with urllib.request.urlopen(url) as reply:
        return json.load(reply)


# --- faults --------------------------------------------------------------------------------------


def cause_faults(lab):
    print("\nfaults")
    lab.load("storm", lab.uri(), "--clients", "40", "--duration-s", "25")
    # The load needs a login and an operation before its storm begins.
    time.sleep(2)
    limits = """
        [pool]
        max_pool_size = 2
        wait_queue_timeout_ms = 1500
        concurrency = "off"
        [fault]
        command = "count"
        error_code = 2
    """
    lab.write_configuration(limits)
    lab.run("reload", "--admin", lab.admin)
    lab.write_configuration("[pool]\nmax_pool_size = 0")
    lab.run("reload", "--admin", lab.admin, expected=64)
    lab.write_configuration(limits)

    client = lab.client(maxPoolSize=20)
    things = client.load.things
    lab.repeat(lambda: client.load.command("count", "things"), 0.2)
    unknown = {"getMore": 2**60 + 7, "collection": "things"}
    lab.repeat(lambda: client.load.command(unknown), 1)
    slow = {"$where": "sleep(500) || true"}
    busy = threading.Event()
    lab.stack.callback(busy.set)

    def wait_for_connections():
        while not busy.is_set():
            with contextlib.suppress(PyMongoError):
                things.find_one(slow)

    def log_in_with_a_wrong_password():
        while not busy.is_set():
            with contextlib.suppress(PyMongoError), MongoClient(lab.uri(password="wrong")) as wrong:
                wrong.admin.command("ping")

    works = [wait_for_connections] * 14 + [log_in_with_a_wrong_password] * 4
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    await_alerts(lab, CAUSED_BY_LOAD)
    busy.set()
    for thread in threads:
        thread.join()


def stop_servers(lab):
    lab.write_configuration()
    lab.run("reload", "--admin", lab.admin)
    lab.load("steady", lab.uri(), "--rate", "300", "--duration-s", "15")
    lab.mongod.kill()
    await_alerts(lab, {"SeawallServerFailing"})
    lab.seawall.kill()
    await_alerts(lab, {"SeawallDown"})


def await_alerts(lab, names):
    """Waits until all these alerts have fired, and checks the texts of each alert."""
    missing, began = set(names), time.monotonic()

    def fired():
        for alert in lab.firing():
            name = alert["labels"]["alertname"]
            for text in (*alert["labels"].values(), *alert["annotations"].values()):
                if "<no value>" in text or "<error" in text:
                    fail(f"{name}: a label is missing in {text}")
            if name in missing:
                missing.discard(name)
                seconds = time.monotonic() - began
                print(f"  {name} after {seconds:.0f} s: {alert['annotations']['description']}")
        return not missing

    eventually(fired, lambda: f"alerts {sorted(missing)}")


main()
