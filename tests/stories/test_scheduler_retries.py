"""Claims that placement refuses because the picture was late: tried again, elsewhere, and not for ever."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

import pytest
from msgspec import structs

from bus.broker import Broker
from bus.message import Message
from bus.messages.placement import (
    ClaimAnswered,
    Claimed,
    ClaimResources,
    DoesNotFit,
    NotAllowed,
    ShapeMoved,
)
from bus.settings import BusSettings
from bus.station import Station
from scheduler_worker.store import SchedulerStore, SchedulerTransaction
from tests.stories.cloud import QUICK, Cloud, Meddling, a_build, a_host, cloud, instance_of

pytestmark = pytest.mark.asyncio

STAGES = pytest.mark.parametrize(
    ("bus", "books"),
    [
        ("memory", "memory"),
        ("memory", "sqlite"),
        pytest.param("rabbitmq", "postgresql", marks=[pytest.mark.rabbitmq, pytest.mark.postgresql]),
    ],
)
OVERTAKING_S_MAX = 0.5


class Restless:
    """Does something before every claim of a scheduler, and sees what placement made of its claims."""

    def __init__(self, deed: Callable[[], Awaitable[object]]) -> None:
        self._deed = deed
        self.verdicts: list[type[object]] = []

    def station(self, broker: Broker, name: str, *, settings: BusSettings, asks: bool) -> Station:
        restless = self

        class Troubled(Station):
            async def ask_all(self, questions: Sequence[Message]) -> list[Message]:
                if any(isinstance(question, ClaimResources) for question in questions):
                    await restless._deed()
                answers = await super().ask_all(questions)
                restless.verdicts += [
                    type(answer.verdict) for answer in answers if isinstance(answer, ClaimAnswered)
                ]
                return answers

        return Troubled(broker, name, settings=settings, asks=asks)


class Overtaken:
    """Holds a scheduler's first claim back until the same request, come again, has been looked into as well."""

    def __init__(self, again: Callable[[], Awaitable[object]]) -> None:
        self._again = again
        self._is_first = True
        self._looked_into = asyncio.Event()
        self._decided = asyncio.Event()
        self.is_claimed = False

    def station(self, broker: Broker, name: str, *, settings: BusSettings, asks: bool) -> Station:
        overtaken = self

        class Held(Station):
            async def ask_all(self, questions: Sequence[Message]) -> list[Message]:
                claims = [question for question in questions if isinstance(question, ClaimResources)]
                if claims and overtaken._is_first:
                    overtaken._is_first = False
                    await overtaken._again()
                    # Who waits for this claim to be answered first never comes so far.
                    with suppress(TimeoutError):
                        async with asyncio.timeout(OVERTAKING_S_MAX):
                            await overtaken._looked_into.wait()
                answers = await super().ask_all(questions)
                if any(claim.cell == "cell0" for claim in claims):
                    overtaken._looked_into.set()
                elif claims:
                    overtaken.is_claimed = True
                return answers

        return Held(broker, name, settings=settings, asks=asks)

    def decided_last(
        self, rows: SchedulerStore
    ) -> Callable[[], AbstractAsyncContextManager[SchedulerTransaction]]:
        """Transactions of these rows, in which who got the claim comes after who has the same request."""
        begin = rows.transaction

        @asynccontextmanager
        async def transaction() -> AsyncIterator[SchedulerTransaction]:
            if self.is_claimed:
                self.is_claimed = False
                with suppress(TimeoutError):
                    async with asyncio.timeout(OVERTAKING_S_MAX):
                        await self._decided.wait()
                async with begin() as began:
                    yield began
            else:
                async with begin() as began:
                    yield began
                if self._looked_into.is_set():
                    self._decided.set()

        return transaction


def moving(here: Cloud, name: str, vcpu: int) -> Restless:
    """The host is another one whenever it is claimed."""
    numbers = itertools.count(1)
    return Restless(lambda: here.report(a_host(name, vcpu=vcpu, traits=(f"CUSTOM_{next(numbers)}",))))


@STAGES
async def test_a_shape_that_moves_whenever_it_is_claimed_costs_its_retries_and_the_next_host_wins(
    bus: str, books: str
) -> None:
    async with cloud(bus, books) as here, here.placement():
        await here.add_host("h1", vcpu=100)
        await here.add_host("h2", vcpu=8)
        restless = moving(here, "h1", 100)
        async with here.scheduler(station=restless.station):
            await here.until_known("h1", "h2")
            build = a_build(1)

            await here.send(build)
            state = await here.until_state(instance_of(build), "active", "error")

            assert (state.state, state.host) == ("active", "h2")
            assert restless.verdicts == [ShapeMoved] * QUICK.shape_tries_max + [Claimed]


