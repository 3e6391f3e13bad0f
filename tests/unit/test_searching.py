"""A long search takes turns with everything else, sees one state of the providers, and ends when nobody waits for it."""

import asyncio
from uuid import UUID

import pytest

from bus.errors import Unavailable
from bus.message import ProviderId
from bus.messages.candidates import TooCostly
from bus.messages.placement import InventoryState, ProviderState
from placement_worker import searching
from placement_worker.core.candidates.budget import Budget, SearchLimits
from placement_worker.core.candidates.provider_index import ProviderIndex
from placement_worker.replica import Replica
from placement_worker.searching import STEPS_AT_ONCE, STEPS_PER_TURN, Searcher

pytestmark = pytest.mark.asyncio

HOST = ProviderId(UUID(int=1))
LONG = 5 * STEPS_AT_ONCE


def a_host(total: int, revision: int = 1) -> ProviderState:
    return ProviderState(
        internal=1,
        id=HOST,
        name="host",
        root=HOST,
        revision=revision,
        inventories={"VCPU": InventoryState(total=total)},
    )


def a_replica() -> Replica:
    replica = Replica()
    replica.tell([a_host(8)])
    return replica


def capacity(index: ProviderIndex) -> int:
    return int(index.stocks["VCPU"].capacity[0])


def looking_again_and_again(index: ProviderIndex, budget: Budget) -> set[int]:
    """All that the host's capacity ever was while it looked."""
    seen = set()
    for _ in range(LONG // 1_000):
        budget.spend(1_000)
        seen.add(capacity(index))
    return seen


async def test_what_is_done_at_once_lets_nobody_in_between() -> None:
    searcher = Searcher()

    assert await searcher.done(a_replica(), lambda index, _: capacity(index)) == 8
    assert searcher.turns == 0


async def test_a_long_search_lets_others_run_between_its_turns() -> None:
    searcher, others = Searcher(), []
    search = asyncio.ensure_future(searcher.done(a_replica(), looking_again_and_again))
    while not search.done():
        others.append(searcher.turns)
        await asyncio.sleep(0)

    assert search.result() == {8}
    assert searcher.turns >= LONG // (STEPS_PER_TURN + 1_000) - 1
    assert len(set(others)) >= searcher.turns


async def test_a_long_search_sees_one_state_and_what_is_written_meanwhile_is_there_for_the_next() -> None:
    searcher, replica = Searcher(), a_replica()
    search = asyncio.ensure_future(searcher.done(replica, looking_again_and_again))
    written = 0
    while not search.done():
        written += 1
        replica.tell([a_host(8 + written, revision=1 + written)])
        await asyncio.sleep(0)

    seen = search.result()
    assert isinstance(seen, set)
    assert len(seen) == 1
    assert written > 3
    assert await searcher.done(replica, lambda index, _: capacity(index)) == 8 + written


async def test_once_nobody_reads_a_write_copies_nothing() -> None:
    searcher, replica = Searcher(), a_replica()
    await searcher.done(replica, looking_again_and_again)
    before = replica.index

    replica.tell([a_host(9, revision=2)])

    assert replica.index is before


async def test_a_copy_that_was_written_on_leaves_what_was_read_as_it_was() -> None:
    replica = a_replica()
    with replica.reading() as index:
        replica.tell([a_host(9, revision=2)])
        replica.keep_only(set())

        assert capacity(index) == 8
        assert "VCPU" not in replica.index.stocks


async def test_what_is_cut_is_told_with_its_numbers() -> None:
    searcher = Searcher(SearchLimits(steps_max=LONG // 2))

    cut = await searcher.done(a_replica(), looking_again_and_again)

    assert cut == TooCostly(what="steps", spent=LONG // 2 + 1_000, budget=LONG // 2)


async def test_a_search_for_which_nobody_waits_any_more_ends_and_gives_its_turns_to_others() -> None:
    searcher, ended = Searcher(), []

    def never_done(_: ProviderIndex, budget: Budget) -> None:
        try:
            while True:
                budget.spend(1_000)
        finally:
            ended.append(budget.steps)

    forgotten = [asyncio.ensure_future(searcher.done(a_replica(), never_done)) for _ in range(4)]
    while searcher.turns < 10:
        await asyncio.sleep(0)
    for one in forgotten:
        one.cancel()
    await asyncio.gather(*forgotten, return_exceptions=True)

    # Each began once at once; and two of them took turns.
    assert len(ended) == 4 + searching.TAKING_TURNS_MAX
    assert await searcher.done(a_replica(), looking_again_and_again) == {8}


async def test_beyond_so_many_that_wait_others_are_told_to_come_again() -> None:
    searcher, replica = Searcher(waiting_max=1), a_replica()
    asked = [
        asyncio.ensure_future(searcher.done(replica, looking_again_and_again))
        for _ in range(searching.TAKING_TURNS_MAX + 2)
    ]
    done = await asyncio.gather(*asked, return_exceptions=True)

    assert done[:-1] == [{8}] * (searching.TAKING_TURNS_MAX + 1)
    assert isinstance(done[-1], Unavailable)


async def test_what_a_search_raises_is_raised_where_it_was_asked_for() -> None:
    def wrong(_: ProviderIndex, budget: Budget) -> None:
        for _step in range(LONG // 1_000):
            budget.spend(1_000)
        raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        await Searcher().done(a_replica(), wrong)
