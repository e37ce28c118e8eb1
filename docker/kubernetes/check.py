"""Validates the rendered chart and the sidecar examples. Started by `check`, which installs helm.

It checks each object by the schema of Kubernetes (unknown fields are errors). It also checks facts
that no schema contains: references between objects, and statements of the chart's documentation.
`seawall check` must accept the configuration and the variables of each rendered container.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import kubernetes_validate
import yaml

HERE = Path(__file__).parent
CHART = HERE / "chart" / "seawall"
RELEASE = "test"
VERSIONS_CHECKED = 3
# The time that Seawall may need to end after preStop and drain, in seconds.
CLOSE_SECONDS = 15


def main():
    minors = newest_minors()
    print()
    table = Table(minors)
    for values in sorted((HERE / "values").glob("*.yaml")):
        helm("lint", "--strict", "--kube-version", minors[-1], str(CHART), "--values", str(values))
        row = table.row(f"chart, {values.stem}")
        for minor in minors:
            objects = render(values, minor)
            row.validate(objects, minor)
            check_references(objects)
            check_chart(objects, yaml.safe_load(values.read_text()))
        (container,) = only(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
        (config,) = only(objects, "ConfigMap")["data"].values()
        check_with_seawall(container, config, values.name)
    for file in sorted((HERE / "sidecar").glob("*.yaml")):
        row = table.row(f"sidecar, {file.stem}")
        objects = parse(file.read_text(), file.name)
        for minor in minors:
            row.validate(objects, minor)
        check_sidecar(objects)
        for found in objects:
            if found["kind"] != "Secret":
                sidecar = found["spec"]["template"]["spec"]["initContainers"][0]
                check_with_seawall(sidecar, None, file.name)
    table.print()

    facts = [name for name, check in sorted(globals().items()) if name.startswith("fact_")]
    for name in facts:
        globals()[name](minors[-1])
        print(f"ok: {name.removeprefix('fact_').replace('_', ' ')}")
    print(f"\n{len(table.rows)} sets of manifests and {len(facts)} facts passed, 0 failed")


# --- tools ---------------------------------------------------------------------------------------


def newest_minors():
    """The newest minor versions of Kubernetes that have schemas, oldest first."""
    versions = {}
    for full in kubernetes_validate.utils.all_versions():
        versions[".".join(full.split(".")[:2])] = full
    if len(versions) < VERSIONS_CHECKED:
        fail(f"only {len(versions)} versions of Kubernetes have schemas")
    return list(versions.values())[-VERSIONS_CHECKED:]


def helm(*arguments, may_fail=False):
    """The output of helm. With `may_fail`: its error text, or None if helm succeeded."""
    done = subprocess.run([sys.argv[1], *arguments], capture_output=True, text=True, check=False)
    if may_fail:
        return done.stderr if done.returncode else None
    if done.returncode:
        fail(f"helm {' '.join(arguments)}:\n{done.stdout}{done.stderr}")
    return done.stdout


def render(values, minor, *more):
    text = helm(*template(minor), "--values", str(values), *more)
    objects = parse(text, f"the chart with {values.name}")
    if not objects:
        fail(f"{values.name} renders no object")
    return objects


def template(minor):
    namespace = ["--namespace", "databases"]
    return ["template", RELEASE, str(CHART), "--kube-version", minor, *namespace]


class UniqueKeys(yaml.SafeLoader):
    """Refuses a mapping that has a key twice. Kubernetes would ignore one of the two values."""

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            fail(f"keys given twice{node.start_mark}: {', '.join(sorted(twice))}")
        return super().construct_mapping(node, deep)


def parse(text, name):
    try:
        return [document for document in yaml.load_all(text, UniqueKeys) if document]
    except yaml.YAMLError as error:
        fail(f"{name} is not YAML: {error}")


def fail(message):
    sys.exit(f"docker/kubernetes/check failed: {message}")


def ensure(condition, message):
    if not condition:
        fail(message)


def of_kind(objects, kind):
    return [found for found in objects if found["kind"] == kind]


def only(objects, kind, name=None):
    found = [o for o in of_kind(objects, kind) if name in (None, o["metadata"]["name"])]
    ensure(len(found) == 1, f"{len(found)} objects of kind {kind}, name {name}; expected one")
    return found[0]


class Table:
    def __init__(self, minors):
        self.minors, self.rows = minors, []

    def row(self, name):
        self.rows.append(Row(name))
        return self.rows[-1]

    def print(self):
        columns = [
            "objects that passed",
            *(f"Kubernetes {minor}" for minor in self.minors),
            "no schema, structure checked",
        ]
        lines = [columns] + [
            [row.name, *(str(row.passed[minor]) for minor in self.minors), row.without_schema()]
            for row in self.rows
        ]
        widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
        lines.insert(1, ["-" * width for width in widths])
        for line in lines:
            print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())
        print()


class Row:
    def __init__(self, name):
        self.name, self.passed, self.custom = name, {}, set()

    def validate(self, objects, minor):
        """Validates each object by its schema, or by a check in this file if it has no schema."""
        self.passed[minor] = 0
        for found in objects:
            name = f"{self.name}: {found['kind']}/{found['metadata']['name']}"
            try:
                kubernetes_validate.validate(found, minor, strict=True)
                self.passed[minor] += 1
            except kubernetes_validate.ValidationError as error:
                path = ".".join(str(part) for part in error.path)
                fail(f"{name} is invalid in Kubernetes {minor}: {path}: {error.message}")
            except kubernetes_validate.SchemaNotFoundError as error:
                structure = STRUCTURES.get((found["apiVersion"], found["kind"]))
                ensure(structure, f"{name}: {error.message}, and this file has no check")
                structure(found, name)
                self.custom.add(found["kind"])
        ensure(objects, f"{self.name} has no object")

    def without_schema(self):
        return ", ".join(sorted(self.custom)) or "-"


# --- objects without a schema --------------------------------------------------------------------


def check_service_monitor(found, name):
    """Checks that a ServiceMonitor has exactly the fields that the chart uses."""
    spec = found["spec"]
    fields = {"scrapeClassicHistograms", "selector", "endpoints"}
    ensure(set(spec) == fields, f"{name}: fields of spec are {sorted(spec)}")
    ensure(spec["scrapeClassicHistograms"] is True, f"{name}: no classic histograms")
    labels = spec["selector"].get("matchLabels")
    ensure(set(spec["selector"]) == {"matchLabels"} and labels, f"{name}: no matchLabels")
    ensure(all(isinstance(value, str) for value in labels.values()), f"{name}: label is no string")
    ensure(spec["endpoints"], f"{name}: no endpoint")
    for endpoint in spec["endpoints"]:
        expected = {"port", "path", "interval", "scrapeTimeout"}
        ensure(set(endpoint) == expected, f"{name}: fields of endpoint are {sorted(endpoint)}")
        ensure(all(isinstance(value, str) for value in endpoint.values()), f"{name}: not a string")


STRUCTURES = {("monitoring.coreos.com/v1", "ServiceMonitor"): check_service_monitor}


# --- relations that no schema knows --------------------------------------------------------------


def matches(selector, labels):
    return bool(selector) and selector.items() <= labels.items()


def check_references(objects):
    """Checks that selectors, ports, volumes and names refer to existing objects of the chart."""
    deployment = only(objects, "Deployment")
    pod = deployment["spec"]["template"]
    labels, spec = pod["metadata"]["labels"], pod["spec"]
    (container,) = spec["containers"]
    ports = {port["name"] for port in container["ports"]}

    ensure(matches(deployment["spec"]["selector"]["matchLabels"], labels), "Deployment: selector")
    for service in of_kind(objects, "Service"):
        ensure(matches(service["spec"]["selector"], labels), "Service: selector")
        targets = {port["targetPort"] for port in service["spec"]["ports"]}
        ensure(targets <= ports, f"Service: ports {targets - ports} do not exist")
    for budget in of_kind(objects, "PodDisruptionBudget"):
        ensure(matches(budget["spec"]["selector"]["matchLabels"], labels), "budget: selector")
    for policy in of_kind(objects, "NetworkPolicy"):
        ensure(matches(policy["spec"]["podSelector"]["matchLabels"], labels), "policy: selector")
        for rule in policy["spec"]["ingress"]:
            ensure(rule["from"], "NetworkPolicy: a rule allows every source")
            ensure({port["port"] for port in rule["ports"]} <= ports, "NetworkPolicy: ports")
    for scaler in of_kind(objects, "HorizontalPodAutoscaler"):
        target = scaler["spec"]["scaleTargetRef"]["name"]
        ensure(target == deployment["metadata"]["name"], "HorizontalPodAutoscaler: target")
    for monitor in of_kind(objects, "ServiceMonitor"):
        selector = monitor["spec"]["selector"]["matchLabels"]
        services = of_kind(objects, "Service")
        selected = [found for found in services if matches(selector, found["metadata"]["labels"])]
        ensure(len(selected) == 1, f"ServiceMonitor selects {len(selected)} Services")
        check_job(selected[0]["metadata"]["name"])
        names = {port["name"] for port in selected[0]["spec"]["ports"]}
        ensure({e["port"] for e in monitor["spec"]["endpoints"]} <= names, "ServiceMonitor: port")

    check_mounts(spec)
    maps = [volume["configMap"]["name"] for volume in spec["volumes"] if "configMap" in volume]
    for name in maps:
        only(objects, "ConfigMap", name)
    # With serviceAccount.create=false the account exists already.
    for account in of_kind(objects, "ServiceAccount"):
        name = account["metadata"]["name"]
        ensure(name == spec["serviceAccountName"], f"the pods do not use the account {name}")
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        ensure(container[probe]["httpGet"]["port"] in ports, f"{probe}: port")


def check_job(service):
    """Checks that the alert SeawallDown covers a ServiceMonitor's job: the name of its Service."""
    rules = yaml.safe_load((HERE.parent / "prometheus" / "alerts.yml").read_text())
    alerts = {rule["alert"]: rule["expr"] for group in rules["groups"] for rule in group["rules"]}
    (pattern,) = re.findall(r'job=~"([^"]+)"', alerts["SeawallDown"])
    ensure(re.fullmatch(pattern, service), f"SeawallDown does not cover the job {service}")


