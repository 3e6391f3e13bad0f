"""deploy/: the dashboard and the alerts, tried on a real Prometheus that watches a real cloud."""

import asyncio
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard, Panel, RowPanel
from grafana_foundation_sdk.models.prometheus import Dataquery

from bus.addresses import broker_at
from tests.contracts.stage import send
from tests.servers.prometheus import PrivatePrometheus, private_prometheus, promtool, rules_at_once
from tests.stories.moor.moor_process import Up, up
from tests.stories.moor.test_moor_metrics import FAULTS, UNREADABLE
from tests.waiting import wait_for
from tools.pages.dashboard import dashboard

DEPLOY = Path(__file__).parents[3] / "deploy"
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
    written = json.loads((DEPLOY / "grafana" / "moorage.json").read_text())
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


@pytest.mark.timeout(240)
async def test_each_query_of_the_dashboard_finds_something_and_alerts_fire_when_there_is_trouble(
    home: Path,
) -> None:
    faults = home / "faults.toml"
    faults.write_text(FAULTS)
    options = ("--hosts", "2", "--nodes", "2", "--health-listen", "127.0.0.1:0", "--faults", str(faults))
    async with up(home, "--cells", "harbour,island", *options) as cloud:
        rules = rules_at_once(yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text()))
        with private_prometheus((cloud.address_of("health").removeprefix("http://"),), rules) as prometheus:

            async def until(is_so: Callable[[], bool], what: str) -> None:
                await asyncio.to_thread(wait_for, is_so, what)

            await until(lambda: bool(prometheus.query("moor_hosts")), "hosts")
            await until(lambda: not prometheus.firing(), "a cloud at rest")
            await _make_trouble(cloud)
            expected = {"MoorageDeadLetters", "MoorageNoValidHost", "MoorageBootsFail"}
            await until(
                lambda: prometheus.firing() >= expected and _without_answer(prometheus) <= EMPTY,
                "dead letters, no host, failed boots; and every query of the dashboard finds something",
            )
            cloud.process.send_signal(signal.SIGKILL)
            await until(lambda: "MoorageWorkerGone" in prometheus.firing(), "the worker is gone")


async def _make_trouble(cloud: Up) -> None:
    booted = await cloud.json("boot", "--vcpus", "1", "--host", "island-host-00001")
    await cloud.says(0, "", "boot", "--flavor", "metal")
    await cloud.says(0, "", "resize", booted["instances"][0]["id"], "--vcpus", "2")
    await cloud.run("boot", "--vcpus", "500", "--count", "20")
    await cloud.run("boot", "--vcpus", "500", "--wait-for-room", "3600", "--no-wait")
    await cloud.run("boot", "--vcpus", "1", "--host", "harbour-host-00001")
    nodes = await cloud.json("node", "list")
    await cloud.run("node", "maintenance", "on", nodes[0]["id"], "--reason", "a test")
    await send(broker_at(cloud.url), UNREADABLE)


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
