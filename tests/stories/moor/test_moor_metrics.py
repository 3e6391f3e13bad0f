"""`/metrics` of a whole cloud: each metric moves when the thing happens that it counts."""

import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from bus.addresses import broker_at
from bus.message import PLAIN, Parcel
from bus.topology import API
from tests.stories.moor.moor_process import moor, moor_json, started
from tests.waiting import until

pytestmark = pytest.mark.asyncio

# Each cell has two hosts; one host fails every build.
FAULTS = """
spawn_ms = 20.0

[[faults]]
is = "fails_to_build"
hosts = ["harbour-host-00001"]
"""
Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


class Page:
    """The metrics of a running cloud."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def read(self) -> Samples:
        text = (await self._client.get("/metrics")).text
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    async def until(self, name: str, least: float, **labels: str) -> float:
        """Wait until there is a number with these labels that is at least so large."""

        async def seen() -> float | None:
            found = await self.read()
            return max(
                (
                    value
                    for (known, at), value in found.items()
                    if known == name and labels.items() <= dict(at).items()
                ),
                default=None,
            )

        return await until(seen, f"{name} {labels} is {least}", lambda value: value >= least)


@asynccontextmanager
async def a_cloud(*options: str) -> AsyncIterator[tuple[Page, dict[str, str], Path]]:
    with tempfile.TemporaryDirectory(prefix="moor-") as place:
        home = Path(place)
        (home / "faults.toml").write_text(FAULTS)
        environment = {"XDG_STATE_HOME": place}
        arguments = (
            *("up", "--cells", "harbour,island", "--hosts", "2", "--faults", str(home / "faults.toml")),
            *("--health-listen", "127.0.0.1:0", *options),
        )
        async with started(*arguments, **environment) as up:
            url = (await up.until_printed("health is served at")).split()[-1]
            await up.until_printed("ready")
            async with httpx.AsyncClient(base_url=url) as client:
                yield Page(client), environment, home


async def test_what_happens_to_instances_and_hosts_is_counted() -> None:
    async with a_cloud() as (page, environment, home):
        # Each cell has two hosts of 128.
        await page.until("moor_capacity", 256, cell="harbour", **{"class": "VCPU"})
        await page.until("moor_hosts", 2, cell="island", kind="hypervisor", state="up")
        await page.until("moor_cell_up", 1, cell="harbour")
        booted = await moor_json("boot", "--vcpus", "2", "--host", "island-host-00001", **environment)
        (instance,) = booted["instances"]

        await page.until("moor_accept_seconds_count", 1)
        await page.until("moor_choice_seconds_count", 1)
        await page.until("moor_place_seconds_count", 1, cell="island")
        await page.until("moor_boot_seconds_count", 1, cell="island")
        await page.until("moor_host_build_seconds_count", 1, cell="island")
        await page.until("moor_boots_ended_total", 1, cell="island", outcome="active")
        await page.until("moor_requests_total", 1, outcome="accepted")
        await page.until("moor_claims_total", 1, verdict="claimed")
        await page.until("moor_instances", 1, state="active", cell="island")
        await page.until("moor_capacity_used", 2, cell="island", **{"class": "VCPU"})
        await page.until("moor_capacity_open", 254, cell="island", **{"class": "VCPU"})

        await moor("boot", "--vcpus", "1", "--host", "harbour-host-00001", **environment)
        await page.until("moor_attempts_failed_total", 1, cell="harbour", why="host")
        await page.until("moor_boots_ended_total", 1, cell="harbour", outcome="error")

        assert (await moor("boot", "--vcpus", "500", **environment)).code == 1
        await page.until("moor_no_valid_host_total", 1, filter="capacity")
        rejected = await moor("boot", "--vcpus", "1", "--trait", "HW_CPU_NONE", **environment)
        assert rejected.code == 1
        await page.until("moor_requests_total", 1, outcome="rejected")
        waiting = ("boot", "--vcpus", "400", "--wait-for-room", "600", "--no-wait")
        assert (await moor(*waiting, **environment)).code == 0
        await page.until("moor_waiting", 1)
        await page.until("moor_waiting_oldest_seconds", 0.5)

        resized = await moor("resize", instance["id"], "--vcpus", "3", **environment)
        assert resized.code == 0, resized.err
        await page.until("moor_moves_under_way", 1, kind="resize")
        await moor("host", "set", "harbour-host-00002", "draining", "--reason", "a test", **environment)
        await page.until("moor_hosts", 1, cell="harbour", kind="hypervisor", state="draining")

        await _send_what_nobody_can_read(home, API, "build.request.-")
        await page.until("moor_dead_letters", 1, broker="api")
        for queue in (
            "scheduler.requests",
            "placement.claims",
            "conductor.island.work",
            "compute.island.work",
        ):
            await page.until("moor_message_wait_seconds_count", 1, queue=queue)
            await page.until("moor_message_handling_seconds_count", 1, queue=queue)
        await page.until("moor_feed_seconds_count", 1, feed="hear the feed")
        await page.until("moor_question_seconds_count", 1, type="claim")
        await page.until("moor_publish_seconds_count", 1)
        await page.until("moor_burials_waiting", 0, queue="scheduler.requests")


async def _send_what_nobody_can_read(home: Path, exchange: str, key: str) -> None:
    connection = await broker_at(f"unix://{home}/moorage/bus.sock").connect()
    publishing = await connection.open_publishing()
    await publishing.publish(
        Parcel(exchange=exchange, routing_key=key, body=b"not a message", content_type=PLAIN)
    )
    await connection.close()
