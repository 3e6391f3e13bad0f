"""A long search alternates with other work, sees one state of the providers, and ends when no client waits for it."""

import asyncio
from uuid import UUID

import pytest

from engine.candidates.budget import Budget, SearchLimits
from engine.candidates.provider_index import ProviderIndex
from engine.inventories import InventoryState, ProviderId, ProviderState
from engine.refusals import TooCostly
from kit.errors import Unavailable
from placement_worker import candidates
from placement_worker.candidates import STEPS_AT_ONCE, STEPS_PER_TURN, Searcher
from placement_worker.view import ProviderReplica

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


def a_replica() -> ProviderReplica:
    replica = ProviderReplica()
    replica.merge([a_host(8)])
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
        replica.merge([a_host(8 + written, revision=1 + written)])
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

    replica.merge([a_host(9, revision=2)])

    assert replica.index is before


async def test_a_write_to_a_copy_leaves_the_readers_state_unchanged() -> None:
    replica = a_replica()
    with replica.reading() as index:
        replica.merge([a_host(9, revision=2)])
        replica.end_reading_of_all(set(), replica.known_now())

        assert capacity(index) == 8
        assert "VCPU" not in replica.index.stocks


async def test_a_cut_search_reports_its_numbers() -> None:
    searcher = Searcher(SearchLimits(steps_max=LONG // 2))

    cut = await searcher.done(a_replica(), looking_again_and_again)

    assert cut == TooCostly(what="steps", spent=LONG // 2 + 1_000, budget=LONG // 2)


async def test_a_search_that_finds_nothing_for_long_is_refused_earlier_than_one_that_goes_on_finding() -> (
    None
):
    limits = SearchLimits()
    left = limits.steps_max - 1_000

    def barren(_: ProviderIndex, budget: Budget) -> None:
        for _step in range(left // 1_000):
            budget.spend(1_000)

    def fertile(_: ProviderIndex, budget: Budget) -> int:
        for _step in range(left // 100_000):
            budget.spend(100_000)
            budget.progress()
        return budget.steps

    def writing(_: ProviderIndex, budget: Budget) -> int:
        for _step in range(left // 100_000):
            budget.spend(100_000)
            budget.tell(1)
        return budget.steps

    cut = await Searcher().done(a_replica(), barren)

    assert isinstance(cut, TooCostly)
    assert (cut.what, cut.budget) == ("steps", limits.barren_steps_max)
    assert cut.spent <= limits.barren_steps_max + 1_000 < limits.steps_max // 2
    for search in (fertile, writing):
        assert await Searcher().done(a_replica(), search) == left // 100_000 * 100_000


@pytest.mark.parametrize(
    ("steps_max", "barren_max"), [(1_000, 1_000), (9_000_000, 8_000_000), (10**9, 4 * 10**8)]
)
async def test_an_operator_that_allows_more_steps_allows_more_of_them_without_a_candidate(
    steps_max: int, barren_max: int
) -> None:
    assert SearchLimits(steps_max=steps_max).barren_steps_max == barren_max


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
    assert len(ended) == 4 + candidates.TAKING_TURNS_MAX
    assert await searcher.done(a_replica(), looking_again_and_again) == {8}


async def test_beyond_the_limit_of_waiting_searches_clients_are_told_to_retry() -> None:
    searcher, replica = Searcher(waiting_max=1), a_replica()
    asked = [
        asyncio.ensure_future(searcher.done(replica, looking_again_and_again))
        for _ in range(candidates.TAKING_TURNS_MAX + 2)
    ]
    done = await asyncio.gather(*asked, return_exceptions=True)

    assert done[:-1] == [{8}] * (candidates.TAKING_TURNS_MAX + 1)
    assert isinstance(done[-1], Unavailable)


async def test_an_exception_of_a_search_is_raised_in_its_caller() -> None:
    def wrong(_: ProviderIndex, budget: Budget) -> None:
        for _step in range(LONG // 1_000):
            budget.spend(1_000)
        raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        await Searcher().done(a_replica(), wrong)


async def test_of_many_hard_searches_at_once_one_is_tried_in_each_iteration_of_the_loop() -> None:
    searcher, replica = Searcher(), a_replica()
    steps = 0

    def hard(_: ProviderIndex, budget: Budget) -> None:
        nonlocal steps
        for _step in range(LONG // 1_000):
            steps += 1_000
            budget.spend(1_000)

    asked = [asyncio.ensure_future(searcher.done(replica, hard)) for _ in range(30)]
    most = 0
    while not all(each.done() for each in asked):
        before = steps
        await asyncio.sleep(0)
        most = max(most, steps - before)
    await asyncio.gather(*asked)

    # One that is tried, and those that take turns.
    assert most <= STEPS_AT_ONCE + 1_000 + candidates.TAKING_TURNS_MAX * (STEPS_PER_TURN + 1_000)
