"""A long search alternates with other work, sees one state of the providers, and ends when no client waits for it."""

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
    """Records every capacity of the host that the search saw."""
    seen = set()
    for _ in range(LONG // 1_000):
        budget.spend(1_000)
        seen.add(capacity(index))
    return seen


async def test_a_short_search_runs_without_a_break() -> None:
    searcher = Searcher()

    assert await searcher.done(a_replica(), lambda index, _: capacity(index)) == 8
    assert searcher.turns == 0


async def test_a_long_search_lets_other_tasks_run_between_its_steps() -> None:
    searcher, others = Searcher(), []
    search = asyncio.ensure_future(searcher.done(a_replica(), looking_again_and_again))
    while not search.done():
        others.append(searcher.turns)
        await asyncio.sleep(0)

    assert search.result() == {8}
    assert searcher.turns >= LONG // (STEPS_PER_TURN + 1_000) - 1
    assert len(set(others)) >= searcher.turns


async def test_a_long_search_sees_one_state_and_the_next_search_sees_the_writes_meanwhile() -> None:
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


async def test_without_readers_a_write_copies_nothing() -> None:
    searcher, replica = Searcher(), a_replica()
    await searcher.done(replica, looking_again_and_again)
    before = replica.index

    replica.tell([a_host(9, revision=2)])

    assert replica.index is before


async def test_a_write_to_a_copy_leaves_the_readers_state_unchanged() -> None:
    replica = a_replica()
    with replica.reading() as index:
        replica.tell([a_host(9, revision=2)])
        replica.keep_only(set())

        assert capacity(index) == 8
        assert "VCPU" not in replica.index.stocks


async def test_a_cut_search_reports_its_numbers() -> None:
    searcher = Searcher(SearchLimits(steps_max=LONG // 2))

    cut = await searcher.done(a_replica(), looking_again_and_again)

    assert cut == TooCostly(what="steps", spent=LONG // 2 + 1_000, budget=LONG // 2)


async def test_a_search_without_a_waiting_client_ends() -> None:
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

    # Each began at once, and two of them alternated.
    assert len(ended) == 4 + searching.TAKING_TURNS_MAX
    assert await searcher.done(a_replica(), looking_again_and_again) == {8}


async def test_beyond_the_limit_of_waiting_searches_clients_are_told_to_retry() -> None:
    searcher, replica = Searcher(waiting_max=1), a_replica()
    asked = [
        asyncio.ensure_future(searcher.done(replica, looking_again_and_again))
        for _ in range(searching.TAKING_TURNS_MAX + 2)
    ]
    done = await asyncio.gather(*asked, return_exceptions=True)

    assert done[:-1] == [{8}] * (searching.TAKING_TURNS_MAX + 1)
    assert isinstance(done[-1], Unavailable)


async def test_an_exception_of_a_search_is_raised_in_its_caller() -> None:
    def wrong(_: ProviderIndex, budget: Budget) -> None:
        for _step in range(LONG // 1_000):
            budget.spend(1_000)
        raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        await Searcher().done(a_replica(), wrong)
