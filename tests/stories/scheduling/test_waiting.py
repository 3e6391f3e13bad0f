"""Requests that wait for room: on every bus and database, by one scheduler and by two."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any
from uuid import uuid5

import msgspec
import pytest
from msgspec import structs

from bus.messages.build import (
    BuildAccepted,
    BuildInstance,
    BuildRejected,
    ClaimRefused,
    DeleteInstance,
    InstanceFailed,
    InstanceState,
    InstanceWaiting,
)
from bus.messages.hosts import SetHost
from bus.messages.placement import ClaimAnswered, ClaimResources, ReleaseClaim
from bus.messages.planning import AskExplanation, ExplanationsFound
from bus.workers.station import Station
from engine.choosing.choosing import choose
from engine.flavors import InstanceId, Wait
from engine.inventories import ConsumerId, ResourceAmount, Share
from engine.refusals import Superseded
from engine.requests import InstanceSpec
from scheduler_worker.core.instances.history import encoded
from scheduler_worker.core.instances.rows import KeptRequest, accepted, waits
from scheduler_worker.requests.reading import RequestReader
from scheduler_worker.store import InstanceQuery, NewRequest
from scheduler_worker.wiring import STANDARD
from tests.contracts.stage import SETTINGS
from tests.plugins import standard_plugins
from tests.stories.cloud import (
    NAMES,
    QUICK_PACE,
    SMALL,
    Cloud,
    DiesAfterItsClaim,
    InterferingOnce,
    a_build,
    a_host,
    cloud,
    host_id,
    instance_of,
    is_probe,
    wait_until,
)
from tests.stories.layouts import BOTH, STAGES
from tests.stories.scheduling.test_all_or_nothing import claim_some

pytestmark = pytest.mark.asyncio

LONG = Wait(for_s=3600)
WHOLE = structs.replace(SMALL, vcpus=2)


@asynccontextmanager
async def a_full_host(bus: str, books: str, *schedulers: str) -> AsyncIterator[Cloud]:
    """One host, whose two processors another consumer holds."""
    async with cloud(bus, books) as setup, AsyncExitStack() as stack:
        await stack.enter_async_context(setup.placement())
        async with setup.scheduler("s0"):
            await setup.add_host("h1", vcpu=2)
            await setup.until_reported("h1")
        await setup.fill("h1", vcpu=2)
        for name in schedulers:
            await stack.enter_async_context(setup.scheduler(name))
        yield setup


async def empty(setup: Cloud, name: str = "h1") -> None:
    """The consumer that fills this host goes."""
    consumer = ConsumerId(uuid5(NAMES, f"who fills {name}"))
    release = ReleaseClaim(cell="c1", consumer=consumer, attempt=1, issued_at=datetime.now(UTC))
    await setup.conductors_in["c1"].publisher.send(release)


async def waiting(setup: Cloud, *builds: BuildInstance) -> list[InstanceId]:
    """Ask for these, one after the other; all begin to wait."""
    instances = []
    for build in builds:
        answer = await setup.client.ask(build)
        assert isinstance(answer, BuildAccepted), answer
        for instance in answer.instances:
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
        assert state.no_valid_host is not None
        assert [step.step for step in state.no_valid_host.steps] == ["capacity"]

        async def is_heard() -> bool:
            return any(isinstance(each, InstanceWaiting) for each in heard)

        await wait_until(is_heard, "the event that it waits", heard)
        answer = await setup.client.ask(AskExplanation(instance=instance))
        assert isinstance(answer, ExplanationsFound)
        assert answer.explanations[0].state.waiting == state.waiting

        before = datetime.now(UTC)
        await empty(setup)
        state = await setup.until_state(instance, "active")
        assert (state.host, state.waiting, state.reason) == ("h1", None, "")
        (order,) = setup.placed
        # Its build has the whole time of its deadline, however long it waited.
        assert order.ends_by >= before + timedelta(seconds=60)
        assert await setup.used() == {"h1": 1}


@BOTH
async def test_the_highest_priority_goes_first_and_then_the_oldest(bus: str, books: str) -> None:
    async with a_full_host(bus, books, "s1", "s2") as setup:
        wishes = [Wait(3600), Wait(3600), Wait(3600, priority=5), Wait(3600, priority=5)]
        builds = [a_build(9 - at, flavor=WHOLE, wait=wish) for at, wish in enumerate(wishes)]
        instances = await waiting(setup, *builds)

        await empty(setup)
        turns = [instances[2], instances[3], instances[0], instances[1]]
        for instance in turns:
            # The host has room for one, and only when that one is deleted for the next.
            await setup.until_state(instance, "active")
            await setup.send(DeleteInstance(instance=instance))
        await setup.until_state(turns[-1], "deleted")
        assert [order.instance for order in setup.placed] == turns


@BOTH
async def test_what_waits_can_be_deleted_and_is_not_built_then(bus: str, books: str) -> None:
    async with a_full_host(bus, books, "s1") as setup:
        first, second = await waiting(setup, a_build(1, wait=LONG), a_build(2, wait=LONG))

        await setup.send(DeleteInstance(instance=first))
        await setup.until_state(first, "deleted")
        await empty(setup)
        await setup.until_state(second, "active")

        assert [order.instance for order in setup.placed] == [second]
        assert await setup.used() == {"h1": 1}


@BOTH
async def test_its_deadline_ends_it_though_no_scheduler_was_up_then(bus: str, books: str) -> None:
    async with a_full_host(bus, books) as setup, setup.listening("instance.error.*") as heard:
        async with setup.scheduler("s1"):
            (instance,) = await waiting(setup, a_build(1, wait=LONG))

        later = datetime.now(UTC) + timedelta(hours=2)
        async with setup.scheduler("s2", clock=lambda: later):
            state = await setup.until_state(instance, "error")

        assert state.reason.startswith("no valid host: it waited 3600 s for room, until ")
        assert state.no_valid_host is not None
        assert state.no_valid_host.steps[0].example == "h1: VCPU asked 1, free 0 of 2"
        assert state.waiting is None
        # The event may be sent twice, but the instance ends once: all copies have the same sequence.
        ends = {
            (each.instance.id, each.instance.sequence) for each in heard if isinstance(each, InstanceFailed)
        }
        assert ends == {(instance, state.sequence)}
        assert not await setup.rows.waiting_digests(None)


@BOTH
async def test_what_ends_by_its_deadline_tells_why_its_last_search_found_no_host(
    bus: str, books: str
) -> None:
    async with a_full_host(bus, books) as setup:
        async with setup.scheduler("s1"):
            (instance,) = await waiting(setup, a_build(1, flavor=WHOLE, wait=LONG))

        interfering = InterferingOnce(lambda: claim_some(setup, "h1", 1))
        async with setup.scheduler("s2", station=interfering.station):
            await empty(setup)

            async def has_other_reasons() -> bool:
                state = await setup.instance(instance)
                assert state is not None
                assert state.state == "waiting"
                return why_not(state) == "h1: VCPU asked 2, free 1 of 2"

            await wait_until(has_other_reasons, "the reasons of another search")

        later = datetime.now(UTC) + timedelta(hours=2)
        async with setup.scheduler("s3", clock=lambda: later):
            state = await setup.until_state(instance, "error")

        assert state.reason.startswith("no valid host: it waited 3600 s for room, until ")
        assert why_not(state) == "h1: VCPU asked 2, free 1 of 2"
        assert state.refusals == (ClaimRefused(host="h1", reason="VCPU asked 2, free 1"),)


def why_not(state: InstanceState) -> str:
    assert state.no_valid_host is not None
    return state.no_valid_host.steps[0].example


async def test_it_may_wait_for_longer_than_placement_remembers_what_ended() -> None:
    async with a_full_host("memory", "memory") as setup:
        async with setup.scheduler("s1"):
            first, second = await waiting(
                setup, *[a_build(number, flavor=WHOLE, wait=LONG) for number in (1, 2)]
            )
        yesterday = datetime.now(UTC) - timedelta(hours=30)
        for row in await setup.rows.instances(InstanceQuery()):
            async with setup.rows.transaction() as transaction:
                await transaction.save([structs.replace(row, issued_at=yesterday)])
        async with setup.scheduler("s2"):
            await empty(setup)
            await setup.until_state(first, "active")
            # Its release is not too old either: a claim that comes late would be refused.
            await setup.send(DeleteInstance(instance=second))
            await setup.until_state(second, "deleted")

            late = ClaimResources(
                cell="c1",
                consumer=second,
                attempt=1,
                issued_at=datetime.now(UTC),
                share=Share(
                    host=host_id("h2"),
                    amounts=(ResourceAmount(provider=host_id("h2"), resource="VCPU", amount=1),),
                ),
            )
            other = Station(setup.brokers.at_api("scheduler"), "other", settings=SETTINGS, asks=True)

            async def is_refused_as_ended() -> bool:
                answer = await other.ask(late)
                return isinstance(answer, ClaimAnswered) and answer.verdict == Superseded(
                    attempt=1, ended=True
                )

            async with setup.running((other,), other):
                await wait_until(is_refused_as_ended, "placement knows that it has ended")


@BOTH
async def test_room_that_came_while_no_scheduler_was_up_is_found_at_the_start(bus: str, books: str) -> None:
    async with a_full_host(bus, books) as setup:
        async with setup.scheduler("s1"):
            (instance,) = await waiting(setup, a_build(1, wait=LONG))
        await empty(setup)
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
            await empty(setup)
            await dying.claimed.wait()
            async with setup.scheduler("s3", pace=hurried):
                await setup.until_state(instance, "active")

        assert [order.instance for order in setup.placed] == [instance]
        assert await setup.used() == {"h1": 2}


async def test_a_host_that_is_enabled_or_new_wakes_what_waits() -> None:
    async with cloud("memory", "memory") as setup, AsyncExitStack() as stack:
        await stack.enter_async_context(setup.placement())
        for name in ("s1", "s2"):
            await stack.enter_async_context(setup.scheduler(name))
        await setup.add_host("h1", vcpu=1)
        await setup.until_reported("h1")
        await setup.client.ask(SetHost(host="h1", mode="draining", reason="a disk"))
        first, second, third = await waiting(setup, a_build(1, count=3, wait=LONG))

        await setup.client.ask(SetHost(host="h1", mode="up"))
        states = [await setup.instance(instance) for instance in (first, second, third)]
        await wait_until(lambda: some_are(setup, 1, "active"), "one of them has a host", states)
        # Each of them waits for itself.
        await setup.add_host("h2", vcpu=1)
        await wait_until(lambda: some_are(setup, 2, "active"), "a second one has a host", states)
        await setup.report(a_host("h2", vcpu=2))
        for instance in (first, second, third):
            await setup.until_state(instance, "active")


async def some_are(setup: Cloud, count: int, state: str) -> bool:
    known = [await setup.instance(instance_of(a_build(1), index)) for index in range(3)]
    return [each.state for each in known if each is not None].count(state) == count


@BOTH
async def test_a_repeated_request_that_waits_is_answered_and_waits_once(bus: str, books: str) -> None:
    async with a_full_host(bus, books, "s1", "s2") as setup:
        build = a_build(1, wait=LONG)
        (instance,) = await waiting(setup, build)
        answers = await setup.client.ask_all([build, build, build])
        assert build.request_id is not None
        assert answers == [BuildAccepted(request_id=build.request_id, instances=(instance,))] * 3

        await empty(setup)
        await setup.until_state(instance, "active")
        assert len(setup.placed) == 1
        assert await setup.used() == {"h1": 1}


async def test_what_is_wrong_with_a_wait_is_named() -> None:
    async with cloud("memory", "memory") as setup, setup.placement(), setup.scheduler():
        for wait, field in (
            (Wait(for_s=0), "wait.for_s"),
            (Wait(for_s=2_592_001), "wait.for_s"),
            (Wait(for_s=1, priority=-1), "wait.priority"),
            (Wait(for_s=1, priority=101), "wait.priority"),
        ):
            answer = await setup.client.ask(a_build(1, wait=wait))
            assert isinstance(answer, BuildRejected)
            assert answer.field == field
            assert answer.value in (str(wait.for_s), str(wait.priority))
        both = await setup.client.ask(a_build(1, count=2, wait=LONG, all_or_nothing=True))
        assert isinstance(both, BuildRejected)
        assert (both.field, both.value) == ("all_or_nothing", "true")


async def test_without_a_wait_it_ends_at_once() -> None:
    async with a_full_host("memory", "memory", "s1") as setup:
        await setup.send(a_build(1))
        state = await setup.until_state(instance_of(a_build(1)), "error")
        assert state.reason == "no valid host"
        assert not await setup.rows.waiting_digests(None)


@BOTH
async def test_room_that_comes_during_the_search_is_not_missed(bus: str, books: str) -> None:
    async with a_full_host(bus, books) as setup:

        async def leave() -> None:
            await empty(setup)
            await setup.until_used(h1=0)

        # Between the last look at placement and the probe, after which the row is written.
        interfering = InterferingOnce(leave, before=is_probe)
        async with setup.scheduler("s1", station=interfering.station):
            build = a_build(1, wait=LONG)
            await setup.send(build)
            await setup.until_state(instance_of(build), "active")


async def test_ten_thousand_wait_and_one_place_becomes_free(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = 0

    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal searches
        searches += 1
        return choose(*arguments, **named)

    async with a_full_host("memory", "memory") as setup:
        await write_waiting(setup, 10_000)
        async with AsyncExitStack() as stack:
            for number in range(4):
                await stack.enter_async_context(setup.scheduler(f"s{number}"))
            await setup.until_registered("h1")
            monkeypatch.setattr("scheduler_worker.claiming.claimer.choose", counted)
            await empty(setup)
            (oldest,) = [instance_of(a_build(1))]
            await setup.until_state(oldest, "active")
            # Whole: nobody else has room.
            assert await setup.used() == {"h1": 2}

            async def are_done() -> bool:
                return not await setup.rows.some_are_woken()

            await wait_until(are_done, "nothing is being tried")
        # Both have finished what they began.
        assert 1 <= searches <= 3
        left = await setup.rows.instances(InstanceQuery(state="waiting", limit=20_000))
        assert len(left) == 9_999


async def write_waiting(setup: Cloud, count: int) -> None:
    """Rows of requests for a whole host each, as a scheduler would have written them."""
    reader = RequestReader(STANDARD, timedelta(days=1), standard_plugins())
    now = datetime.now(UTC)
    requests, rows = [], []
    for number in range(1, count + 1):
        build = a_build(number, flavor=WHOLE, wait=LONG)
        spec = reader.spec_of(build)
        assert isinstance(spec, InstanceSpec)
        assert build.request_id is not None
        at = now + timedelta(milliseconds=number)
        new = accepted(build, [instance_of(build)], at, now + timedelta(hours=1), encoded(spec))
        kept = KeptRequest(sha256(encoded(spec)).digest(), msgspec.msgpack.encode(build))
        row = waits(new[0], at, kept, priority=0, reason="no valid host")
        assert row is not None
        requests.append(NewRequest(build.request_id, b"same", new))
        rows.append(structs.replace(row, unsaid=False))
    async with setup.rows.transaction() as transaction:
        await transaction.accept(requests)
        await transaction.decide(rows)
