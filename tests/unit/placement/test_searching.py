"""A long search alternates with other work, sees one state of the providers, and ends when no client waits for it."""

import asyncio
from uuid import UUID

import pytest

from bus.errors import Unavailable
from bus.message import ProviderId
from bus.messages.candidates import TooCostly
from bus.messages.placement import InventoryState, ProviderState
from placement_worker import searching
from placement_worker.core.candidates.budget import (
    ALLOWANCE_PER_S,
    ALLOWANCE_S_MAX,
    Budget,
    SearchLimits,
)
from placement_worker.core.candidates.provider_index import ProviderIndex
from placement_worker.replica import ProviderReplica
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
    assert (cut.what, cut.budget, cut.user_ms) == ("steps", limits.barren_steps_max, 0)
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


class Times:
    """The clocks of a searcher. Each look at the CPU clock costs `turn_s`, so each turn takes that long."""

    def __init__(self, turn_s: float = 0.0) -> None:
        self.turn_s = turn_s
        self.now_s = self.spent_s = 0.0

    def cpu_s(self) -> float:
        self.spent_s += self.turn_s
        return self.spent_s

    def clock(self) -> float:
        return self.now_s


async def test_of_many_hard_searches_at_once_one_is_tried_in_each_iteration_of_the_loop() -> None:
    searcher, replica = Searcher(), a_replica()
    steps = 0

    def hard(_: ProviderIndex, budget: Budget) -> None:
        nonlocal steps
        for _step in range(LONG // 1_000):
            steps += 1_000
            budget.spend(1_000)

    asked = [asyncio.ensure_future(searcher.done(replica, hard, f"user-{n % 3}")) for n in range(30)]
    most = 0
    while not all(each.done() for each in asked):
        before = steps
        await asyncio.sleep(0)
        most = max(most, steps - before)
    await asyncio.gather(*asked)

    # One that is tried, and those that take turns.
    assert most <= STEPS_AT_ONCE + 1_000 + searching.TAKING_TURNS_MAX * (STEPS_PER_TURN + 1_000)


async def test_a_users_many_searches_do_not_delay_anothers() -> None:
    searcher, replica = Searcher(), a_replica()
    ended: list[str] = []

    async def ask(user: str, search: searching.Search[object]) -> None:
        await searcher.done(replica, search, user)
        ended.append(user)

    greedy = [asyncio.ensure_future(ask("greedy", looking_again_and_again)) for _ in range(12)]
    await asyncio.sleep(0)
    others = [
        asyncio.ensure_future(ask("quick", lambda index, _: capacity(index))),
        asyncio.ensure_future(ask("slow", looking_again_and_again)),
    ]
    await asyncio.gather(*greedy, *others)

    assert ended[0] == "quick"
    # Two of the other user's were under way, and one more was before it in turn.
    assert ended.index("slow") <= 4


async def test_a_user_that_has_spent_its_cpu_time_is_refused_until_it_fills_again_and_nobody_else_is() -> (
    None
):
    times = Times(turn_s=ALLOWANCE_S_MAX / 20)
    searcher, replica = Searcher(cpu_s=times.cpu_s, clock=times.clock), a_replica()

    cut = await searcher.done(replica, looking_again_and_again, "greedy")
    turns = searcher.turns
    again = await searcher.done(replica, looking_again_and_again, "greedy")

    for refused in (cut, again):
        assert isinstance(refused, TooCostly)
        assert refused.user_ms_max == round(1000 * ALLOWANCE_S_MAX)
        assert refused.user_ms >= refused.user_ms_max
    assert searcher.turns == turns
    assert await searcher.done(replica, lambda index, _: capacity(index), "greedy") == 8
    times.turn_s = 0
    assert await searcher.done(replica, looking_again_and_again, "patient") == {8}
    times.now_s += ALLOWANCE_S_MAX / ALLOWANCE_PER_S / 10
    assert await searcher.done(replica, looking_again_and_again, "greedy") == {8}


async def test_the_tries_of_a_user_that_has_spent_its_cpu_time_are_short() -> None:
    times = Times(turn_s=ALLOWANCE_S_MAX / 20)
    searcher, replica = Searcher(cpu_s=times.cpu_s, clock=times.clock), a_replica()
    await searcher.done(replica, looking_again_and_again, "greedy")
    tried: list[int] = []

    def hard(_: ProviderIndex, budget: Budget) -> None:
        try:
            for _step in range(LONG // 1_000):
                budget.spend(1_000)
        finally:
            tried.append(budget.steps)

    await searcher.done(replica, hard, "greedy")
    await searcher.done(replica, hard, "patient")

    assert tried[0] == STEPS_PER_TURN + 1_000
    assert tried[1] == STEPS_AT_ONCE + 1_000


async def test_tries_count_as_long_searches_do() -> None:
    """Otherwise searches that are given up as soon as they take turns would cost their user nothing."""
    times = Times(turn_s=ALLOWANCE_S_MAX / 4)
    searcher, replica = Searcher(cpu_s=times.cpu_s, clock=times.clock), a_replica()
    for _ in range(4):
        given_up = asyncio.ensure_future(searcher.done(replica, looking_again_and_again, "greedy"))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)

    refused = await searcher.done(replica, looking_again_and_again, "greedy")

    assert isinstance(refused, TooCostly)
    assert refused.user_ms
    assert searcher.turns == 0


async def test_users_whose_allowance_is_full_again_are_forgotten() -> None:
    times = Times()
    allowances = searching.Allowances(times.clock, 1)
    for number in range(1_000):
        allowances.spend(f"user-{number}", 0.01)
        times.now_s += 0.01

    # At a quarter of a second in each second, 10 ms come back in 40.
    assert len(allowances) <= 6


async def test_a_user_may_have_only_some_of_the_searches_that_wait() -> None:
    searcher, replica = Searcher(), a_replica()
    asked = [
        asyncio.ensure_future(searcher.done(replica, looking_again_and_again, "greedy"))
        for _ in range(searching.WAITING_OF_USER_MAX + searching.TAKING_TURNS_MAX + 3)
    ]
    other = asyncio.ensure_future(searcher.done(replica, looking_again_and_again, "other"))
    done = await asyncio.gather(*asked, other, return_exceptions=True)

    assert done[-1] == {8}
    refused = [each for each in done if isinstance(each, Unavailable)]
    assert 0 < len(refused) <= 3
    assert "user 'greedy'" in str(refused[0])
