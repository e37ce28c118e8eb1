"""Reads the dashboards of Grafana, and checks their structure. Grafana itself does not run here."""

import json
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = ROOT / "docker" / "grafana" / "dashboards"
RULES = ROOT / "docker" / "prometheus" / "rules.yml"
# Rare events with a recording rule. A series appears with its first event, and `rate` misses it.
EVENTS = re.findall(r"record: \w+:(seawall_\w+):increase5m", RULES.read_text())
DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24
UNITS = {"Bps", "bytes", "cps", "none", "ops", "percentunit", "s"}
TYPES = {"heatmap", "row", "stat", "table", "timeseries"}


class Target:
    """One query of a panel."""

    def __init__(self, page, panel, target):
        self.page, self.panel = page, panel["title"]
        # The values of a heat map are counts; its unit is that of its vertical axis.
        self.unit = "operations" if panel["type"] == "heatmap" else unit_of(panel)
        self.legend, self.expression = target["legendFormat"], target["expr"]
        self.name = f"{page}: {self.panel}: {self.legend}"


def targets():
    """All queries of all panels."""
    return [
        Target(page, panel, target)
        for page, dashboard in dashboards().items()
        for panel in dashboard["panels"]
        for target in panel.get("targets", [])
    ]


def dashboards():
    return {file.stem: json.loads(file.read_text()) for file in sorted(FOLDER.glob("*.json"))}


def unit_of(panel):
    return panel["fieldConfig"]["defaults"]["unit"]


def problems():
    """The problems in the structure of the dashboards."""
    found = dashboards()
    if sorted(found) != ["overview", "servers", "shapes", "storms"]:
        yield f"the dashboards are {sorted(found)}"
    for member in ("uid", "title"):
        values = [dashboard[member] for dashboard in found.values()]
        if len(set(values)) < len(values):
            yield f"two dashboards have the same {member}"
    for page, dashboard in found.items():
        for problem in problems_of(dashboard):
            yield f"{page}: {problem}"


def problems_of(dashboard):
    for member in ("uid", "title", "description", "schemaVersion", "time", "refresh"):
        if not dashboard.get(member):
            yield f"no {member}"
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    source = variables.get("datasource", {})
    if (source.get("type"), source.get("query")) != ("datasource", "prometheus"):
        yield "no variable for the data source"
    for name, variable in variables.items():
        if variable["type"] == "query" and variable.get("datasource") != DATA_SOURCE:
            yield f"the variable {name} has another data source"
    # With `.*` for all jobs, a query of `up` would count the targets of all other jobs too.
    if "allValue" in variables.get("job", {}):
        yield "the variable job has its own value for all jobs"
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard)))
    for name in used - set(variables) - {"__all", "__rate_interval"}:
        yield f"unknown variable {name}"
    panels = dashboard["panels"]
    ids = [panel["id"] for panel in panels]
    if len(set(ids)) < len(ids):
        yield "two panels have the same id"
    titles = [panel["title"] for panel in panels if panel["type"] != "row"]
    for title in {title for title in titles if titles.count(title) > 1}:
        yield f"two panels have the title {title}"
    yield from overlaps(panels)
    for panel in panels:
        if panel["type"] not in TYPES:
            yield f"{panel['title']}: unknown type {panel['type']}"
        elif panel["type"] != "row":
            for problem in problems_of_panel(panel):
                yield f"{panel['title']}: {problem}"
    for annotation in dashboard["annotations"]["list"]:
        if not annotation.get("expr") or annotation.get("datasource") != DATA_SOURCE:
            yield f"the annotation {annotation['name']} has no expression or data source"


def problems_of_panel(panel):
    if not panel.get("description"):
        yield "no description"
    if panel.get("datasource") != DATA_SOURCE:
        yield "another data source than the variable"
    if unit_of(panel) not in UNITS:
        yield f"unknown unit {unit_of(panel)}"
    if panel["type"] == "timeseries" and not panel["options"]["legend"]["showLegend"]:
        yield "no legend"
    found = panel.get("targets", [])
    if not found:
        yield "no query"
    references = [target.get("refId") for target in found]
    if None in references or len(set(references)) < len(references):
        yield "a query without a unique refId"
    if len(found) == 1:
        for event in EVENTS:
            if f"rate({event}_total" in found[0].get("expr", ""):
                yield f"rate misses the first event: use the recording rule of {event}"
    for target in found:
        if not target.get("expr") or not target.get("legendFormat"):
            yield "a query without expression or legend"
        if target.get("datasource") != DATA_SOURCE:
            yield "a query with another data source"
        if (target.get("format") == "heatmap") != (panel["type"] == "heatmap"):
            yield "only heat maps have queries of that format"


def overlaps(panels):
    """Cells of the grid that two panels use, and panels beyond its edge."""
    used = {}
    for panel in panels:
        grid = panel["gridPos"]
        if min(grid.values()) < 0 or grid["x"] + grid["w"] > COLUMNS or not grid["h"]:
            yield f"{panel['title']} is not on the grid"
        for x in range(grid["x"], grid["x"] + grid["w"]):
            for y in range(grid["y"], grid["y"] + grid["h"]):
                if (x, y) in used:
                    yield f"{panel['title']} overlaps {used[x, y]}"
                    return
                used[x, y] = panel["title"]
