"""The details that a row has of an instance: which size counts, and when its hosts were chosen."""

import pytest
from msgspec import structs

from bus.messages.build import BuildInstance, InstanceDetails, Size
from engine.flavors import Flavor, FlavorPassedOver
from engine.inventories import GroupId, ServerGroup
from engine.requests import Alternative, InstanceSpec
from scheduler_worker.core.instances.history import booted_size, details_of, encoded
from tests.contracts.placement_orders import an_id
from tests.unit.scheduler.test_moves_at_api_level import a_row

SMALL = InstanceSpec(amounts=(("MEMORY_MB", 64), ("VCPU", 1)))


def test_of_several_flavors_the_one_that_was_built_counts() -> None:
    gold, vm = (
        Alternative("gold", Flavor(name="gold"), InstanceSpec(amounts=(("CUSTOM_GOLD", 1),))),
        Alternative("vm", Flavor(name="vm"), SMALL),
    )
    kept = encoded(gold.spec, alternatives=(gold, vm))
    first = structs.replace(a_row(), spec=kept)
    passed = (FlavorPassedOver(flavor="gold", reason="none is free"),)
    second = structs.replace(a_row(passed_over=passed), spec=kept, resized_spec=encoded(SMALL))
    none = structs.replace(a_row("error", passed_over=(*passed, *passed)), spec=kept)

    assert details_of(first).size == booted_size(first) == Size(flavor="gold", amounts={"CUSTOM_GOLD": 1})
    assert booted_size(second) == Size(flavor="vm", amounts={"MEMORY_MB": 64, "VCPU": 1})
    assert booted_size(none) is None


@pytest.mark.parametrize("kept", [b"", b"of another release"])
def test_of_a_row_without_a_readable_spec_no_size_is_told(kept: bytes) -> None:
    row = structs.replace(a_row(), spec=kept)
    assert details_of(row) == InstanceDetails(id=row.id, accepted_at=row.issued_at)


HIGH = Flavor(name="high", extra_specs={"moor:priority": "9"})
OF_GROUP = ServerGroup(id=GroupId(an_id("group")), policy="affinity")


@pytest.mark.parametrize(
    ("kept", "resized", "told"),
    [
        (encoded(SMALL), b"", (0, None, "")),
        (encoded(SMALL, BuildInstance(priority=-4, flavor=HIGH)), b"", (-4, None, "")),
        (encoded(SMALL, BuildInstance(flavor=HIGH)), b"", (9, None, "")),
        # After a resize, the new flavor has none.
        (encoded(SMALL, BuildInstance(flavor=HIGH)), encoded(SMALL), (0, None, "")),
        (encoded(structs.replace(SMALL, server_group=OF_GROUP)), b"", (0, OF_GROUP.id, "affinity")),
    ],
)
def test_its_priority_and_its_group_are_told(
    kept: bytes, resized: bytes, told: tuple[int, GroupId | None, str]
) -> None:
    details = details_of(structs.replace(a_row(), spec=kept, resized_spec=resized))
    assert (details.priority, details.group, details.policy) == told