def check_mounts(spec):
    """Checks that mounts and volumes match, and that each path in the variables is mounted."""
    containers = spec["containers"] + spec.get("initContainers", [])
    mounts = [mount for c in containers for mount in c.get("volumeMounts", [])]
    volumes = {volume["name"] for volume in spec.get("volumes", [])}
    mounted = {mount["name"] for mount in mounts}
    ensure(mounted == volumes, f"mounts {sorted(mounted)}, but volumes {sorted(volumes)}")
    ensure(not any("subPath" in mount for mount in mounts), "a subPath is never updated")
    for container in containers:
        folders = [mount["mountPath"] for mount in container.get("volumeMounts", [])]
        values = environment(container).values()
        for path in [v for v in values if v.startswith("/")] + [
            a for a in container.get("args", []) if a.startswith("/")
        ]:
            ensure(any(path.startswith(f"{f}/") for f in folders), f"{path} is not mounted")


def environment(container):
    return {v["name"]: v["value"] for v in container.get("env", []) if "value" in v}


def check_container(container, spec):
    """Checks that a container runs without any privilege."""
    pod, own = spec.get("securityContext", {}), container["securityContext"]
    both = pod | own
    name = container["name"]
    ensure(both["runAsNonRoot"] is True, f"{name}: may run as root")
    ensure(own["allowPrivilegeEscalation"] is False, f"{name}: may gain privileges")
    ensure(own["capabilities"] == {"drop": ["ALL"]}, f"{name}: has capabilities")
    ensure(both["seccompProfile"] == {"type": "RuntimeDefault"}, f"{name}: no seccomp profile")
    if "/seawall:" in container["image"] or "/seawall@" in container["image"]:
        ensure(own["readOnlyRootFilesystem"] is True, f"{name}: can write")
        ensure(both["runAsUser"] == 65532, f"{name}: not the user of the image")
    ensure(container["resources"]["limits"]["memory"], f"{name}: no memory limit")
    ensure("cpu" not in container["resources"]["limits"], f"{name}: a CPU limit")


