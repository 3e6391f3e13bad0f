"""What is confirmed stays on its row for a while, is not said again meanwhile, and is taken off in the end."""

from datetime import UTC, datetime
from uuid import UUID

import pytest

from bus.handling import Kept
from bus.messages.build import InstanceId, RequestId
from bus.messages.placement import ReleaseClaim
from cell_conductor.clearing import MANY, REST_S, Clearing
from cell_conductor.core.instance import Instance, Pending
from cell_conductor.store import ConductorStore, kept_of
from cell_conductor.store_memory import MemoryConductorStore

pytestmark = pytest.mark.asyncio

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def kept(number: int, sequence: int = 101) -> Kept:
    return kept_of(InstanceId(UUID(int=number)), sequence)


def with_words(number: int, *sequences: int) -> Instance:
    id_ = InstanceId(UUID(int=number))
    word = ReleaseClaim(cell="c1", consumer=id_, attempt=1, issued_at=NOON)
    return Instance(
        id=id_,
        request_id=RequestId(UUID(int=1)),
        state="error",
        changed_at=NOON,
        outbox=tuple(Pending(sequence, NOON, word) for sequence in sequences),
    )


async def save(store: ConductorStore, *rows: Instance) -> None:
    async with store.transaction() as tx:
        await tx.load([row.id for row in rows])
        await tx.save(rows, [])


async def confirm(store: ConductorStore, clearing: Clearing, *said: Kept) -> None:
    async with store.transaction() as tx:
        await clearing.clear(tx, said)


async def on_rows(store: ConductorStore) -> list[Kept]:
    """As the next process would find it."""
    return [each for each, _ in await store.pending()]


async def test_what_is_confirmed_rests_on_its_row_and_is_not_pending() -> None:
    clock, store = Clock(), MemoryConductorStore()
    clearing = Clearing(store, clock)
    await save(store, with_words(1, 101, 102))

    await confirm(store, clearing, kept(1, 101))

    assert await on_rows(store) == [kept(1, 101), kept(1, 102)]
    assert [each for each, _ in await clearing.pending()] == [kept(1, 102)]
    assert not clearing.is_due


async def test_few_that_rest_are_taken_off_when_they_have_rested_for_long() -> None:
    clock, store = Clock(), MemoryConductorStore()
    clearing = Clearing(store, clock)
    await save(store, with_words(1, 101))
    await confirm(store, clearing, kept(1))

    clock.now_s += REST_S * 1.5
    await confirm(store, clearing)
    assert await on_rows(store) == [kept(1)]

    clock.now_s += REST_S * 0.5
    assert clearing.is_due
    await confirm(store, clearing)
    assert await on_rows(store) == []
    assert not clearing.is_due


async def test_of_many_those_are_taken_off_that_have_rested() -> None:
    clock, store = Clock(), MemoryConductorStore()
    clearing = Clearing(store, clock)
    await save(store, *(with_words(number, 101) for number in range(MANY + 1)))
    await confirm(store, clearing, *(kept(number) for number in range(MANY)))
    clock.now_s += REST_S

    await confirm(store, clearing, kept(MANY))

    assert await on_rows(store) == [kept(MANY)]
    assert [each for each, _ in await clearing.pending()] == []


async def test_who_says_more_rests_anew_and_is_cleared_of_all_of_it() -> None:
    clock, store = Clock(), MemoryConductorStore()
    clearing = Clearing(store, clock)
    await save(store, with_words(1, 101, 102))
    await confirm(store, clearing, kept(1, 101))
    clock.now_s += REST_S
    await confirm(store, clearing, kept(1, 102))

    clock.now_s += REST_S
    assert not clearing.is_due
    clock.now_s += REST_S
    await confirm(store, clearing)

    assert await on_rows(store) == []


async def test_what_could_not_be_taken_off_is_said_again() -> None:
    clock, store = Clock(), MemoryConductorStore()
    clearing = Clearing(store, clock)
    await save(store, with_words(1, 101))
    await confirm(store, clearing, kept(1))
    clock.now_s += 2 * REST_S

    async def fail() -> None:
        async with store.transaction() as tx:
            await clearing.clear(tx, [])
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        await fail()

    assert [each for each, _ in await clearing.pending()] == [kept(1)]
