"""Conductors of one cell when one of them dies, and when two of them compete; and those of two cells on one database."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from operator import not_

import pytest
from msgspec import structs

from bus.message import Message
from bus.messages.build import InstanceDeleted
from bus.messages.cell import (
    PlaceInCell,
)
from bus.workers.connections import Station
from cell_conductor.core.rows import Instance
from cell_conductor.store_sql import ConductorStore
from tests.contracts.sql_stores import LOCKS_AWAITED, a_session, as_owner, migrated_database
from tests.contracts.stage import CELLS
from tests.contracts.stores import open_conductor_stores
from tests.running import closing
from tests.stories.cells.cell_setup import (
    CONDUCTING,
    CellSetup,
    cell_setup,
    order_for,
    removal,
)
from tests.stories.cloud import a_host, cloud
from tests.stories.layouts import ONE_BROKER
from tests.stories.scripted import BUILD, FAIL, SILENT, host_id
from tests.waiting import Clock, until


@ONE_BROKER
async def test_rows_whose_conductor_died_are_taken_over_by_another_when_their_time_is_up(
    bus: str, books: str
) -> None:
    """One waited for placement's answer to a swap, one for a host: both times were in the memory of the dead one."""
    async with cell_setup(bus, books, conducted=False) as setup:
        await setup.hosts(h1=FAIL, h2=BUILD, h3=SILENT)
        swapping = await setup.claim(order_for(1, "h1", "h2", ends_in_s=100_000))
        silent = await setup.claim(order_for(2, "h3", "h2", ends_in_s=100_000))
        asked = asyncio.Event()

        class Unanswered(Station):
            async def ask_all(self, questions: Sequence[Message]) -> list[Message]:
                asked.set()
                await asyncio.Event().wait()
                return await super().ask_all(questions)

        async with setup.conducting(station=Unanswered, killed=True):
            await setup.cloud.send(swapping, silent)
            await asked.wait()
            # Its order has left: another conductor need not send it again.
            await until(lambda: silent.instance in {each.instance for each in setup.computes.spawns})

        async with setup.conducting("heir", heir=True):
            setup.clock.pass_s(61)
            for order in (swapping, silent):
                state = await setup.told(order)
                assert (state.state, state.host, state.attempt) == ("active", "h2", 2)

        built = {
            (each.instance, each.attempt) for each in setup.computes.spawns if each.host == host_id("h2")
        }
        assert built == {(swapping.instance, 2), (silent.instance, 2)}
        assert [setup.ends(order) for order in (swapping, silent)] == [["active"], ["active"]]


@ONE_BROKER
async def test_two_conductors_of_one_cell_do_everything_once_between_them(bus: str, books: str) -> None:
    """They take turns at the queue: the answer about an order of one may come to the other."""
    async with cell_setup(bus, books) as setup:
        async with setup.conducting("other", heir=True):
            await setup.hosts(**{f"bad{number}": FAIL for number in range(4)}, good=BUILD)
            await setup.cloud.report(a_host("good", vcpu=16))
            orders = [
                await setup.claim(order_for(number, f"bad{number % 4}", "good")) for number in range(1, 13)
            ]
            # One by one, so that they do not share a parcel.
            for order in orders:
                await setup.cloud.send(order)
            for order in orders:
                state = await setup.told(order)
                assert (state.state, state.host, state.attempt) == ("active", "good", 2)
            for order in orders[:6]:
                await setup.cloud.send(removal(order), removal(order))
            for order in orders[:6]:
                await setup.told_deleted(order)
            await setup.cloud.until_used(bad0=0, bad1=0, bad2=0, bad3=0, good=6)

        # A message that was sent again is about the same attempt.
        assert len({(each.instance, each.attempt, each.host) for each in setup.computes.spawns}) == 24
        assert [setup.ends(order) for order in orders] == [["active", "deleted"]] * 6 + [["active"]] * 6


@pytest.mark.postgresql
async def test_a_conductor_decides_on_a_row_only_after_the_other_one_that_does() -> None:
    order = removal(order_for(1, "h1"))
    row = Instance(order.instance, order.request_id, "active", changed_at=order.issued_at, sequence=1)
    async with (
        cloud("memory", "memory", scripted=()) as setup,
        setup.listening("instance.deleted.c1") as said,
        migrated_database("postgresql", "cell_conductor") as url,
        closing(ConductorStore(url, "c1"), ConductorStore(url, "c1")) as (ours, theirs),
        a_session(as_owner(url)) as session,
        setup.conductor(ours),
    ):
        async with theirs.transaction() as tx:
            await tx.save([row], [], [])
        async with theirs.transaction() as tx:
            await tx.load([row.id])
            await tx.save([structs.replace(row, sequence=90)], [], [])
            await setup.send(order)
            await until(lambda: session.fetchval(LOCKS_AWAITED), "it waits for the row")
        (deleted,) = await until(lambda: said, "its end is told")

    # Readers drop a state with a lower sequence than one that was told before.
    assert isinstance(deleted, InstanceDeleted)
    assert deleted.instance.sequence > 90


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
async def test_a_cell_forgets_what_has_ended_there_and_nothing_of_another_cell_in_its_database(
    bus: str, books: str
) -> None:
    clock, order = Clock(datetime.now(UTC)), removal(order_for(1, "h1"))
    async with (
        cloud(bus, books, scripted=()) as setup,
        open_conductor_stores(books, CELLS, clock) as stores,
        setup.placement(),
    ):
        for cell, store in zip(CELLS, stores, strict=True):
            async with setup.conductor(store, cell, clock=clock):
                await setup.send(structs.replace(order, cell=cell))
                await until(lambda store=store: store.read([order.instance]), "its end is noted")  # type: ignore[misc]
        ours, theirs = stores

        async def later() -> Sequence[Instance]:
            clock.pass_s(CONDUCTING.kept_after_end_s + 1)
            # With it, it is noted that what was said before has arrived.
            await setup.send(removal(order_for(2, "h1")))
            return await ours.read([order.instance])

        async with setup.conductor(ours, clock=clock):
            await until(later, "it is forgotten", not_)

        assert await theirs.read([order.instance])
