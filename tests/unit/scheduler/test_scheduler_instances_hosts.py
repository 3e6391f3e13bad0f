"""What becomes of an instance at API level, and of hosts: the rules beside core."""

from datetime import datetime, timedelta
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.build import InstanceActive, InstanceDeleted, InstanceFailed, InstancePlaced, Move
from bus.messages.cell import PlaceInCell, RemoveFromCell
from bus.messages.placement import ReleaseClaim
from engine.hosts import HostState
from engine.inventories import ProviderId
from engine.picture.columns import METRIC_NAMES_MAX, PROFILES_KEPT
from engine.picture.picture import Picture
from scheduler_worker.core.instances import lifecycle
from scheduler_worker.core.instances.lifecycle import deleted, heard, overdue
from scheduler_worker.core.instances.rows import InstanceRow, failed, messages_of, placed
from tests.contracts.scheduler_rows import LATER, NOON, a_placed, a_request
from tests.unit.scheduler.rows_told import Case, Happening, check

HOST = ProviderId(UUID(int=7))
OTHER = ProviderId(UUID(int=8))


(ACCEPTED,), (PLACED,) = a_request(1).rows, a_placed(a_request(1)).rows
ORDER = next(each for each in messages_of(PLACED) if isinstance(each, PlaceInCell))


def places(row: InstanceRow) -> InstanceRow | None:
    return placed(row, ORDER, "h7", NOON)


def fails(row: InstanceRow) -> InstanceRow | None:
    return failed(row, NOON, reason="no valid host")


def deletes(row: InstanceRow) -> InstanceRow | None:
    return deleted(row, NOON)


def at(moment: datetime) -> Happening:
    return lambda row: overdue(row, moment)


def hears(sequence: int, cell: str = "c1", state: str = "active") -> Happening:
    told = structs.replace(PLACED.told, sequence=sequence, state=state, host="h2", attempt=2)
    kind = InstanceActive if state == "active" else InstanceDeleted
    return lambda row: heard(row, kind(cell=cell, instance=told), LATER)


CASES: dict[str, Case] = {
    "what is placed says so to its cell and to everybody": (
        ACCEPTED,
        [
            (
                places,
                {
                    "told.state": "placed",
                    "told.cell": "c1",
                    "told.host": "h7",
                    "told.sequence": 2,
                    "messages": [PlaceInCell, InstancePlaced],
                },
            )
        ],
    ),
    "what is deleted lets go of any claim on its way and is not placed": (
        ACCEPTED,
        [
            (deletes, {"messages": [InstanceDeleted, ReleaseClaim]}),
            (places, None),
            (fails, None),
            (deletes, None),
        ],
    ),
    "what is placed does not fail any more": (PLACED, [(fails, None)]),
    "what fails without a cell lets go of any claim on its way": (
        ACCEPTED,
        [(fails, {"messages": [InstanceFailed, ReleaseClaim]})],
    ),
    "what a cell has is deleted by the cell": (
        PLACED,
        [
            (
                deletes,
                {"told.state": "deleting", "told.sequence": 3, "messages": [RemoveFromCell], "numbers": [3]},
            ),
            (hears(105, state="deleted"), {"messages": []}),
        ],
    ),
    "a cell's word counts if it is later and the cell's own": (
        PLACED,
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
    "no cell's word counts about what is in none": (ACCEPTED, [(hears(103), None)]),
    "what is being deleted is not active again and its order is still to be said": (
        PLACED,
        [
            (deletes, {"told.state": "deleting"}),
            (hears(102), {"told.state": "deleting", "told.host": "h2", "messages": [RemoveFromCell]}),
        ],
    ),
    "what was never placed is ended by its deadline": (
        ACCEPTED,
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
    "what was placed is not ended by its deadline": (PLACED, [(at(LATER), None)]),
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


def test_only_what_came_from_another_cloud_and_is_where_it_was_goes_back_there() -> None:
    adopted = structs.replace(PLACED, adopted=True)
    move = Move(
        request_id=PLACED.told.request_id,
        number=3,
        kind="migrate",
        source="h7",
        ends_by=LATER,
        confirm_s=0,
        outcome="confirmed",
    )
    moved = structs.replace(adopted, told=structs.replace(adopted.told, move=move))

    assert [lifecycle.why_not_given_back(each) for each in (PLACED, adopted, moved)] == [
        "it was built here",
        "",
        "it has moved here (migrate)",
    ]
