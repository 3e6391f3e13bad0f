"""deploy/: the dashboard and the alerts, tried on a real Prometheus that watches a real cloud."""

import asyncio
import json
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard, Panel, RowPanel
from grafana_foundation_sdk.models.prometheus import Dataquery

from bus.addresses import broker_at
from bus.message import PLAIN, Parcel
from bus.topology import API
from tests.servers.prometheus import PrivatePrometheus, private_prometheus, promtool, rules_at_once
from tests.stories.moor.moor_process import moor, moor_json, started
from tests.waiting import wait_for
from tools.pages.dashboard import dashboard

DEPLOY = Path(__file__).parents[3] / "deploy"
FAULTS = """
spawn_ms = 20.0

[[faults]]
is = "fails_to_build"
hosts = ["harbour-host-00001"]
"""
# Nothing of this kind happens in the cloud below, and its figures are zeros, or none.
EMPTY = {
    "Parts that fail",
    "Conflicts",
    "Put back, and dead letters",
}


def _without_answer(prometheus: PrivatePrometheus) -> set[str]:
    """The panels of which a query finds nothing."""
    return {
        title
        for title, texts in queries().items()
        if not all(prometheus.query(each.replace("$__rate_interval", "1m")) for each in texts)
    }


def queries() -> dict[str, list[str]]:
    """The queries of each panel of the dashboard, by its title."""
    return {
        panel["title"]: [target["expr"] for target in panel["targets"]]
        for panel in dashboard()["panels"]
        if panel["type"] != "row"
    }


def test_the_dashboard_is_the_one_of_the_code_and_grafanas_schema_reads_all_of_it() -> None:
    text = (DEPLOY / "grafana" / "moorage.json").read_text()
    written = json.loads(text)
    assert written == dashboard(), "python -m tools.pages"

    register_default_plugins()
    read = Dashboard.from_json(written)
    panels = [panel for panel in read.panels or () if isinstance(panel, Panel)]
    rows = [panel for panel in read.panels or () if isinstance(panel, RowPanel)]
    assert len(panels) + len(rows) == len(written["panels"])
    for panel in panels:
        assert panel.targets
        assert all(isinstance(target, Dataquery) for target in panel.targets)
    # What Grafana's types do not know is lost when they are written again.
    assert [*_lost(written, json.loads(JSONEncoder().encode(read)))] == []


def test_the_alerts_pass_their_unit_tests_and_each_has_one() -> None:
    place = DEPLOY / "prometheus"
    assert "SUCCESS" in promtool("test", "rules", "alerts_test.yaml", cwd=place)
    assert "SUCCESS" in promtool("check", "config", "prometheus.yaml", cwd=place)
    tested = [each["name"] for each in yaml.safe_load((place / "alerts_test.yaml").read_text())["tests"]]
    assert sorted(tested) == sorted(_alerts())


async def _a_watched_cloud(home: Path) -> None:
    (home / "faults.toml").write_text(FAULTS)
    environment = {"XDG_STATE_HOME": str(home)}
    options = (
        *(
            "up",
            "--cells",
            "harbour,island",
            "--hosts",
            "2",
            "--nodes",
            "2",
            "--health-listen",
            "127.0.0.1:0",
        ),
        *("--faults", str(home / "faults.toml")),
    )
    async with started(*options, **environment) as up:
        address = (await up.until_printed("health is served at")).split()[-1].removeprefix("http://")
        await up.until_printed("ready")
        rules = rules_at_once(yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text()))
        with private_prometheus((address,), rules) as prometheus:
            await asyncio.to_thread(wait_for, lambda: bool(prometheus.query("moor_hosts")), "")
            await asyncio.to_thread(wait_for, lambda: not prometheus.firing(), "a cloud at rest")
            await _make_trouble(home, environment)
            expected = {"MoorageDeadLetters", "MoorageNoValidHost", "MoorageBootsFail"}
            await asyncio.to_thread(
                wait_for,
                lambda: prometheus.firing() >= expected,
                "dead letters, no host, failed boots",
            )
            await asyncio.to_thread(
                wait_for,
                lambda: _without_answer(prometheus) <= EMPTY,
                "every query of the dashboard finds something",
            )
            up.send_signal(signal.SIGKILL)
            await asyncio.to_thread(
                wait_for, lambda: "MoorageWorkerGone" in prometheus.firing(), "the worker is gone"
            )


@pytest.mark.asyncio
@pytest.mark.timeout(240)
async def test_each_query_of_the_dashboard_finds_something_and_alerts_fire_when_there_is_trouble() -> None:
    with tempfile.TemporaryDirectory(prefix="moor-") as place:
        await _a_watched_cloud(Path(place))


async def _make_trouble(home: Path, environment: dict[str, str]) -> None:
    booted = await moor_json("boot", "--vcpus", "1", "--host", "island-host-00001", **environment)
    assert (await moor("boot", "--flavor", "metal", **environment)).code == 0
    resized = await moor("resize", booted["instances"][0]["id"], "--vcpus", "2", **environment)
    assert resized.code == 0, resized.err
    await moor("boot", "--vcpus", "500", "--count", "20", **environment)
    await moor("boot", "--vcpus", "500", "--wait-for-room", "60", "--no-wait", **environment)
    await moor("boot", "--vcpus", "1", "--host", "harbour-host-00001", **environment)
    nodes = await moor_json("node", "list", **environment)
    await moor("node", "maintenance", "on", nodes[0]["id"], "--reason", "a test", **environment)
    connection = await broker_at(f"unix://{home}/moorage/bus.sock").connect()
    publishing = await connection.open_publishing()
    await publishing.publish(
        Parcel(exchange=API, routing_key="build.request.-", body=b"not a message", content_type=PLAIN)
    )
    await connection.close()


def _alerts() -> list[str]:
    groups = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())["groups"]
    return [rule["alert"] for group in groups for rule in group["rules"]]


def _lost(before: Any, after: Any, where: str = "") -> Iterator[str]:
    """What of a document is not in its copy, or is there otherwise."""
    match before, after:
        case dict(), dict():
            for key, value in before.items():
                yield from _lost(value, after.get(key), f"{where}/{key}")
        case list(), list() if len(before) == len(after):
            for at, (one, other) in enumerate(zip(before, after, strict=True)):
                yield from _lost(one, other, f"{where}/{at}")
        case _ if before != after:
            yield f"{where}: {before!r} became {after!r}"
