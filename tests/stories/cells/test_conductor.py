"""A cell's conductor with a real placement worker and scripted computes, over every pair of broker and store."""

import pytest
from msgspec import structs

from bus.message import LINES, Parcel
from bus.messages.cell import (
    PlaceInCell,
)
from cell_conductor.core.rows import Instance
from tests.contracts.stage import dead_letters, line, send
from tests.stories.cells.cell_setup import (
    BUILD,
    CellSetup,
    cell_setup,
    order_for,
)
from tests.stories.layouts import ONE_BROKER

pytestmark = pytest.mark.asyncio


@ONE_BROKER
async def test_due_rows_are_handled_although_the_clock_was_set_back(bus: str, books: str) -> None:
    async with cell_setup(bus, books) as setup:
        before, after = order_for(1, "h1"), order_for(2, "h1")
        setup.clock.pass_s(3600)
        await another_leaves_due(setup, before)
        await setup.until_row(before, lambda row: row.state_ends_at is None)

        setup.clock.pass_s(-3600)
        await another_leaves_due(setup, after)

        await setup.until_row(after, lambda row: row.state_ends_at is None)


async def another_leaves_due(setup: CellSetup, order: PlaceInCell) -> None:
    """A row of another process that has nothing to publish."""
    now = setup.clock()
    row = Instance(
        id=order.instance, request_id=order.request_id, state="active", changed_at=now, state_ends_at=now
    )
    async with setup.store_of_heir.transaction() as tx:
        await tx.save([row], [], [])


async def test_a_message_about_another_cell_is_dead_lettered_and_its_neighbours_are_not() -> None:
    async with cell_setup("memory", "memory") as setup:
        await setup.hosts(h1=BUILD)
        order = await setup.claim(order_for(1, "h1"))
        stray = structs.replace(order_for(2, "h1"), cell="c2")
        both = b"\n".join((line(stray), line(order)))

        broker = setup.cloud.brokers.api.broker()
        await send(broker, Parcel("moor.cell.c1", "place.c1", both, content_type=LINES, mandatory=True))

        assert (await setup.told(order)).state == "active"
        (letter,) = await dead_letters(broker, 1)
        assert letter.reason == (
            "'place' counts only under the key 'place.c2' of 'moor.cell.c2', and this one came under 'place.c1' of "
            "'moor.cell.c1'"
        )
        assert await setup.store.read([stray.instance]) == []
