"""Requests that wait for room: on every bus and database, by one scheduler and by two."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta

from msgspec import structs

from bus.messages.build import (
    BuildAccepted,
    BuildInstance,
    ClaimRefused,
    DeleteInstance,
    InstanceState,
    InstanceWaiting,
)
from bus.messages.hosts import SetHost
from bus.messages.planning import AskExplanation, ExplanationsFound
from engine.flavors import InstanceId, Wait
from tests.stories.cloud import (
    QUICK_PACE,
    SMALL,
    Cloud,
    a_build,
    a_host,
    cloud,
    filler_of,
    funnel_of,
    instance_of,
    until_heard,
)
from tests.stories.layouts import BOTH, STAGES
from tests.stories.scripted import DiesAfterItsClaim, Interfering
from tests.waiting import until

LONG = Wait(for_s=3600)
WHOLE = structs.replace(SMALL, vcpus=2)


@asynccontextmanager
async def a_full_host(bus: str, books: str, *schedulers: str) -> AsyncIterator[Cloud]:
    """One host, whose two processors another consumer holds."""
    async with cloud(bus, books) as setup, setup.placement(), AsyncExitStack() as stack:
        async with setup.scheduler("s0"):
            await setup.add_hosts("h1", vcpu=2)
        await setup.fill("h1", vcpu=2)
        for name in schedulers:
            await stack.enter_async_context(setup.scheduler(name))
        yield setup


async def waiting(setup: Cloud, *builds: BuildInstance) -> list[InstanceId]:
    """Ask for these, one after the other; all begin to wait."""
    instances = []
    for build in builds:
        for instance in (await setup.ask(build, BuildAccepted)).instances:
            await setup.until_state(instance, "waiting")
            instances.append(instance)
    return instances


@STAGES
async def test_a_request_waits_until_a_host_has_room(bus: str, books: str) -> None:
    async with a_full_host(bus, books, "s1") as setup, setup.listening("instance.waiting.*") as heard:
        build = a_build(1, wait=structs.replace(LONG, priority=7), deadline_s=60)
        (instance,) = await waiting(setup, build)

        state = await setup.until_state(instance, "waiting")
        assert state.waiting is not None
        assert state.waiting.priority == 7
        assert [step.step for step in funnel_of(state).steps] == ["capacity"]
        await until_heard(heard, InstanceWaiting)
        answer = await setup.ask(AskExplanation(instance=instance), ExplanationsFound)
        assert answer.explanations[0].state.waiting == state.waiting

        before = datetime.now(UTC)
        await setup.give_back(filler_of("h1"))
        state = await setup.until_state(instance, "active")
        assert (state.host, state.waiting, state.reason) == ("h1", None, "")
        (order,) = setup.placed
        # Its build has the whole time of its deadline, however long it waited.
        assert order.ends_by >= before + timedelta(seconds=60)
        assert await setup.used() == {"h1": 1}


@BOTH
async def test_the_highest_priority_goes_first_and_then_the_oldest(bus: str, books: str) -> None:
    async with a_full_host(bus, books, "s1", "s2") as setup:
        wishes = [(Wait(3600), 0), (Wait(3600), -5), (Wait(3600, priority=5), 0), (Wait(3600), 5)]
        builds = [
            a_build(9 - at, flavor=WHOLE, wait=wish, priority=priority)
            for at, (wish, priority) in enumerate(wishes)
        ]
        instances = await waiting(setup, *builds)

        await setup.give_back(filler_of("h1"))
        turns = [instances[2], instances[3], instances[0], instances[1]]
        for instance in turns:
            # The host has room for one, and only when that one is deleted for the next.
            await setup.until_state(instance, "active")
            await setup.send(DeleteInstance(instance=instance))
        await setup.until_state(turns[-1], "deleted")
        assert [order.instance for order in setup.placed] == turns


@BOTH
async def test_what_ends_by_its_deadline_tells_why_its_last_search_found_no_host(
    bus: str, books: str
) -> None:
    async with a_full_host(bus, books) as setup:
        async with setup.scheduler("s1"):
            (instance,) = await waiting(setup, a_build(1, flavor=WHOLE, wait=LONG))

        interfering = Interfering(lambda: setup.fill("h1", 1, by="another"))
        async with setup.scheduler("s2", station=interfering.station):
            await setup.give_back(filler_of("h1"))

            await until(
                lambda: setup.until_state(instance, "waiting"),
                "the reasons of another search",
                lambda state: why_not(state) == "h1: VCPU asked 2, free 1 of 2",
            )

        later = datetime.now(UTC) + timedelta(hours=2)
        async with setup.scheduler("s3", clock=lambda: later):
            state = await setup.until_state(instance, "error")

        assert state.reason.startswith("no valid host: it waited 3600 s for room, until ")
        assert why_not(state) == "h1: VCPU asked 2, free 1 of 2"
        assert state.refusals == (ClaimRefused(host="h1", reason="VCPU asked 2, free 1"),)


def why_not(state: InstanceState) -> str:
    return funnel_of(state).steps[0].example


@BOTH
async def test_room_that_came_while_no_scheduler_was_up_is_found_at_the_start(bus: str, books: str) -> None:
    async with a_full_host(bus, books) as setup:
        async with setup.scheduler("s1"):
            (instance,) = await waiting(setup, a_build(1, wait=LONG))
        await setup.give_back(filler_of("h1"))
        await setup.until_used(h1=0)

        async with setup.scheduler("s2"):
            await setup.until_state(instance, "active")


@BOTH
async def test_a_claim_of_a_scheduler_that_dies_is_taken_over(bus: str, books: str) -> None:
    """The claim itself has taken the room: nothing changes any more, and no host seems to have any."""
    async with a_full_host(bus, books) as setup:
        dying = DiesAfterItsClaim()
        async with setup.scheduler("s1"):
            (instance,) = await waiting(setup, a_build(1, flavor=WHOLE, wait=LONG))
        hurried = structs.replace(QUICK_PACE, wake_lease_s=0.1)
        async with setup.scheduler("s2", station=dying.station, drain_s_max=0, pace=hurried):
            await setup.give_back(filler_of("h1"))
            await dying.claimed.wait()
            async with setup.scheduler("s3", pace=hurried):
                await setup.until_state(instance, "active")

        assert [order.instance for order in setup.placed] == [instance]
        assert await setup.used() == {"h1": 2}


async def test_a_host_that_is_enabled_or_new_wakes_what_waits() -> None:
    async with (
        cloud("memory", "memory") as setup,
        setup.placement(),
        setup.scheduler("s1"),
        setup.scheduler("s2"),
    ):
        await setup.add_hosts("h1", vcpu=1)
        await setup.client.ask(SetHost(host="h1", mode="draining", reason="a disk"))
        first, second, third = await waiting(setup, a_build(1, count=3, wait=LONG))

        await setup.client.ask(SetHost(host="h1", mode="up"))
        await until(lambda: some_are(setup, 1, "active"), "one of them has a host")
        # Each of them waits for itself.
        await setup.add_host("h2", vcpu=1)
        await until(lambda: some_are(setup, 2, "active"), "a second one has a host")
        await setup.report(a_host("h2", vcpu=2))
        for instance in (first, second, third):
            await setup.until_state(instance, "active")


async def some_are(setup: Cloud, count: int, state: str) -> bool:
    known = [await setup.instance(instance_of(a_build(1), index)) for index in range(3)]
    return [each.state for each in known if each is not None].count(state) == count
