"""`/metrics` of a whole cloud: each metric moves when the thing happens that it counts; and one trace leads from the request to the active instance,
sent by OTLP to a receiver, through every worker that had a part in it.
"""

from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from bus.addresses import broker_at
from bus.message import PLAIN, Parcel
from bus.topology import API
from tests.contracts.stage import send
from tests.stories.moor.moor_process import moor_json, up
from tests.waiting import until

# Each cell has two hosts; one host fails every build.
FAULTS = """
spawn_ms = 20.0

[[faults]]
is = "fails_to_build"
hosts = ["harbour-host-00001"]
"""
UNREADABLE = Parcel(API, "build.request.-", b"not a message", content_type=PLAIN)
# Each host has 128 processors.
AT_REST = """
moor_capacity{cell="harbour",class="VCPU"} 256
moor_hosts{cell="island",kind="hypervisor",state="up"} 2
moor_cell_up{cell="harbour"} 1
"""
BOOTED = """
moor_accept_seconds_count 1
moor_choice_seconds_count 1
moor_place_seconds_count{cell="island"} 1
moor_boot_seconds_count{cell="island"} 1
moor_host_build_seconds_count{cell="island"} 1
moor_boots_ended_total{cell="island",outcome="active"} 1
moor_requests_total{outcome="accepted"} 1
moor_claims_total{verdict="claimed"} 1
moor_instances{state="active",cell="island"} 1
moor_capacity_used{cell="island",class="VCPU"} 2
moor_capacity_open{cell="island",class="VCPU"} 254
"""
NOT_BOOTED = """
moor_attempts_failed_total{cell="harbour",why="host"} 1
moor_boots_ended_total{cell="harbour",outcome="error"} 1
moor_no_valid_host_total{filter="capacity"} 1
moor_requests_total{outcome="rejected"} 1
moor_waiting 1
moor_waiting_oldest_seconds 0.5
"""
AFTERWARDS = """
moor_moves_under_way{kind="resize"} 1
moor_hosts{cell="harbour",kind="hypervisor",state="draining"} 1
moor_dead_letters{broker="api"} 1
moor_message_wait_seconds_count{queue="scheduler.requests"} 1
moor_message_wait_seconds_count{queue="placement.claims"} 1
moor_message_wait_seconds_count{queue="conductor.island.work"} 1
moor_message_wait_seconds_count{queue="compute.island.work"} 1
moor_message_handling_seconds_count{queue="scheduler.requests"} 1
moor_message_handling_seconds_count{queue="placement.claims"} 1
moor_message_handling_seconds_count{queue="conductor.island.work"} 1
moor_message_handling_seconds_count{queue="compute.island.work"} 1
moor_feed_seconds_count{feed="hear the feed"} 1
moor_question_seconds_count{type="claim"} 1
moor_publish_seconds_count 1
moor_burials_waiting{queue="scheduler.requests"} 0
"""


def samples_of(page: str) -> Iterator[Sample]:
    for family in text_string_to_metric_families(page):
        yield from family.samples


async def until_on_page(client: httpx.AsyncClient, samples: str) -> None:
    """Wait until each of these samples is there, maybe with more labels, and its value at least so large."""
    for least in samples_of(samples):

        async def is_there(least: Sample = least) -> bool:
            return any(
                found.name == least.name
                and least.labels.items() <= found.labels.items()
                and found.value >= least.value
                for found in samples_of((await client.get("/metrics")).text)
            )

        await until(is_there, least)


async def test_what_happens_to_instances_and_hosts_is_counted(home: Path) -> None:
    faults = home / "faults.toml"
    faults.write_text(FAULTS)
    options = ("--cells", "harbour,island", "--hosts", "2", "--faults", str(faults))
    async with (
        up(home, *options, "--health-listen", "127.0.0.1:0") as cloud,
        httpx.AsyncClient(base_url=cloud.address_of("health")) as client,
    ):
        await until_on_page(client, AT_REST)
        booted = await cloud.json("boot", "--vcpus", "2", "--host", "island-host-00001")
        await until_on_page(client, BOOTED)
        await cloud.says(1, "", "boot", "--vcpus", "1", "--host", "harbour-host-00001")
        await cloud.says(1, "", "boot", "--vcpus", "500")
        await cloud.says(1, "", "boot", "--vcpus", "1", "--trait", "HW_CPU_NONE")
        await cloud.says(0, "", "boot", "--vcpus", "400", "--wait-for-room", "600", "--no-wait")
        await until_on_page(client, NOT_BOOTED)
        await cloud.says(0, "", "resize", booted["instances"][0]["id"], "--vcpus", "3")
        await cloud.says(0, "", "host", "set", "harbour-host-00002", "draining", "--reason", "a test")
        await send(broker_at(cloud.url), UNREADABLE)
        await until_on_page(client, AFTERWARDS)


# The way of a boot: queue and type of each message.
WAY = [
    "scheduler.requests build.request",
    "placement.claims claim",
    "conductor.harbour.work place",
    "compute.harbour.work spawn",
    "conductor.harbour.work spawned",
    "scheduler.events instance.active",
]


class Receiver:
    """An OTLP receiver: it keeps the spans that it gets."""

    def __init__(self) -> None:
        spans: list[Any] = []
        self.services: set[str] = set()
        services = self.services

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.path == "/v1/traces":
                    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                        named = {each.key: each.value.string_value for each in resource.resource.attributes}
                        services.add(named["service.name"])
                        spans.extend(span for scope in resource.scope_spans for span in scope.spans)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._spans = spans
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    async def until_active(self) -> list[Any]:
        """The spans of a whole boot."""

        def found() -> list[Any] | None:
            for id_ in [span.trace_id for span in [*self._spans] if span.name == WAY[-1]]:
                spans = [each for each in [*self._spans] if each.trace_id == id_]
                if {*WAY} <= {each.name for each in spans}:
                    return spans
            return None

        return await until(found, "the spans of a boot")


def root_of(spans: Sequence[Any]) -> Any:
    """The only span whose parent is none of these; every other one leads to it."""
    ids = {span.span_id for span in spans}
    (root,) = [span for span in spans if span.parent_span_id not in ids]
    return root


async def test_one_trace_leads_from_the_request_to_the_active_instance(home: Path) -> None:
    receiver = Receiver()
    traced = {"MOOR_TRACES_URL": receiver.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    async with up(home, "--cells", "harbour", "--hosts", "2", **traced):
        booted = await moor_json("boot", "--vcpus", "1", XDG_STATE_HOME=str(home))
        spans = await receiver.until_active()
    receiver.close()

    root = root_of(spans)
    assert (root.name, root.parent_span_id) == (WAY[0], b"")
    begun = {span.name: span.start_time_unix_nano for span in spans}
    assert sorted(WAY, key=lambda name: begun[name]) == WAY
    assert all(span.end_time_unix_nano >= span.start_time_unix_nano for span in spans)
    facts = {each.key: each.value.string_value for span in spans for each in span.attributes}
    assert facts["moorage.request_id"] == booted["request_id"]
    assert facts["moorage.instance"] == booted["instances"][0]["id"]
    assert receiver.services == {"moor up"}
