"""Shares that a scheduler has chosen for a move, and that the instance's cell has not claimed yet."""

import pytest
from msgspec import structs

from engine.inventories import Choice
from scheduler_worker.requests.moving import UnclaimedShares
from tests.unit.choosing.scheduler_worlds import a_picture, a_state, vcpus
from tests.unit.choosing.test_scheduler_picture import a_share_of, free_of
from tests.unit.scheduler.test_scheduler_instances_hosts import a_row


@pytest.mark.asyncio
async def test_a_share_counts_as_used_until_all_are_dropped() -> None:
    picture = a_picture(a_state("h", vcpus(16)))
    unclaimed = UnclaimedShares(picture)
    row = a_row()

    unclaimed.hold([structs.replace(row, choices=(Choice("h", a_share_of("h", 3)),))])
    held = free_of(picture, "h")
    unclaimed.drop_all()

    assert (held, free_of(picture, "h")) == (13, 16)