def check_chart(objects, values):
    """Checks the statements of the chart's documentation that apply to all values."""
    deployment = only(objects, "Deployment")
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    variables = environment(container)
    check_container(container, spec)
    ensure(spec["automountServiceAccountToken"] is False, "a token of Kubernetes is mounted")

    sleep = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain_ms = int(variables["SEAWALL_SHUTDOWN__DRAIN_MS"])
    needed = sleep + drain_ms // 1000 + CLOSE_SECONDS
    grace = spec["terminationGracePeriodSeconds"]
    ensure(grace == needed, f"the grace period is {grace} s instead of {needed} s")
    ready, deadline = (
        deployment["spec"][field] for field in ("minReadySeconds", "progressDeadlineSeconds")
    )
    ensure(ready >= grace, "an update continues while an old pod drains")
    ensure(deadline > ready, "progressDeadlineSeconds must exceed minReadySeconds")

    port = variables["SEAWALL_ADMIN__METRICS_ADDRESS"].rsplit(":", 1)[1]
    ports = {named["name"]: named["containerPort"] for named in container["ports"]}
    ensure(ports == {"mongodb": 27018, "metrics": int(port)}, f"ports are {ports}")
    ensure(variables["SEAWALL_ADMIN__ADDRESS"] == "127.0.0.1:9909", "the API is not on loopback")
    for probe, path in [
        ("startupProbe", "/health/live"),
        ("livenessProbe", "/health/live"),
        ("readinessProbe", "/health/ready"),
    ]:
        expected = {"path": path, "port": "metrics"}
        ensure(container[probe]["httpGet"] == expected, f"{probe}: {container[probe]}")

    (text,) = only(objects, "ConfigMap")["data"].values()
    config = tomllib.loads(text)
    has_address = "SEAWALL_LISTEN__ADDRESS" in variables
    ensure(has_address != ("listeners" in config), "expected one source of listen addresses")
    in_config = "uri" in config.get("deployment", {})
    by_secret = "SEAWALL_DEPLOYMENT__URI_FILE" in variables
    ensure(in_config != by_secret, "expected exactly one connection string")

    watches = values.get("reload", {}).get("watch", True)
    expected = "true" if watches else "false"
    ensure(variables["SEAWALL_RELOAD__WATCH"] == expected, f"reload.watch is not {expected}")
    profiles = values.get("admin", {}).get("profile", False)
    ensure(("SEAWALL_ADMIN__PROFILE" in variables) == profiles, "admin.profile has no effect")
    writable = [m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")]
    ensure(("/tmp" in writable) == profiles, "the profiler needs /tmp")
    if not values.get("serviceAccount", {}).get("create", True):
        name = values["serviceAccount"]["name"]
        ensure(spec["serviceAccountName"] == name, f"the pods do not use the account {name}")

    policy = values.get("service", {}).get("externalTrafficPolicy")
    policies = [of["spec"].get("externalTrafficPolicy") for of in of_kind(objects, "Service")]
    ensure(policy in policies, "service.externalTrafficPolicy has no effect")

    scaled = values.get("autoscaling", {}).get("enabled", False)
    has_replicas = "replicas" in deployment["spec"]
    ensure(has_replicas != scaled, "expected either replicas or an autoscaler")
    for kind, is_expected in [
        ("HorizontalPodAutoscaler", scaled),
        ("NetworkPolicy", values.get("networkPolicy", {}).get("enabled", False)),
        ("ServiceMonitor", "serviceMonitor" in values.get("metrics", {})),
        ("PodDisruptionBudget", values.get("podDisruptionBudget", {}).get("enabled", True)),
        ("ServiceAccount", values.get("serviceAccount", {}).get("create", True)),
    ]:
        ensure(bool(of_kind(objects, kind)) == is_expected, f"{kind}: expected {is_expected}")


def check_with_seawall(container, config, name):
    """Checks that Seawall accepts the variables and the configuration file, if any, of a container.

    Mounted files do not exist here, so each path in a variable is replaced by the path of a file
    with a connection string. The variables of TLS are skipped, because `seawall check` would parse
    that file as a certificate.
    """
    with tempfile.TemporaryDirectory() as folder:
        mounted = Path(folder, "mounted")
        mounted.write_text("mongodb://db-0.example.org/")
        given = environment(container)
        variables = {
            variable: str(mounted) if value.startswith("/") else value
            for variable, value in given.items()
            if variable.startswith("SEAWALL_") and "__TLS__" not in variable
        }
        arguments = []
        if config:
            file = Path(folder, "seawall.toml")
            file.write_text(config)
            arguments = ["--config", str(file)]
        done = subprocess.run(
            [sys.argv[2], "check", *arguments],
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
        ensure(done.returncode == 0, f"{name}: Seawall refuses it:\n{done.stderr}")


def check_sidecar(objects):
    """Checks the statements of the sidecar examples."""
    for found in objects:
        if found["kind"] == "Secret":
            continue
        spec = found["spec"]["template"]["spec"]
        (sidecar,) = [c for c in spec["initContainers"] if c.get("restartPolicy") == "Always"]
        ensure(spec["initContainers"][0] is sidecar, "the sidecar does not start first")
        ensure("readinessProbe" not in sidecar, "the sidecar has a readinessProbe")
        ensure("lifecycle" not in sidecar, "the sidecar has a preStop hook")
        for probe in ("startupProbe", "livenessProbe"):
            command = sidecar[probe]["exec"]["command"]
            ensure(command == ["/seawall", "health"], f"{probe}: {command}")
        drain_ms = int(environment(sidecar)["SEAWALL_SHUTDOWN__DRAIN_MS"])
        needed = 30 + drain_ms // 1000 + CLOSE_SECONDS
        grace = spec["terminationGracePeriodSeconds"]
        ensure(grace == needed, f"the grace period is {grace} s instead of {needed} s")
        watches = environment(sidecar).get("SEAWALL_RELOAD__WATCH")
        ensure(watches == "true", "the sidecar never reads a changed Secret")
        address = environment(sidecar)["SEAWALL_LISTEN__ADDRESS"]
        ensure(address.startswith("127.0.0.1:"), f"other pods can connect: {address}")
        for container in spec["containers"] + spec["initContainers"]:
            check_container(container, spec)
        check_mounts(spec)
        (secret,) = [volume["secret"]["secretName"] for volume in spec["volumes"]]
        example = yaml.safe_load((HERE / "sidecar" / "secret.yaml").read_text())
        ensure(secret == example["metadata"]["name"], "the Secret differs from the example")


# --- facts ---------------------------------------------------------------------------------------

DEFAULTS = HERE / "values" / "defaults.yaml"


def grace_period(objects):
    spec = only(objects, "Deployment")["spec"]["template"]["spec"]
    return spec["terminationGracePeriodSeconds"]


def fact_each_config_has_its_own_immutable_config_map(minor):
    def name(*more):
        config_map = only(render(DEFAULTS, minor, *more), "ConfigMap")
        ensure(config_map["immutable"] is True, "the ConfigMap can change below running pods")
        policy = config_map["metadata"]["annotations"]["helm.sh/resource-policy"]
        ensure(policy == "keep", "helm deletes the ConfigMap of running pods")
        return config_map["metadata"]["name"]

    before = name()
    ensure(before == name("--set", "replicas=7"), "the name changes without a change of config")
    ensure(before != name("--set-string", "config=[log]"), "the name does not change with config")
    longest = name("--set", f"fullnameOverride={'a' * 60}")
    ensure(len(longest) <= 63, f"the name {longest} is too long")


def fact_grace_period_is_prestop_and_drain_and_15_s(minor):
    default = grace_period(render(DEFAULTS, minor))
    ensure(default == 5 + 30 + 15, "the default grace period is not 50 s")
    times = ["--set", "shutdown.preStopSeconds=7,shutdown.drainSeconds=600"]
    ensure(
        grace_period(render(DEFAULTS, minor, *times)) == 7 + 600 + 15,
        "the grace period is not 622 s",
    )
    none = render(DEFAULTS, minor, "--set", "shutdown.preStopSeconds=0,shutdown.drainSeconds=0")
    ensure(grace_period(none) == 15, "the grace period without waits is not 15 s")
    (container,) = only(none, "Deployment")["spec"]["template"]["spec"]["containers"]
    ensure("lifecycle" not in container, "a preStop hook of 0 s; Kubernetes 1.30 refuses it")


def fact_optional_objects_are_absent_by_default(minor):
    kinds = sorted(found["kind"] for found in render(DEFAULTS, minor))
    expected = ["ConfigMap", "Deployment", "PodDisruptionBudget"]
    ensure(kinds == [*expected, "Service", "Service", "ServiceAccount"], f"kinds: {kinds}")


def fact_wrong_values_are_refused_with_a_clear_message(minor):
    uri = "deployment.uriSecret.name=seawall-deployment"
    for values, message in [
        ([], "No deployment: set deployment.uriSecret.name"),
        (["--set-string", "config=# uri = 1"], "No deployment: set deployment.uriSecret.name"),
        (["--set", uri, "--set-string", "config=[deployment]\nuri = 1"], "Two deployments:"),
        (["--set", f"{uri},replica=3"], "additional properties 'replica' not allowed"),
        (["--set", f"{uri},replicas=some"], "/replicas"),
        (["--set", f"{uri},metrics.port=27018"], "/metrics/port"),
        (["--set-json", "networkPolicy.clients=[]", "--set", uri], "/networkPolicy/clients"),
        (
            ["--set", f"{uri},autoscaling.enabled=true,autoscaling.minReplicas=9"],
            "autoscaling.minReplicas is greater than autoscaling.maxReplicas",
        ),
    ]:
        error = helm(*template(minor), *values, may_fail=True)
        ensure(error is not None, f"{values} were accepted")
        ensure(message in error, f"{values} gave another message: {error}")


def fact_every_form_of_a_uri_in_config_is_recognised(minor):
    for config in [
        '[deployment]\nuri = "mongodb://db/"',
        '[deployment]\n  uri_file="/etc/seawall/config/uri"',
        'deployment.uri = "mongodb://db/"',
        'deployment = { mode = "pooled", uri = "mongodb://db/" }',
    ]:
        values = ["--set-json", f"config={yaml_text(config)}"]
        error = helm(*template(minor), *values, may_fail=True)
        ensure(error is None, f"{config} was refused: {error}")


def fact_the_compose_file_is_consistent_and_seawall_accepts_its_part(_minor):
    folder = HERE.parent
    compose = yaml.load((folder / "compose.yaml").read_text(), UniqueKeys)
    services, volumes = compose["services"], set(compose["volumes"])
    used = set()
    for name, service in services.items():
        for needed in service.get("depends_on", {}):
            ensure(needed in services, f"{name} depends on {needed}, which does not exist")
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            if source.startswith("."):
                ensure((folder / source).exists(), f"{name} mounts {source}, which does not exist")
            else:
                used.add(source)
        for port in service.get("ports", []):
            ensure(port.startswith("127.0.0.1:"), f"{name} publishes {port} to other hosts")
    ensure(used == volumes, f"volumes {sorted(volumes)}, but used are {sorted(used)}")
    for program in services["prometheus"], services["grafana"]:
        mounted = folder / program["volumes"][0].split(":")[0]
        files = sorted(mounted.rglob("*.y*ml")) if mounted.is_dir() else [mounted]
        ensure(files, f"{mounted} has no YAML file")
        for file in files:
            yaml.load(file.read_text(), UniqueKeys)
    given = services["seawall"]["environment"]
    defaults = re.compile(r"\$\{\w+:-([^}]*)\}")
    env = [{"name": name, "value": defaults.sub(r"\1", given[name])} for name in given]
    config = (folder / "compose" / "seawall.toml").read_text()
    check_with_seawall({"env": env}, config, "compose.yaml")


def yaml_text(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def fact_the_field_for_classic_histograms_is_optional(minor):
    values = HERE / "values" / "service-monitor.yaml"
    off = ["--set", "metrics.serviceMonitor.scrapeClassicHistograms=false"]
    monitor = only(render(values, minor, *off), "ServiceMonitor")
    ensure("scrapeClassicHistograms" not in monitor["spec"], "the field cannot be omitted")


def fact_kubernetes_before_1_30_is_refused(_minor):
    error = helm(*template("1.29.0"), "--values", str(DEFAULTS), may_fail=True)
    ensure(error and "kubeVersion" in error, f"1.29.0 gave {error}")


def fact_the_schemas_refuse_unknown_fields_and_wrong_types(minor):
    for path, value in [("replicas", "three"), ("unknown", 1)]:
        broken = only(render(DEFAULTS, minor), "Deployment")
        broken["spec"][path] = value
        try:
            kubernetes_validate.validate(broken, minor, strict=True)
        except kubernetes_validate.ValidationError:
            continue
        fail(f"a Deployment with {path} = {value} passed the validation")


def fact_sidecars_of_both_examples_have_the_same_settings(_minor):
    sidecars = []
    for name in ("deployment.yaml", "job.yaml"):
        (found,) = parse((HERE / "sidecar" / name).read_text(), name)
        sidecars.append(found["spec"]["template"]["spec"]["initContainers"][0])
    ensure(sidecars[0] == sidecars[1], "the sidecars of deployment.yaml and job.yaml differ")


def fact_the_chart_belongs_to_this_version_of_seawall(_minor):
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    workspace = tomllib.loads((HERE.parents[1] / "Cargo.toml").read_text())
    expected = workspace["workspace"]["package"]["version"]
    ensure(chart["appVersion"] == expected, f"appVersion is not {expected}")
    for name in ("deployment.yaml", "job.yaml"):
        text = (HERE / "sidecar" / name).read_text()
        ensure(f"/seawall:{expected}\n" in text, f"the image in {name} is not {expected}")


main()
