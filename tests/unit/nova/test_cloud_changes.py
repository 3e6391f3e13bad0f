"""Nova's notifications are read and applied: of each thing the newest counts, and whatever else comes changes nothing."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from engine.inventories import AggregateId, ProviderId
from nova_bridge.cloud import (
    AggregateHeard,
    CloudCell,
    ComputeService,
    Heard,
    HeardCloud,
    NotHeard,
    NovaCloud,
    ServiceHeard,
    ServicesRead,
    after_read,
    hear,
    read_notification,
    with_services,
)
from nova_bridge.selection import ComputeNode

NOON = datetime(2026, 11, 25, 12, tzinfo=UTC)
CELL = UUID(int=7)
SERVICE, NODE = UUID(int=1), ProviderId(UUID(int=2))
AGGREGATE = AggregateId(UUID(int=3))


def service(**changes: object) -> ComputeService:
    return structs.replace(ComputeService(id=SERVICE, host="h1", is_up=True), **changes)


def a_cloud(**changes: object) -> NovaCloud:
    cloud = NovaCloud(
        nodes={NODE: ComputeNode(id=NODE, service="h1", name="n1", cell=CELL, zone="nova")},
        services={SERVICE: service()},
        cells={CELL: CloudCell(CELL, "cell1")},
    )
    return structs.replace(cloud, **changes)


def body(event: str, kind: str, data: dict[str, Any], at: str = "2026-11-25 12:00:00.000001") -> bytes:
    payload = {
        "nova_object.name": kind,
        "nova_object.namespace": "nova",
        "nova_object.version": "1.1",
        "nova_object.data": data,
    }
    message = {
        "event_type": event,
        "publisher_id": "nova-compute:h1",
        "timestamp": at,
        "priority": "INFO",
        "payload": payload,
    }
    return json.dumps({"oslo.version": "2.0", "oslo.message": json.dumps(message)}).encode()


SERVICE_DATA = {
    "host": "h1",
    "binary": "nova-compute",
    "topic": "compute",
    "report_count": 7,
    "disabled": True,
    "disabled_reason": "new disk",
    "availability_zone": None,
    "last_seen_up": "2026-11-25T11:59:58Z",
    "forced_down": False,
    "version": 66,
    "uuid": str(SERVICE),
}
AGGREGATE_DATA = {
    "id": 1,
    "uuid": str(AGGREGATE),
    "name": "fast",
    "hosts": ["h1"],
    "metadata": {"availability_zone": "z1"},
}


# Reading


def test_an_aggregate_counts_at_the_end_of_its_change() -> None:
    heard = read_notification(body("aggregate.add_host.end", "AggregatePayload", AGGREGATE_DATA))

    assert isinstance(heard, AggregateHeard)
    assert (heard.aggregate.hosts, heard.aggregate.zone, heard.is_deleted) == (("h1",), "z1", False)
    started = read_notification(body("aggregate.add_host.start", "AggregatePayload", AGGREGATE_DATA))
    assert started == NotHeard("aggregate.add_host.start")
    gone = read_notification(body("aggregate.delete.end", "AggregatePayload", AGGREGATE_DATA))
    assert isinstance(gone, AggregateHeard)
    assert gone.is_deleted


@pytest.mark.parametrize(
    ("notification", "event", "reason"),
    [
        (b"{", "", "this is no notification"),
        (b"[]", "", "must be an object"),
        (b'{"oslo.message": "{}"}', "", "event_type is null"),
        (body("instance.create.end", "InstanceCreatePayload", {}), "instance.create.end", ""),
        (body("service.update", "AggregatePayload", SERVICE_DATA), "service.update", "ServiceStatusPayload"),
        (
            body("service.update", "ServiceStatusPayload", SERVICE_DATA | {"uuid": "x"}),
            "service.update",
            "payload.uuid is 'x'",
        ),
        (
            body("service.update", "ServiceStatusPayload", SERVICE_DATA, at="noon"),
            "service.update",
            "timestamp is 'noon'",
        ),
        (body("server_group.create", "ServerGroupPayload", {}), "server_group.create", ""),
    ],
)
def test_whatever_else_comes_is_told_with_its_reason(notification: bytes, event: str, reason: str) -> None:
    found = read_notification(notification)

    assert isinstance(found, NotHeard)
    assert found.event == event
    assert reason in found.reason
    assert bool(found.reason) == bool(reason)


# Applying


def told(minutes: int, **changes: object) -> ServiceHeard:
    return ServiceHeard(at=NOON + timedelta(minutes=minutes), service=service(**changes))


def test_an_older_notification_that_comes_later_changes_nothing() -> None:
    known = hear(HeardCloud(a_cloud()), told(2, is_disabled=True))

    assert known.cloud.services[SERVICE].is_disabled
    assert hear(known, told(1)) is known
    assert not hear(known, told(3)).cloud.services[SERVICE].is_disabled


def test_a_deleted_service_takes_its_nodes_along_and_a_new_one_makes_the_cloud_doubtful() -> None:
    known = hear(HeardCloud(a_cloud()), structs.replace(told(1), is_deleted=True))
    assert (known.cloud.services, known.cloud.nodes, known.doubt) == ({}, {}, "")

    again = hear(known, told(2))
    assert again.cloud.services == {SERVICE: service()}
    assert "h1 is new" in again.doubt


def test_what_was_heard_during_a_reading_is_applied_to_what_was_read() -> None:
    known = after_read(a_cloud(), [told(2, is_disabled=True), told(1)])

    assert known.cloud.services[SERVICE].is_disabled
    services = ServicesRead((service(is_up=False),))
    assert with_services(known, services, []).cloud.services[SERVICE] == service(is_up=False)
    both = with_services(known, services, [told(2, is_disabled=True)]).cloud.services[SERVICE]
    assert (both.is_up, both.is_disabled) == (False, True)


def test_the_services_of_a_silent_cell_are_down_and_their_cell_is_silent() -> None:
    known = with_services(HeardCloud(a_cloud()), ServicesRead(silent=("H1",)), [])

    assert known.cloud.services == {SERVICE: service(is_up=False)}
    assert [each.name for each in known.cloud.silent_cells] == ["cell1"]
    assert known.doubt == ""
    back = with_services(known, ServicesRead((service(),)), [])
    assert back.cloud == a_cloud()


@given(
    st.permutations([told(1), told(2, is_disabled=True), structs.replace(told(3), is_deleted=True), told(4)])
)
def test_in_whatever_order_notifications_come_the_newest_counts(heard: list[Heard]) -> None:
    known = HeardCloud(a_cloud())
    for each in heard:
        known = hear(known, each)

    assert known.cloud.services == {SERVICE: service()}
