"""The choices that a scheduler counts in addition to the books, and when it stops counting them."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import pytest
from msgspec import structs

from bus.memory import MemoryBroker
from bus.message import Message
from bus.messages.build import BuildInstance
from bus.messages.placement import ClaimAnswered
from bus.workers.station import NoAnswer, Station
from engine.flavors import Flavor
from engine.inventories import Choice
from engine.picture.picture import Picture
from engine.refusals import Claimed, DoesNotFit, NoValidHost
from scheduler_worker.claiming.claimer import Claimer
from scheduler_worker.hosts import HostRegistry
from scheduler_worker.replica import Replica
from scheduler_worker.requests.moving import UnclaimedShares
from scheduler_worker.requests.reading import Search
from scheduler_worker.settings import PACE, SchedulerPace
from scheduler_worker.waiting import WaitingSpecs
from tests.contracts.placement_orders import WEB
from tests.plugins import standard_plugins
from tests.unit.choosing.scheduler_worlds import a_picture, a_spec, a_state, vcpus
from tests.unit.choosing.test_scheduler_picture import a_share_of
from tests.unit.scheduler.test_scheduler_instances_hosts import a_row


def a_claimer(
    picture: Picture,
    ask_all: Callable[[Sequence[Message]], Awaitable[Sequence[Message]]],
    make_sure: Callable[[], Awaitable[None]],
    pace: SchedulerPace = PACE,
) -> Claimer:
    plugins = standard_plugins()
    return Claimer(
        picture,
        Replica(
            Station(MemoryBroker().as_user(), "s"),
            picture,
            lambda _: None,
            waiting=WaitingSpecs(picture, plugins),
            page=10,
        ),
        HostRegistry(picture, timedelta(minutes=1), lambda: datetime.now(UTC)),
        ask_all,
        make_sure=make_sure,
        plugins=plugins,
        alternates_max=2,
        chance=random.Random(7),
        clock=lambda: datetime.now(UTC),
        pace=pace,
    )


@pytest.mark.asyncio
async def test_a_choice_that_placement_never_answered_for_counts_no_more() -> None:
    picture = a_picture(a_state("h1"))
    seen: list[int] = []

    async def nobody_answers(_questions: Sequence[Message]) -> Sequence[Message]:
        seen.append(int(picture.columns.holding[0]))
        raise NoAnswer("1 of 1 questions unanswered")

    async def sure() -> None: ...

    claimer = a_claimer(picture, nobody_answers, sure)
    with pytest.raises(NoAnswer):
        await claimer.find_hosts([a_search()])

    assert seen == [1]
    assert picture.columns.holding[0] == 0


@pytest.mark.asyncio
async def test_other_batches_that_claim_without_end_do_not_keep_a_request_for_ever() -> None:
    picture = a_picture(a_state("h1", vcpus(4, used=4)))
    others = ExitStack()
    looks = 0

    async def another_batch_claims() -> None:
        nonlocal looks
        looks += 1
        assert looks < 100, "it goes on for ever"
        others.enter_context(claimer.claiming())
        # Its verdict comes as soon as somebody waits for it.
        asyncio.get_running_loop().call_soon(others.close)

    claimer = a_claimer(picture, nothing_held, another_batch_claims, SchedulerPace(claims_max=5))
    search = a_search()

    await claimer.find_hosts([search])

    assert isinstance(search.outcome, NoValidHost)
    assert looks == 5


@pytest.mark.asyncio
async def test_the_picture_catches_up_again_if_a_claim_was_answered_while_it_caught_up() -> None:
    # Its share counts at once, and what placement had released before it not yet.
    picture = a_picture(a_state("h1", vcpus(4, used=4)))
    looks = 0

    async def look() -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            with claimer.claiming():
                "Another batch's claim is answered meanwhile."

    claimer = a_claimer(picture, nothing_held, look, SchedulerPace(claims_max=5))
    search = a_search()

    await claimer.find_hosts([search])

    assert isinstance(search.outcome, NoValidHost)
    assert looks == 2


@pytest.mark.asyncio
async def test_a_share_that_is_chosen_for_another_while_placement_is_asked_does_not_make_a_no() -> None:
    # Seed 66000087: an alternate was chosen meanwhile. Nobody had claimed it yet, and perhaps nobody ever would.
    picture = a_picture(a_state("h1", vcpus(4, used=4)))
    is_first = True

    async def ask(questions: Sequence[Message]) -> Sequence[Message]:
        nonlocal is_first
        if not is_first:
            return [ClaimAnswered(consumer=WEB, attempt=1, verdict=Claimed()) for _ in questions]
        is_first = False
        picture.apply([a_state("h1", vcpus(4), revision=2)])
        unclaimed.hold([structs.replace(a_row(), choices=(Choice("h1", a_share_of("h1", 4)),))])
        return await nothing_held(questions)

    async def look() -> None:
        unclaimed.drop_all()

    unclaimed = UnclaimedShares(picture)
    claimer = a_claimer(picture, ask, look)
    search = a_search()

    await claimer.find_hosts([search])

    assert not isinstance(search.outcome, NoValidHost)


async def nothing_held(questions: Sequence[Message]) -> Sequence[Message]:
    full = DoesNotFit(shortfalls=())
    return [ClaimAnswered(consumer=WEB, attempt=1, verdict=full) for _ in questions]


def a_search() -> Search:
    row, build = a_row(), BuildInstance(flavor=Flavor(vcpus=1))
    return Search(row.id, row.issued_at, build, a_spec())
