"""Placement refuses claims because the scheduler's picture was outdated: they are retried elsewhere, a bounded number
of times.
"""

import itertools
from collections.abc import Awaitable, Callable, Sequence

import pytest
from msgspec import structs

from bus.broker import Broker
from bus.message import Message
from bus.messages.build import ClaimRefused
from bus.messages.placement import ClaimAnswered
from bus.settings import BusSettings
from bus.workers.health_server import Metrics
from bus.workers.station import Station
from engine.refusals import Claimed, NotAllowed, ShapeMoved
from kit.health import About, Health
from laboratory.load.orders import claims_of
from scheduler_worker.store_sql import InstanceQuery
from tests.stories.cloud import QUICK_PACE, Cloud, a_build, a_host, cloud, instance_of
from tests.stories.layouts import ONE_BROKER
from tests.stories.scripted import InterferingOnce, is_claim

pytestmark = pytest.mark.asyncio


class InterferingAlways:
    """Runs an action before every claim of a scheduler, and records placement's verdicts on its claims."""

    def __init__(self, action: Callable[[], Awaitable[object]]) -> None:
        self._action = action
        self.verdicts: list[type[object]] = []

    def station(self, broker: Broker, name: str, *, settings: BusSettings, asks: bool) -> Station:
        interfering = self

        class InterferingStation(Station):
            async def ask_all(self, questions: Sequence[Message]) -> list[Message]:
                if any(map(is_claim, questions)):
                    await interfering._action()
                answers = await super().ask_all(questions)
                interfering.verdicts += [
                    type(answer.verdict) for answer in answers if isinstance(answer, ClaimAnswered)
                ]
                return answers

        return InterferingStation(broker, name, settings=settings, asks=asks)


def moving(setup: Cloud, name: str, vcpu: int) -> InterferingAlways:
    """The host's shape changes before each of its claims."""
    numbers = itertools.count(1)
    return InterferingAlways(
        lambda: setup.report(a_host(name, vcpu=vcpu, traits=(f"CUSTOM_{next(numbers)}",)))
    )


@ONE_BROKER
async def test_when_all_retries_run_out_the_request_ends_with_the_reason(bus: str, books: str) -> None:
    few = structs.replace(QUICK_PACE, shape_tries_max=2, claims_max=5)
    async with cloud(bus, books) as setup, setup.placement():
        await setup.add_host("h1")
        interfering = moving(setup, "h1", 8)
        async with setup.scheduler(station=interfering.station, pace=few):
            await setup.until_registered("h1")
            build = a_build(1)

            await setup.send(build)
            state = await setup.until_state(instance_of(build), "active", "error")

            assert state.state == "error"
            assert state.reason.startswith("5 claims were refused, and no more are tried")
            assert set(interfering.verdicts) == {ShapeMoved}
            await setup.until_used(h1=0)


@ONE_BROKER
async def test_a_host_that_went_to_another_cell_is_passed_over(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, setup.placement():
        await setup.add_host("h1", vcpu=100)
        await setup.add_host("h2")

        async def move() -> None:
            """Move the host to another cell, as a bare-metal node moves whose conductor group changes."""
            host = a_host("h1", vcpu=100)
            await setup.report(structs.replace(host, providers=(), removed=(host.root,)))
            await setup.report(a_host("h1", "c2", vcpu=100))

        moving_away = InterferingOnce(move)
        async with setup.scheduler(station=moving_away.station):
            await setup.until_registered("h1", "h2")
            build = a_build(1)

            await setup.send(build)
            active = await setup.until_state(instance_of(build), "active")

            assert active.host == "h2"
            assert moving_away.verdicts == [NotAllowed, Claimed]


async def test_a_scheduler_counts_its_claims_by_verdict_and_an_instance_keeps_those_that_were_refused() -> (
    None
):
    async def nothing() -> None: ...

    interfering = InterferingOnce(nothing)
    async with cloud("memory", "memory") as setup, setup.placement():
        async with setup.scheduler(station=interfering.station) as parts:
            await setup.add_host("h1", vcpu=1)
            await setup.until_reported("h1")

            async def another_scheduler_is_faster() -> None:
                await setup.fill("h1", 1)

            interfering.action = another_scheduler_is_faster
            late = a_build(1)
            # Not asked: a question that is repeated is claimed twice.
            await setup.send(late)
            state = await setup.until_state(instance_of(late), "error")
            await setup.add_host("h2")
            await setup.until_reported("h1", "h2")
            await setup.send(a_build(2))
            await setup.until_state(instance_of(a_build(2)), "active")
            page = Metrics(Health(About("scheduler", "1.2"), parts)).page().decode()

        assert state.refusals == (ClaimRefused(host="h1", reason="VCPU asked 1, free 0"),)
        assert claims_of([state]) == (1, 1)
        placed = await setup.rows.instances(InstanceQuery(instances=(instance_of(a_build(2)),)))
        assert claims_of([row.told for row in placed]) == (1, 0)
        assert 'moor_claims_total{verdict="does_not_fit"} 1.0' in page
        assert 'moor_claims_total{verdict="claimed"} 1.0' in page
