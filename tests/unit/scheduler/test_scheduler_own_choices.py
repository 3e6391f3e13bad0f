"""The choices that a scheduler counts in addition to the books, and when it stops counting them."""

import asyncio
import random
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import pytest

from bus.memory import MemoryBroker
from bus.message import Message
from bus.messages.build import BuildInstance, Flavor, NoValidHost
from bus.messages.placement import ClaimAnswered, DoesNotFit
from bus.workers.asking import NoAnswer
from bus.workers.station import Station
from scheduler_worker.claiming.claimer import Claimer
from scheduler_worker.claiming.search import Search
from scheduler_worker.hosts.registry import HostRegistry
from scheduler_worker.replica.replica import Replica
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.waiting import WaitingSpecs
from tests.contracts.placement_orders import WEB
from tests.plugins import standard_plugins
from tests.unit.choosing.scheduler_worlds import a_picture, a_spec, a_state, vcpus
from tests.unit.scheduler.test_scheduler_instances_hosts import a_row

SETTINGS = SchedulerSettings()


@pytest.mark.asyncio
async def test_a_choice_that_placement_never_answered_for_counts_no_more() -> None:
    picture = a_picture(a_state("h1"))
    registry = HostRegistry(picture, timedelta(minutes=1), lambda: datetime.now(UTC))
    station = Station(MemoryBroker().as_user(), "s")
    replica = Replica(
        station,
        picture,
        lambda _: None,
        waiting=WaitingSpecs(picture, standard_plugins()),
        page=10,
    )
    seen: list[int] = []

    async def nobody_answers(_questions: Sequence[Message]) -> Sequence[Message]:
        seen.append(int(picture.columns.holding[0]))
        raise NoAnswer("1 of 1 questions unanswered")

    async def sure() -> None: ...

    claimer = Claimer(
        picture,
        replica,
        registry,
        nobody_answers,
        make_sure=sure,
        plugins=standard_plugins(),
        settings=SETTINGS,
        chance=random.Random(7),
        clock=lambda: datetime.now(UTC),
    )
    row, build = a_row(), BuildInstance(flavor=Flavor(vcpus=1))
    with pytest.raises(NoAnswer):
        await claimer.find_hosts([Search(row.id, row.issued_at, build, a_spec())])

    assert seen == [1]
    assert picture.columns.holding[0] == 0


@pytest.mark.asyncio
async def test_other_batches_that_claim_without_end_do_not_keep_a_request_for_ever() -> None:
    picture = a_picture(a_state("h1", vcpus(4, used=4)))
    registry = HostRegistry(picture, timedelta(minutes=1), lambda: datetime.now(UTC))
    replica = Replica(
        Station(MemoryBroker().as_user(), "s"),
        picture,
        lambda _: None,
        waiting=WaitingSpecs(picture, standard_plugins()),
        page=10,
    )
    others = ExitStack()
    looks = 0

    async def nothing_held(questions: Sequence[Message]) -> Sequence[Message]:
        full = DoesNotFit(shortfalls=())
        return [ClaimAnswered(consumer=WEB, attempt=1, verdict=full) for _ in questions]

    async def another_batch_claims() -> None:
        nonlocal looks
        looks += 1
        assert looks < 100, "it goes on for ever"
        others.enter_context(claimer.claiming())
        # Its verdict comes as soon as somebody waits for it.
        asyncio.get_running_loop().call_soon(others.close)

    claimer = Claimer(
        picture,
        replica,
        registry,
        nothing_held,
        make_sure=another_batch_claims,
        plugins=standard_plugins(),
        settings=SchedulerSettings(claims_max=5),
        chance=random.Random(7),
        clock=lambda: datetime.now(UTC),
    )
    row, build = a_row(), BuildInstance(flavor=Flavor(vcpus=1))
    search = Search(row.id, row.issued_at, build, a_spec())

    await claimer.find_hosts([search])

    assert isinstance(search.outcome, NoValidHost)
    assert looks == 5
