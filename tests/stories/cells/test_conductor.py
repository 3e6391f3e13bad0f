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
    FAIL,
    CellSetup,
    cell_setup,
    order_for,
    spawned,
)
from tests.stories.layouts import ONE_BROKER

pytestmark = pytest.mark.asyncio


@ONE_BROKER
async def test_an_alternate_that_only_grew_since_it_was_chosen_is_taken_and_one_with_another_trait_is_not(
    bus: str, books: str
) -> None:
    async with cell_setup(bus, books) as setup:
        await setup.hosts(h1=FAIL, h2=BUILD, h3=BUILD)
        order = order_for(1, "h1")
        order = structs.replace(order, alternates=tuple([await setup.seen(name) for name in ("h2", "h3")]))
        await setup.report("h2", vcpu=4, traits=("COMPUTE_NODE",))
        await setup.report("h3", vcpu=8)

        await setup.place(order)
        told = await setup.told(order)

        assert (told.state, told.host) == ("active", "h3")
        reasons = [(each.host, each.reason.split(":")[0]) for each in told.failures]
        assert reasons[1:] == [("h2", "the host has changed since it was chosen")]
        await setup.until_used(h1=0, h2=0, h3=1)


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


@ONE_BROKER
async def test_every_message_sent_three_times_takes_effect_once(bus: str, books: str) -> None:
    async with cell_setup(bus, books) as setup:
        await setup.hosts(h1=FAIL, h2=BUILD)
        orders = [order_for(number, "h1", "h2") for number in range(1, 4)]
        for order in orders:
            await setup.claim(order)

        await setup.say(*orders, *orders, *orders)

        for order in orders:
            end = await setup.told(order)
            assert (end.state, end.host, end.attempt) == ("active", "h2", 2)
        await setup.say(*(spawned(each) for each in setup.computes.spawns if each.attempt == 2), *orders)
        assert await setup.used() == {"h1": 0, "h2": 3}
        assert [setup.ends(order) for order in orders] == [["active"]] * 3
        rows = await setup.store.read([order.instance for order in orders])
        assert [(row.state, row.attempt, len(row.failures)) for row in rows] == [("active", 2, 1)] * 3


async def test_a_message_about_another_cell_is_dead_lettered_and_its_neighbours_are_not() -> None:
    async with cell_setup("memory", "memory") as setup:
        await setup.hosts(h1=BUILD)
        order = await setup.claim(order_for(1, "h1"))
        stray = structs.replace(order_for(2, "h1"), cell="c2")
        both = b"\n".join((line(stray), line(order)))

        await send(setup.broker, Parcel("moor.cell.c1", "place.c1", both, content_type=LINES, mandatory=True))

        assert (await setup.told(order)).state == "active"
        (letter,) = await dead_letters(setup.broker, 1)
        assert letter.reason == (
            "'place' counts only under the key 'place.c2' of 'moor.cell.c2', and this one came under 'place.c1' of "
            "'moor.cell.c1'"
        )
        assert await setup.store.read([stray.instance]) == []
