"""The row of an instance that its cell built with another flavor than the scheduler chose."""

from datetime import UTC, datetime
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.build import BuildInstance, InstanceActive, InstanceState, Move
from engine.flavors import Flavor, FlavorPassedOver, InstanceId, RequestId
from engine.inventories import ConsumerId
from engine.requests import Alternative, InstanceSpec
from scheduler_worker.core.instances.history import decoded, encoded, flavor_of, request_of
from scheduler_worker.core.instances.lifecycle import heard, is_whole
from scheduler_worker.core.instances.resizes import NOT_BUILT
from scheduler_worker.core.instances.rows import ACTIVE, PLACED, InstanceRow

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
INSTANCE = InstanceId(ConsumerId(UUID(int=1)))
BUILD = BuildInstance(availability_zone="north")


def a_flavor(name: str, **amounts: int) -> Alternative:
    return Alternative(name, Flavor(name=name), InstanceSpec(amounts=tuple(sorted(amounts.items()))))


GOLD, SILVER, VM = (
    a_flavor("gold", CUSTOM_GOLD=1),
    a_flavor("silver", CUSTOM_SILVER=1),
    a_flavor("vm", VCPU=4),
)
TOLD = InstanceState(
    id=INSTANCE,
    request_id=RequestId(UUID(int=2)),
    sequence=2,
    state=PLACED,
    cell="c1",
    host="n1",
    attempt=1,
    flavor=GOLD.flavor,
)
ROW = InstanceRow(told=TOLD, issued_at=NOON, ends_by=NOON, spec=encoded(GOLD.spec, BUILD, (GOLD, SILVER, VM)))


def said(flavor: Flavor | None, sequence: int = 5, **fields: object) -> InstanceActive:
    state = structs.replace(
        TOLD, sequence=sequence, state=ACTIVE, host="h4", attempt=4, changed_at=NOON, flavor=flavor, **fields
    )
    return InstanceActive(cell="c1", instance=state)


def after(row: InstanceRow, event: InstanceActive) -> InstanceRow:
    row_after = heard(row, event, NOON)
    assert row_after is not None
    return row_after


def test_the_row_has_the_needs_of_the_flavor_that_was_built() -> None:
    row = after(ROW, said(VM.flavor))

    assert row.told.flavor == VM.flavor
    assert row.told.passed_over == (
        FlavorPassedOver(flavor="gold", reason=NOT_BUILT),
        FlavorPassedOver(flavor="silver", reason=NOT_BUILT),
    )
    assert decoded(row.current_spec) == VM.spec
    assert request_of(row.current_spec) == BUILD
    # A resize counts from it.
    assert flavor_of(row.current_spec) == VM.flavor


def test_what_the_scheduler_passed_over_stays_before_it() -> None:
    first = FlavorPassedOver(flavor="gold", reason="no valid host")
    told = structs.replace(TOLD, flavor=SILVER.flavor, passed_over=(first,))

    row = after(structs.replace(ROW, told=told), said(VM.flavor))

    assert [(each.flavor, each.reason) for each in row.told.passed_over] == [
        ("gold", "no valid host"),
        ("silver", NOT_BUILT),
    ]


@pytest.mark.parametrize("flavor", [GOLD.flavor, None])
def test_the_flavor_that_was_chosen_changes_nothing(flavor: Flavor | None) -> None:
    row = after(ROW, said(flavor))

    assert (row.told.flavor, row.told.passed_over, row.resized_spec) == (GOLD.flavor, (), b"")


def test_a_confirmed_resize_counts_more_than_the_request() -> None:
    built = after(ROW, said(VM.flavor))
    large = InstanceSpec(amounts=(("VCPU", 8),))
    moving = structs.replace(built, next_spec=encoded(large, BUILD))
    move = Move(
        request_id=RequestId(UUID(int=3)),
        number=6,
        kind="resize",
        source="h4",
        ends_by=NOON,
        outcome="confirmed",
    )

    row = after(moving, said(Flavor(name="large"), sequence=9, move=move))

    assert decoded(row.current_spec) == large
    assert row.told.flavor == Flavor(name="large")
    # The flavor that the request prefers to both was passed over still.
    assert [each.flavor for each in row.told.passed_over] == ["gold", "silver"]


def test_an_event_that_tells_a_flavor_is_compared_with_its_row() -> None:
    assert not is_whole(said(GOLD.flavor))
    assert is_whole(said(None))


def test_a_better_flavor_that_was_claimed_late_takes_the_worse_ones_away() -> None:
    worse = after(ROW, said(VM.flavor))

    row = after(worse, said(SILVER.flavor, sequence=6))

    assert row.told.flavor == SILVER.flavor
    assert [each.flavor for each in row.told.passed_over] == ["gold"]
    assert decoded(row.current_spec) == SILVER.spec
    best = after(row, said(GOLD.flavor, sequence=7))
    assert (best.told.flavor, best.told.passed_over, best.resized_spec) == (GOLD.flavor, (), b"")
    assert decoded(best.current_spec) == GOLD.spec