@STAGES
async def test_when_all_retries_run_out_the_request_ends_with_the_reason(bus: str, books: str) -> None:
    few = structs.replace(QUICK, shape_tries_max=2, claims_max=5)
    async with cloud(bus, books) as here, here.placement():
        await here.add_host("h1")
        restless = moving(here, "h1", 8)
        async with here.scheduler(station=restless.station, settings=few):
            await here.until_known("h1")
            build = a_build(1)

            await here.send(build)
            state = await here.until_state(instance_of(build), "active", "error")

            assert state.state == "error"
            assert state.reason.startswith("5 claims were refused, and no more are tried")
            assert set(restless.verdicts) == {ShapeMoved}
            await here.until_used(h1=0)


@STAGES
async def test_who_insisted_on_its_host_has_its_alternates(bus: str, books: str) -> None:
    async with cloud(bus, books) as here, here.placement():
        await here.add_host("h1", vcpu=100)
        for name in ("h2", "h3", "h4"):
            await here.add_host(name)
        meddling = Meddling(lambda: here.report(a_host("h1", vcpu=100, traits=("CUSTOM_NEW",))))
        async with here.scheduler(station=meddling.station):
            await here.until_known("h1", "h2", "h3", "h4")
            build = a_build(1)

            await here.send(build)
            await here.until_state(instance_of(build), "active")

            (order,) = here.placed
            assert meddling.verdicts == [ShapeMoved, Claimed]
            assert order.chosen.name == "h1"
            assert len({each.name for each in order.alternates} - {"h1"}) == 2


@STAGES
async def test_a_host_that_went_to_another_cell_is_passed_over(bus: str, books: str) -> None:
    async with cloud(bus, books) as here, here.placement():
        await here.add_host("h1", vcpu=100)
        await here.add_host("h2")

        async def move() -> None:
            """As a bare-metal node whose conductor group changes."""
            host = a_host("h1", vcpu=100)
            await here.report(structs.replace(host, providers=(), removed=(host.root,)))
            await here.report(a_host("h1", "c2", vcpu=100))

        moving_away = Meddling(move)
        async with here.scheduler(station=moving_away.station):
            await here.until_known("h1", "h2")
            build = a_build(1)

            await here.send(build)
            active = await here.until_state(instance_of(build), "active")

            assert active.host == "h2"
            assert moving_away.verdicts == [NotAllowed, Claimed]


@STAGES
async def test_who_came_to_an_alternate_has_its_alternates_and_not_the_host_that_was_full(
    bus: str, books: str
) -> None:
    async with cloud(bus, books) as here, here.placement():
        await here.add_host("h1", vcpu=100)
        for name in ("h2", "h3", "h4"):
            await here.add_host(name)
        filling = Meddling(lambda: here.fill("h1", 100))
        async with here.scheduler(station=filling.station):
            await here.until_known("h1", "h2", "h3", "h4")
            build = a_build(1)

            await here.send(build)
            await here.until_state(instance_of(build), "active")

            (order,) = here.placed
            assert filling.verdicts == [DoesNotFit, Claimed]
            names = [each.name for each in (order.chosen, *order.alternates)]
            assert sorted(names) == ["h2", "h3", "h4"]


@STAGES
async def test_alternates_are_hosts_of_the_same_cell_or_there_are_none(bus: str, books: str) -> None:
    async with cloud(bus, books) as here, here.placement():
        await here.add_host("h1", "c1", vcpu=100)
        for name in ("h2", "h3"):
            await here.add_host(name, "c2")
        meddling = Meddling(lambda: here.report(a_host("h1", vcpu=100, traits=("CUSTOM_NEW",))))
        async with here.scheduler(station=meddling.station):
            await here.until_known("h1", "h2", "h3")
            build = a_build(1)

            await here.send(build)
            await here.until_state(instance_of(build), "active")

            (order,) = here.placed
            assert (order.chosen.name, order.alternates) == ("h1", ())


@STAGES
async def test_a_request_that_comes_twice_at_once_is_not_refused_for_the_room_it_takes_itself(
    bus: str, books: str
) -> None:
    async with cloud(bus, books) as here, here.placement():
        await here.add_host("h1", vcpu=1)
        build = a_build(1)
        overtaken = Overtaken(lambda: here.send(build))
        here.rows.transaction = overtaken.decided_last(here.rows)  # type: ignore[method-assign]
        async with here.scheduler(station=overtaken.station):
            await here.until_known("h1")

            await here.send(build)
            state = await here.until_state(instance_of(build), "active", "error")

            assert (state.state, state.no_valid_host) == ("active", None)
            assert len(here.placed) == 1
