"""The row of an instance that its cell built with another flavor than the scheduler chose."""

from datetime import UTC, datetime
from uuid import UUID

from msgspec import structs

from bus.messages.build import BuildInstance, InstanceActive, InstanceState
from engine.flavors import Flavor, FlavorPassedOver, InstanceId, RequestId
from engine.inventories import ConsumerId
from engine.requests import Alternative, InstanceSpec
from scheduler_worker.core.instances.history import decoded, encoded, flavor_of, request_of
from scheduler_worker.core.instances.lifecycle import heard
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


def test_a_better_flavor_that_was_claimed_late_takes_the_worse_ones_away() -> None:
    worse = after(ROW, said(VM.flavor))

    row = after(worse, said(SILVER.flavor, sequence=6))

    assert row.told.flavor == SILVER.flavor
    assert [each.flavor for each in row.told.passed_over] == ["gold"]
    assert decoded(row.current_spec) == SILVER.spec
    best = after(row, said(GOLD.flavor, sequence=7))
    assert (best.told.flavor, best.told.passed_over, best.resized_spec) == (GOLD.flavor, (), b"")
    assert decoded(best.current_spec) == GOLD.spec
