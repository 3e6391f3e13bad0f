"""What becomes of an instance at API level, and of hosts: the rules beside core."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.build import BuildInstance, InstanceActive, InstanceDeleted, InstanceFailed, InstancePlaced
from bus.messages.cell import PlaceInCell, RemoveFromCell
from bus.messages.placement import ReleaseClaim
from engine.flavors import Flavor, InstanceId, RequestId
from engine.hosts import HostState
from engine.inventories import Choice, ProviderId, ResourceAmount, Share
from engine.picture.columns import METRIC_NAMES_MAX, PROFILES_KEPT
from engine.picture.picture import Picture
from scheduler_worker.core.instances.lifecycle import deleted, heard, overdue
from scheduler_worker.core.instances.rows import InstanceRow, accepted, failed, placed
from tests.unit.scheduler.rows_told import Case, Happening, check

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(minutes=10)
HOST = ProviderId(UUID(int=7))
OTHER = ProviderId(UUID(int=8))
INSTANCE = InstanceId(UUID(int=1))


def a_row() -> InstanceRow:
    (row,) = accepted(BuildInstance(request_id=RequestId(UUID(int=9)), name="web"), [INSTANCE], NOON, LATER)
    return row


def an_order(row: InstanceRow) -> PlaceInCell:
    share = Share(host=HOST, amounts=(ResourceAmount(provider=HOST, resource="VCPU", amount=1),))
    return PlaceInCell(
        cell="c1",
        instance=row.id,
        request_id=row.told.request_id,
        sequence=2,
        attempt=1,
        issued_at=NOON,
        ends_by=LATER,
        flavor=Flavor(vcpus=1),
        chosen=Choice(name="h1", share=share),
    )


def a_placed_row() -> InstanceRow:
    row = placed(a_row(), an_order(a_row()), "h1", NOON)
    assert row is not None
    return row


def places(row: InstanceRow) -> InstanceRow | None:
    return placed(row, an_order(row), "h1", NOON)


def fails(row: InstanceRow) -> InstanceRow | None:
    return failed(row, NOON, reason="no valid host")


def deletes(row: InstanceRow) -> InstanceRow | None:
    return deleted(row, NOON)


def at(moment: datetime) -> Happening:
    return lambda row: overdue(row, moment)


def hears(sequence: int, cell: str = "c1", state: str = "active") -> Happening:
    told = structs.replace(a_placed_row().told, sequence=sequence, state=state, host="h2", attempt=2)
    kind = InstanceActive if state == "active" else InstanceDeleted
    return lambda row: heard(row, kind(cell=cell, instance=told), LATER)


CASES: dict[str, Case] = {
    "what is placed says so to its cell and to everybody": (
        a_row(),
        [
            (
                places,
                {
                    "told.state": "placed",
                    "told.cell": "c1",
                    "told.host": "h1",
                    "told.sequence": 2,
                    "messages": [PlaceInCell, InstancePlaced],
                },
            )
        ],
    ),
    "what is deleted lets go of any claim on its way and is not placed": (
        a_row(),
        [
            (deletes, {"messages": [InstanceDeleted, ReleaseClaim]}),
            (places, None),
            (fails, None),
            (deletes, None),
        ],
    ),
    "what is placed does not fail any more": (a_placed_row(), [(fails, None)]),
    "what fails without a cell lets go of any claim on its way": (
        a_row(),
        [(fails, {"messages": [InstanceFailed, ReleaseClaim]})],
    ),
    "what a cell has is deleted by the cell": (
        a_placed_row(),
        [
            (
                deletes,
                {"told.state": "deleting", "told.sequence": 3, "messages": [RemoveFromCell], "numbers": [3]},
            ),
            (hears(105, state="deleted"), {"messages": []}),
        ],
    ),
    "a cell's word counts if it is later and the cell's own": (
        a_placed_row(),
        [
            (
                hears(102),
                {
                    "told.state": "active",
                    "told.host": "h2",
                    "told.attempt": 2,
                    "told.sequence": 102,
                    "messages": [],
                },
            ),
            (hears(101), None),
            (hears(103, cell="c2"), None),
        ],
    ),
    "no cell's word counts about what is in none": (a_row(), [(hears(103), None)]),
    "what is being deleted is not active again and its order is still to be said": (
        a_placed_row(),
        [
            (deletes, {"told.state": "deleting"}),
            (hears(102), {"told.state": "deleting", "told.host": "h2", "messages": [RemoveFromCell]}),
        ],
    ),
    "what was never placed is ended by its deadline": (
        a_row(),
        [
            (at(LATER - timedelta(seconds=1)), None),
            (
                at(LATER),
                {
                    "told.state": "error",
                    "told.cell": "cell0",
                    "told.reason": "not placed within 600 s of its acceptance: its request may be among the dead letters",
                },
            ),
        ],
    ),
    "what was placed is not ended by its deadline": (a_placed_row(), [(at(LATER), None)]),
}


@pytest.mark.parametrize("case", CASES)
def test_what_becomes_of_an_instance_and_of_its_row(case: str) -> None:
    check(CASES[case])


def a_host() -> HostState:
    return HostState(id=HOST, name="h1", cell="c1", up=True, sequence=3)


# Failed builds, and metrics


def test_the_codes_of_profiles_that_no_host_has_any_more_are_given_up() -> None:
    picture = Picture()

    for number in range(2000):
        host = structs.replace(a_host(), hypervisor_type=f"QEMU {number}", sequence=number)
        picture.put_hosts([host, structs.replace(a_host(), id=OTHER, name="h2", hypervisor_type="KVM")])

    assert len(picture.columns.profiles.names) <= PROFILES_KEPT
    told = [picture.columns.profiles.names[code].hypervisor_type for code in picture.columns.profile[:2]]
    assert told == ["QEMU 1999", "KVM"]


def test_columns_of_metrics_are_bounded() -> None:
    picture = Picture()
    picture.put_hosts([a_host()])

    for number in range(METRIC_NAMES_MAX + 50):
        picture.measure(HOST, {f"metric {number}": 1.0})

    assert len(picture.columns.metrics) == METRIC_NAMES_MAX
