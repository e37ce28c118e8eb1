"""Sends Seawall's metrics to a real Prometheus by OTLP, and queries them there.

Started by `otlp`. Prometheus scrapes nothing, so all figures come from the export. The counts of
operations must equal the operations performed, and other values must equal those of `/metrics`.
"""

import contextlib
import re
import sys
import tempfile
import urllib.request

from pymongo.errors import OperationFailure

from lab import Lab, accepts, eventually, fail

FINDS, INSERTS, FAILURES = 40, 10, 5
DATABASE = "otlp"
DURATION = "db_client_operation_duration_seconds"


def main():
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        lab = Lab(sys.argv[1], folder, stack)
        start_receiver(lab, sys.argv[2])
        lab.write_certificate(days=365)
        lab.start_mongod()
        lab.write_configuration(f"""
            [telemetry]
            enabled = true
            endpoint = "http://127.0.0.1:{lab.prometheus_port}/api/v1/otlp"
            interval_ms = 500
            compression = "gzip"
            service_name = "seawall-check"
        """)
        lab.start_seawall()
        operate(lab)
        check_operations(lab)
        check_quantile(lab)
        check_others(lab)
        check_resource(lab)
    print("docker/prometheus/otlp: all figures are in Prometheus")


def start_receiver(lab, prometheus):
    (lab.folder / "receiver.yml").write_text("{}\n")
    command = [prometheus, f"--config.file={lab.folder}/receiver.yml"]
    command += [f"--storage.tsdb.path={lab.folder}/tsdb", "--web.enable-otlp-receiver"]
    command += [f"--web.listen-address=127.0.0.1:{lab.prometheus_port}"]
    lab.start("prometheus", command, cwd=lab.folder)
    eventually(lambda: accepts(lab.prometheus_port), lambda: lab.log("prometheus"))


def operate(lab):
    orders = lab.client()[DATABASE].orders
    for number in range(INSERTS):
        orders.insert_one({"n": number})
    for _ in range(FINDS):
        orders.find_one({"n": 3})
    for _ in range(FAILURES):
        try:
            orders.find_one({"n": {"$no": 1}})
        except OperationFailure as error:
            if error.code != 2:
                fail(f"expected error 2: {error}")


def by_label(samples, *labels):
    """A map from these labels' values to the sample's value; an absent label counts as empty."""
    return {tuple(of.get(label, "") for label in labels): value for of, value in samples}


def expect(lab, query, labels, expected):
    """Waits until a query has exactly these values."""
    found = {}

    def matches():
        nonlocal found
        found = by_label(lab.query(query), *labels)
        return found == expected

    eventually(matches, lambda: f"{query}: {found}, expected {expected}\n{lab.log('seawall')}")
    print(f"{query}: {found}")


def check_operations(lab):
    series = f'{DURATION}{{db_namespace="{DATABASE}",db_system_name="mongodb"}}'
    labels = ["db_operation_name", "db_collection_name", "db_query_summary"]
    labels += ["db_response_status_code", "error_type"]
    expected = {
        ("find", "orders", "find orders", "", ""): FINDS,
        ("find", "orders", "find orders", "2", "2"): FAILURES,
        ("insert", "orders", "insert orders", "", ""): INSERTS,
    }
    expect(lab, f"histogram_count({series})", labels, expected)
    shapes = f'seawall_shape_duration_seconds{{db_namespace="{DATABASE}",db_operation_name="insert"}}'
    expect(lab, f"sum(histogram_count({shapes}))", [], {(): INSERTS})


def check_quantile(lab):
    """Checks that the buckets have arrived with their bounds: compares quantiles and average."""
    series = f'{DURATION}{{db_namespace="{DATABASE}",db_operation_name="find",error_type=""}}'
    (_, average), = lab.query(f"histogram_avg({series})")
    (_, lowest), = lab.query(f"histogram_quantile(0, {series})")
    (_, highest), = lab.query(f"histogram_quantile(1, {series})")
    print(f"find: {lowest:.6f} s to {highest:.6f} s, average {average:.6f} s")
    if not 0 < lowest <= average <= highest < 10:
        fail(f"the buckets of {series} do not fit their sum")


def own(lab, name):
    """The sum of a metric's series at Seawall's admin address."""
    with urllib.request.urlopen(f"{lab.admin}/metrics") as reply:
        text = reply.read().decode()
    values = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
    return sum(map(float, values))


def expect_own(lab, name):
    """Waits until the sum of a metric equals the sum in Seawall's `/metrics`."""

    def equals():
        return by_label(lab.query(f"sum({name})")) == {(): own(lab, name)}

    eventually(equals, lambda: f"{name}: {lab.query(name)}, expected {own(lab, name)}")


def check_others(lab):
    """Checks that metrics without an OpenTelemetry convention have the values of `/metrics`."""
    for name in [
        "seawall_operation_documents_total",
        "seawall_server_connections_created_total",
        "seawall_ready",
        "seawall_info",
    ]:
        expect_own(lab, name)
    phases = by_label(lab.query("histogram_count(seawall_operation_phase_seconds)"), "phase")
    if len(phases) != 6 or min(phases.values()) < FINDS + INSERTS + FAILURES:
        fail(f"phases: {phases}")
    states = by_label(lab.query("db_client_connection_count"), "db_client_connection_state")
    if set(states) != {("idle",), ("used",), ("pending",)}:
        fail(f"states of connections: {states}")
    waits = lab.query("histogram_count(db_client_connection_wait_time_seconds)")
    if sum(value for _, value in waits) < FINDS:
        fail(f"checkouts: {waits}")
    delays = lab.query('seawall_event_loop_delay_seconds_count{plane="data"}')
    if len(delays) != 1 or delays[0][1] < 1:
        fail(f"a histogram with explicit bounds: {delays}")
    exports = by_label(lab.query("seawall_telemetry_exports_total"), "result")
    if set(exports) != {("ok",)}:
        fail(f"exports: {exports}")


def check_resource(lab):
    labels = ["job", "instance", "service_version"]
    (job, instance, version), = by_label(lab.query("target_info"), *labels)
    if job != "seawall-check" or len(instance) != 36 or not version:
        fail(f"target_info: {job}, {instance}, {version}")


main()
