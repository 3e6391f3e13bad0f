"""The details that a row has of an instance: which size counts, and when its hosts were chosen."""

from datetime import timedelta

import pytest
from msgspec import structs

from bus.messages.build import FlavorChange, InstancesFound, Size
from engine.flavors import Flavor, FlavorPassedOver
from engine.requests import Alternative, InstanceSpec
from scheduler_worker.core.instances.history import booted_size, details_of, encoded
from scheduler_worker.core.instances.moves import move_ended
from scheduler_worker.core.instances.rows import HostDecision, InstanceRow
from tests.unit.scheduler.test_moves_at_api_level import NOON, a_row, an_end, arrived, is_up
from tests.unit.scheduler.test_resizes import WEB_AMOUNTS, Cloud

SMALL = InstanceSpec(amounts=(("MEMORY_MB", 64), ("VCPU", 1)))


@pytest.mark.asyncio
async def test_a_new_size_counts_from_the_arrival_on_until_the_way_back_begins() -> None:
    here = await Cloud.with_instance()
    assert details_of(await here.row()).size == Size(flavor="web", amounts=WEB_AMOUNTS)
    assert isinstance(await here.resize(FlavorChange(vcpus=4)), InstancesFound)
    moving = await here.row()
    there = arrived(moving)
    larger = Size(flavor="web", amounts={**WEB_AMOUNTS, "VCPU": 4})
    assert there.told.move is not None

    def ended(how: str) -> InstanceRow:
        assert there.told.move is not None
        row = move_ended(
            there, structs.replace(an_end(how), request_id=there.told.move.request_id), NOON, is_up
        )
        assert isinstance(row, InstanceRow)
        return row

    sizes = {
        "on its way": details_of(moving).size,
        "arrived": details_of(there).size,
        "being confirmed": details_of(ended("confirm")).size,
        "on its way back": details_of(ended("revert")).size,
        "confirmed": details_of(arrived(ended("confirm"), "confirmed")).size,
        "back": details_of(arrived(ended("revert"), "reverted", "h1")).size,
    }
    assert {name for name, size in sizes.items() if size == larger} == {
        "arrived",
        "being confirmed",
        "confirmed",
    }
    assert None not in sizes.values()


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


def test_the_times_are_those_of_the_row() -> None:
    booted, moved = NOON + timedelta(seconds=2), NOON + timedelta(hours=3)
    row = structs.replace(
        a_row(),
        decision=HostDecision(booted, 4, 3, "h1", ("h2",)),
        move_decision=HostDecision(moved, 4, 2, "h2", (), what="migrate"),
    )

    details = details_of(row)

    assert (details.accepted_at, details.placed_at, details.move_placed_at) == (NOON, booted, moved)


@pytest.mark.parametrize("kept", [b"", b"of another release"])
def test_of_a_row_without_a_readable_spec_no_size_is_told(kept: bytes) -> None:
    assert details_of(structs.replace(a_row(), spec=kept)).size is None
