"""Traces: one from the request to the active instance, sent by OTLP to a receiver, through every worker that had a part in it."""

import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.stories.moor.moor_process import moor_json, started
from tests.waiting import until

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

    async def until_active(self, trace: str = "") -> list[Any]:
        """The spans of a whole boot: of the trace with this id, or of any."""

        def found() -> list[Any] | None:
            ends = [span for span in [*self._spans] if span.name == WAY[-1]]
            for id_ in [span.trace_id for span in ends if trace in ("", span.trace_id.hex())]:
                spans = [each for each in [*self._spans] if each.trace_id == id_]
                if {*WAY} <= {each.name for each in spans}:
                    return spans
            return None

        return await until(found, "the spans of a boot")


@asynccontextmanager
async def a_traced_cloud(**settings: str) -> AsyncIterator[tuple[Receiver, dict[str, str]]]:
    receiver = Receiver()
    with tempfile.TemporaryDirectory(prefix="moor-") as home:
        environment = {"XDG_STATE_HOME": home}
        traced = {"MOOR_TRACES_URL": receiver.url, "OTEL_BSP_SCHEDULE_DELAY": "100", **settings}
        async with started("up", "--cells", "harbour", "--hosts", "2", **environment, **traced) as up:
            await up.until_printed("ready")
            yield receiver, environment
    receiver.close()


def root_of(spans: Sequence[Any]) -> Any:
    """The only span whose parent is none of these; every other one leads to it."""
    ids = {span.span_id for span in spans}
    (root,) = [span for span in spans if span.parent_span_id not in ids]
    return root


@pytest.mark.asyncio
async def test_one_trace_leads_from_the_request_to_the_active_instance() -> None:
    async with a_traced_cloud() as (receiver, environment):
        booted = await moor_json("boot", "--vcpus", "1", **environment)
        spans = await receiver.until_active()

        root = root_of(spans)
        assert (root.name, root.parent_span_id) == (WAY[0], b"")
        begun = {span.name: span.start_time_unix_nano for span in spans}
        assert sorted(WAY, key=lambda name: begun[name]) == WAY
        assert all(span.end_time_unix_nano >= span.start_time_unix_nano for span in spans)
        facts = {each.key: each.value.string_value for span in spans for each in span.attributes}
        assert facts["moorage.request_id"] == booted["request_id"]
        assert facts["moorage.instance"] == booted["instances"][0]["id"]
        assert receiver.services == {"moor up"}
