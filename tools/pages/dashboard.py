"""Writes deploy/grafana/moorage.json, the dashboard for Grafana: `python -m tools.pages`. A test runs each of its queries on a Prometheus."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from bus.workers.heartbeats import STAGES

Json = dict[str, Any]
DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24
RATE = "$__rate_interval"
CLAIMS = '{type=~"claims?"}'
SILENT = '{state="silent"}'


class Panel(Struct, frozen=True):
    """One panel: its queries, each with the legend of its series. In a table, each label of the series is a column."""

    title: str
    queries: Mapping[str, str]
    about: str = ""
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    height: int = 7
    # A number is orange, or red, from this value on.
    warns_at: float | None = None
    alarms_at: float | None = None
    stacks: bool = False


def _of_all(metric: str, *labels: str, where: str = "") -> str:
    """A number of the whole cloud. While another scheduler takes over the counting, two may tell it for one scrape."""
    return f"max by ({', '.join(labels)}) ({metric}{where})"


def _rate(metric: str, *labels: str, where: str = "") -> str:
    return f"sum by ({', '.join(labels)}) (rate({metric}{where}[{RATE}]))"


def _quantile(share: float, metric: str, *labels: str, where: str = "") -> str:
    return f"histogram_quantile({share}, {_rate(f'{metric}_bucket', 'le', *labels, where=where)})"


def _three(metric: str) -> dict[str, str]:
    return {_quantile(share, metric): name for share, name in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))}


ROWS: Sequence[tuple[str, Sequence[Panel]]] = (
    (
        "Is it healthy?",
        (
            Panel(
                "Workers not ready",
                {"count(moor_ready == 0) or vector(0)": "not ready"},
                "`/readyz` of the worker says what it waits for.",
                kind="stat",
                width=4,
                height=4,
                alarms_at=1,
            ),
            Panel(
                "Cells down",
                {f"count({_of_all('moor_cell_up', 'cell')} == 0) or vector(0)": "cells"},
                "No conductor that can work is heard: `moor cell list`.",
                kind="stat",
                width=4,
                height=4,
                alarms_at=1,
            ),
            Panel(
                "Hosts silent",
                {
                    f"sum({_of_all('moor_hosts', 'cell', 'kind', 'state', where=SILENT)}) or vector(0)": "hosts"
                },
                "They should be up, and nothing is heard of them: `moor host list`.",
                kind="stat",
                width=4,
                height=4,
                warns_at=1,
                alarms_at=50,
            ),
            Panel(
                "Dead letters",
                {f"sum({_of_all('moor_dead_letters', 'broker')})": "messages"},
                "Messages that could not be handled: `moor dead list` says why.",
                kind="stat",
                width=4,
                height=4,
                warns_at=1,
            ),
            Panel(
                "Waiting for room",
                {_of_all("moor_waiting"): "waiting"},
                "Instances and moves for which no host has room now.",
                kind="stat",
                width=4,
                height=4,
                warns_at=1,
            ),
            Panel(
                "Oldest has waited",
                {_of_all("moor_waiting_oldest_seconds"): "oldest"},
                unit="s",
                kind="stat",
                width=4,
                height=4,
                warns_at=600,
            ),
        ),
    ),
    (
        "Boots",
        (
            Panel(
                "Boots ended, by outcome",
                {_rate("moor_boots_ended_total", "cell", "outcome"): "{{cell}} {{outcome}}"},
                unit="ops",
            ),
            Panel("From request to active", _three("moor_boot_seconds"), unit="s"),
            Panel(
                "p95 on the host",
                {_quantile(0.95, "moor_host_build_seconds", "cell"): "{{cell}}"},
                "The part of a boot that its hypervisor or node takes.",
                unit="s",
            ),
            Panel(
                "p95 of each stage of a boot",
                {
                    _quantile(0.95, stage.metric, where=CLAIMS if stage.label else ""): stage.name
                    for stage in STAGES
                },
                "`boot` is the whole way. `moor status` shows the same of the last minute.",
                unit="s",
                width=WIDTH,
            ),
            Panel(
                "No valid host, by the last filter",
                {_rate("moor_no_valid_host_total", "filter"): "{{filter}}"},
                "The filter that removed the last host: `moor explain ID` has the numbers.",
                unit="ops",
            ),
            Panel(
                "Conflicts",
                {
                    _rate(
                        "moor_claims_total", "verdict", where='{verdict!~"claimed|already_claimed"}'
                    ): "{{verdict}}"
                },
                "Claims that placement refused, since another scheduler was faster or the host had changed. They are tried again.",
                unit="ops",
            ),
            Panel(
                "Attempts that failed",
                {_rate("moor_attempts_failed_total", "cell", "why"): "{{cell}} {{why}}"},
                "An alternate is tried if there is one.",
                unit="ops",
            ),
            Panel(
                "Requests",
                {_rate("moor_requests_total", "outcome"): "{{outcome}}"},
                unit="ops",
            ),
            Panel(
                "p95 of the wait in each queue",
                {_quantile(0.95, "moor_message_wait_seconds", "queue"): "{{queue}}"},
                "From the sending of a message until a worker takes it. If it grows, its worker needs more processes.",
                unit="s",
            ),
            Panel(
                "p95 of handling in each queue",
                {_quantile(0.95, "moor_message_handling_seconds", "queue"): "{{queue}}"},
                "From there until it is saved, and what follows from it is sent.",
                unit="s",
            ),
        ),
    ),
    (
        "Instances, hosts and room",
        (
            Panel(
                "Instances by state",
                {f"sum by (state) ({_of_all('moor_instances', 'state', 'cell')})": "{{state}}"},
                stacks=True,
            ),
            Panel(
                "Instances by cell",
                {f"sum by (cell) ({_of_all('moor_instances', 'state', 'cell')})": "{{cell}}"},
                stacks=True,
            ),
            Panel(
                "Moves under way",
                {_of_all("moor_moves_under_way", "kind"): "{{kind}}"},
                stacks=True,
            ),
            Panel(
                "Use of capacity",
                {
                    f"sum by (class) ({_of_all('moor_capacity_used', 'cell', 'class')}) "
                    f"/ sum by (class) ({_of_all('moor_capacity', 'cell', 'class')} > 0)": "{{class}}"
                },
                unit="percentunit",
            ),
            Panel(
                "Room on hosts that take instances",
                {_of_all("moor_capacity_open", "cell", "class"): "{{cell}} {{class}}"},
            ),
            Panel(
                "Hosts by state",
                {
                    f"sum by (kind, state) ({_of_all('moor_hosts', 'cell', 'kind', 'state')})": "{{kind}} {{state}}"
                },
                stacks=True,
            ),
        ),
    ),
    (
        "Bare metal",
        (
            Panel(
                "From an event of Ironic to placement",
                _three("moor_node_event_seconds"),
                "Then the node is offered to schedulers, or no longer.",
                unit="s",
            ),
            Panel(
                "Reports accepted",
                {_rate("moor_node_reports_accepted_total"): "reports"},
                unit="ops",
            ),
            Panel(
                "Notifications that nobody could read",
                {_rate("moor_notifications_unreadable_total"): "notifications"},
                unit="ops",
            ),
        ),
    ),
    (
        "The bus",
        (
            Panel(
                "Messages handled",
                {_rate("moor_messages_handled_total", "queue"): "{{queue}}"},
                unit="ops",
            ),
            Panel(
                "Put back, and dead letters",
                {
                    _rate("moor_messages_put_back_total", "queue"): "{{queue}} put back",
                    _rate("moor_messages_buried_total", "queue"): "{{queue}} dead letters",
                },
                unit="ops",
            ),
            Panel(
                "Parcels in hand",
                {"sum by (queue) (moor_parcels_in_hand)": "{{queue}}"},
            ),
            Panel(
                "Until the broker confirms",
                _three("moor_publish_seconds"),
                unit="s",
            ),
            Panel(
                "p95 of questions",
                {_quantile(0.95, "moor_question_seconds", "type"): "{{type}}"},
                "From a question until its answer is there.",
                unit="s",
            ),
            Panel(
                "p95 of feeds",
                {_quantile(0.95, "moor_feed_seconds", "feed"): "{{feed}}"},
                "How old an event is when its listener hears it.",
                unit="s",
            ),
        ),
    ),
    (
        "Workers",
        (
            Panel(
                "CPU",
                {"rate(process_cpu_seconds_total[$__rate_interval])": "{{instance}}"},
                unit="percentunit",
            ),
            Panel("Memory", {"process_resident_memory_bytes": "{{instance}}"}, unit="bytes"),
            Panel(
                "Parts that fail",
                {"sum by (instance, part) (moor_part_failing) > 0": "{{instance}} {{part}}"},
                "Each is tried again: `/healthz` of the worker says why it fails.",
            ),
            Panel(
                "Workers",
                {"moor_worker_info": ""},
                kind="table",
                width=WIDTH,
            ),
        ),
    ),
)


def dashboard() -> Json:
    return {
        "title": "Moorage",
        "uid": "moorage",
        "tags": ["moorage"],
        "description": "Made from tools/pages/dashboard.py; the page metrics of the docs explains the metrics.",
        "schemaVersion": 36,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Prometheus",
                    "type": "datasource",
                    "query": "prometheus",
                    "hide": 0,
                    "multi": False,
                    "includeAll": False,
                }
            ]
        },
        "panels": [*_panels()],
    }


def _panels() -> Iterator[Json]:
    ids = itertools.count(1)
    at_y = 0
    for title, panels in ROWS:
        yield {
            "type": "row",
            "id": next(ids),
            "title": title,
            "collapsed": False,
            "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": at_y},
            "panels": [],
        }
        at_y += 1
        at_x = height = 0
        for panel in panels:
            if at_x + panel.width > WIDTH:
                at_x, at_y = 0, at_y + height
            height = panel.height
            place = {"h": panel.height, "w": panel.width, "x": at_x, "y": at_y}
            yield _panel(panel, next(ids), place)
            at_x += panel.width
        at_y += height


def _panel(panel: Panel, number: int, place: Json) -> Json:
    is_table = panel.kind == "table"
    return {
        "type": panel.kind,
        "id": number,
        "title": panel.title,
        "description": panel.about,
        "datasource": DATASOURCE,
        "gridPos": place,
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": DATASOURCE,
                "expr": query,
                "legendFormat": legend or "__auto",
                "instant": is_table or panel.kind == "stat",
                "range": not (is_table or panel.kind == "stat"),
                "format": "table" if is_table else "time_series",
            }
            for at, (query, legend) in enumerate(panel.queries.items())
        ],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _options(panel.kind),
    }


def _defaults(panel: Panel) -> Json:
    steps: list[Json] = [{"color": "green", "value": None}]
    if panel.warns_at is not None:
        steps.append({"color": "orange", "value": panel.warns_at})
    if panel.alarms_at is not None:
        steps.append({"color": "red", "value": panel.alarms_at})
    defaults: Json = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.kind == "timeseries":
        drawn: Json = {"lineWidth": 1, "fillOpacity": 10, "showPoints": "never"}
        if panel.stacks:
            drawn |= {"stacking": {"mode": "normal", "group": "A"}, "fillOpacity": 40}
        defaults |= {"custom": drawn, "min": 0}
    return defaults


def _options(kind: str) -> Json:
    match kind:
        case "stat":
            return {
                "reduceOptions": {"calcs": ["lastNotNull"], "values": False},
                "colorMode": "background",
                "graphMode": "none",
            }
        case "table":
            return {"showHeader": True}
        case _:
            return {
                "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
                "tooltip": {"mode": "multi", "sort": "desc"},
            }
