"""A cell's conductor with a real placement worker and scripted computes, over every pair of broker and store."""

import pytest
from msgspec import structs

from bus.message import LINES, Parcel
from bus.messages.cell import (
    PlaceInCell,
)
from cell_conductor.core.rows import Instance
from tests.contracts.stage import dead_letters, line, send, until
from tests.stories.cells.cell_setup import (
    BUILD,
    FAIL,
    SILENT,
    CellSetup,
    cell_setup,
    destroyed,
    order_for,
    provider,
    removal,
    spawned,
)
from tests.stories.layouts import ONE_BROKER

pytestmark = pytest.mark.asyncio


@ONE_BROKER
async def test_an_instance_that_is_placed_becomes_active(bus: str, books: str) -> None:
    async with cell_setup(bus, books) as setup:
        await setup.hosts(h1=BUILD)
        order = order_for(1, "h1")

        await setup.place(order)

        end = await setup.told(order)
        assert (end.state, end.host, end.attempt, end.cell) == ("active", "h1", 1, "c1")
        assert await setup.used() == {"h1": 1}


@ONE_BROKER
async def test_a_host_that_fails_leads_to_the_alternate(bus: str, books: str) -> None:
    async with cell_setup(bus, books) as setup:
        await setup.hosts(h1=FAIL, h2=BUILD)
        order = order_for(1, "h1", "h2")

        await setup.place(order)

        end = await setup.told(order)
        assert (end.state, end.host, end.attempt) == ("active", "h2", 2)
        assert [(each.attempt, each.host, each.reason) for each in end.failures] == [(1, "h1", "no image")]
        assert await setup.used() == {"h1": 0, "h2": 1}


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
async def test_without_a_remaining_alternate_every_reason_is_reported_and_nothing_is_held(
    bus: str, books: str
) -> None:
    async with cell_setup(bus, books) as setup:
        await setup.hosts(h1=FAIL, h2=BUILD, h3=FAIL)
        # Nothing else fits on the second.
        await setup.claim(order_for(9, "h2", vcpu=4))
        order = order_for(1, "h1", "h2", "h3")

        await setup.place(order)

        end = await setup.told(order)
        assert end.state == "error"
        assert [(each.attempt, each.host) for each in end.failures] == [(1, "h1"), (2, "h2"), (2, "h3")]
        assert end.failures[1].reason == f"does not fit: VCPU of {provider('h2')} asked 1, free 0"
        await setup.until_used(h1=0, h2=4, h3=0)


@ONE_BROKER
async def test_the_share_of_a_silent_host_is_held_until_it_has_destroyed(bus: str, books: str) -> None:
    async with cell_setup(bus, books) as setup:
        await setup.hosts(h1=SILENT, h2=BUILD)
        order = order_for(1, "h1", "h2")
        await setup.place(order)
        await until(lambda: len(setup.computes.spawns) == 1)

        setup.clock.pass_s(61)

        end = await setup.told(order)
        assert (end.state, end.host, end.attempt) == ("active", "h2", 2)
        assert end.failures[0].reason == "no message from the host within 60 s"
        await until(lambda: len(setup.computes.destroys) == 1)
        assert await setup.used() == {"h1": 1, "h2": 1}
        # The host was only slow: its instance must be destroyed, and that order was sent before.
        await setup.say(spawned(setup.computes.spawns[0]))
        await until(lambda: len(setup.computes.destroys) == 2)
        assert await setup.used() == {"h1": 1, "h2": 1}

        await setup.say(destroyed(setup.computes.destroys[0]), destroyed(setup.computes.destroys[1]))

        await setup.until_used(h1=0, h2=1)
        assert setup.ends(order) == ["active"]
        assert {(each.attempt, each.host) for each in setup.computes.destroys} == {(1, provider("h1"))}


@ONE_BROKER
async def test_a_silent_host_without_alternates_keeps_the_share_and_the_request_ends(
    bus: str, books: str
) -> None:
    async with cell_setup(bus, books) as setup:
        await setup.hosts(h1=SILENT)
        order = order_for(1, "h1", ends_in_s=30)
        await setup.place(order)
        await until(lambda: len(setup.computes.spawns) == 1)

        # The test's clock was stopped before the order was created; on a busy machine that may be seconds earlier.
        setup.clock.pass_s(50)

        end = await setup.told(order)
        assert (end.state, end.reason) == ("error", "the time of the request is up")
        assert await setup.used() == {"h1": 1}
        await until(lambda: len(setup.computes.destroys) == 1)
        await setup.say(destroyed(setup.computes.destroys[0]))
        await setup.until_used(h1=0)
        assert setup.ends(order) == ["error"]


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
async def test_an_instance_removed_before_it_is_placed_is_never_built(bus: str, books: str) -> None:
    async with cell_setup(bus, books) as setup:
        await setup.hosts(h1=BUILD)
        order = await setup.claim(order_for(1, "h1"))
        await setup.say(removal(order))
        await setup.until_row(order, lambda row: row.state == "deleting")

        await setup.say(order)

        assert (await setup.told(order)).state == "deleted"
        await setup.until_used(h1=0)
        assert setup.computes.spawns == []


@ONE_BROKER
async def test_an_instance_removed_during_its_build_is_destroyed_first(bus: str, books: str) -> None:
    async with cell_setup(bus, books) as setup:
        await setup.hosts(h1=SILENT)
        order = order_for(1, "h1")
        await setup.place(order)
        await until(lambda: len(setup.computes.spawns) == 1)

        await setup.say(removal(order))

        await until(lambda: len(setup.computes.destroys) == 1)
        assert await setup.used() == {"h1": 1}
        assert setup.heard == []
        await setup.say(destroyed(setup.computes.destroys[0]))
        await setup.told(order)
        await setup.until_used(h1=0)
        assert setup.ends(order) == ["deleted"]


@ONE_BROKER
async def test_an_active_instance_is_removed(bus: str, books: str) -> None:
    async with cell_setup(bus, books) as setup:
        await setup.hosts(h1=BUILD)
        order = order_for(1, "h1")
        await setup.place(order)
        await setup.told(order)

        await setup.say(removal(order), removal(order))

        await setup.told_deleted(order)
        await setup.until_used(h1=0)
        await setup.say(removal(order))
        assert setup.ends(order) == ["active", "deleted"]


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
