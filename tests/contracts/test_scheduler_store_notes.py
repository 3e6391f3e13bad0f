"""Contract of the scheduler's stores: notes of what rows have to say, and events of cells."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from scheduler_worker.core.instances.lifecycle import deleted, heard
from scheduler_worker.core.instances.rows import ERROR, failed
from scheduler_worker.store_sql import OutboxNote, SchedulerStore
from tests.contracts.scheduler_rows import (
    LATER,
    NOON,
    a_placed,
    a_request,
    accept,
    an_active,
    confirm,
    note,
    rows_of,
    save,
    unsaid,
)
from tests.contracts.scheduler_stores import STORES, open_scheduler_store

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture(params=STORES)
async def store(request: pytest.FixtureRequest) -> AsyncIterator[SchedulerStore]:
    async with open_scheduler_store(request.param) as store:
        yield store


async def test_notes_are_read_behind_one_and_until_they_have_so_many_rows(store: SchedulerStore) -> None:
    new = [a_placed(a_request(number)) for number in range(1, 7)]
    rows = [row for each in new for row in each.rows]
    await accept(store, *new)
    first, second, third, fourth = await note(store, rows[1::-1], [rows[2]], rows[3:5], [rows[5]])

    found = [
        OutboxNote(first, tuple(rows[:2])),
        OutboxNote(second, (rows[2],)),
        OutboxNote(third, tuple(rows[3:5])),
        OutboxNote(fourth, (rows[5],)),
    ]
    assert await store.unconfirmed(LATER, None, 100) == found
    assert await store.unconfirmed(LATER, None, 1) == found[:1]
    assert await store.unconfirmed(LATER, None, 3) == found[:2]
    assert await store.unconfirmed(LATER, first, 2) == found[1:3]
    assert await store.unconfirmed(LATER, fourth, 2) == []
    assert await store.unconfirmed(NOON, None, 100) == []


async def test_a_word_that_is_no_news_or_not_of_who_was_placed_is_not_heard_without_looking(
    store: SchedulerStore,
) -> None:
    await accept(store, *(a_placed(a_request(number)) for number in (1, 2, 3, 4)), a_request(5))
    rows = await rows_of(store, 1, 2)
    await save(store, heard(rows[0], an_active(1, sequence=102), LATER), deleted(rows[1], LATER))
    before = await rows_of(store, 1, 2, 3, 4, 5)

    async with store.transaction() as transaction:
        words = [an_active(1), an_active(2), an_active(3, cell="c2"), an_active(4, sequence=2), an_active(5)]
        assert await transaction.apply_events([*words, an_active(6)]) == 0

    assert await rows_of(store, 1, 2, 3, 4, 5) == before


async def test_what_is_unsaid_is_so_until_it_is_confirmed_by_its_sequence(store: SchedulerStore) -> None:
    await accept(store, a_request(1))
    await save(store, failed((await rows_of(store, 1))[0], NOON, reason="no"))
    (before,) = await rows_of(store, 1)
    assert (before.told.state, before.told.sequence, before.unsaid) == (ERROR, 2, True)
    (first,) = await note(store, [before])
    assert await unsaid(store, NOON) == []
    assert await unsaid(store, LATER) == [before]

    await save(store, deleted(before, NOON))
    (row,) = await rows_of(store, 1)
    (second,) = await note(store, [row])
    await confirm(store, first, first)
    assert await store.unconfirmed(LATER, None, 10) == [OutboxNote(second, (row,))]
    assert await rows_of(store, 1) == [row]

    await confirm(store, second, second)
    assert await store.unconfirmed(LATER, None, 10) == []
    assert not (await rows_of(store, 1))[0].unsaid
