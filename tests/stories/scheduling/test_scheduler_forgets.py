"""A scheduler forgets old rows after a long time, and refuses requests that it may have forgotten."""

import itertools
from datetime import UTC, datetime, timedelta

from msgspec import structs

from bus.codec import encode
from bus.message import PLAIN, Envelope, Message, Parcel
from bus.messages.books import DeleteProvider, WriteAnswered
from bus.messages.build import BuildRejected, DeleteInstance, InstancesFound
from bus.messages.hosts import HostSet, SetHost
from bus.topology import API
from scheduler_worker.store_sql import HostQuery
from tests.contracts.stage import send
from tests.stories.cloud import QUICK, QUICK_PACE, a_build, cloud, funnel_of, instance_of
from tests.stories.layouts import ONE_BROKER
from tests.stories.scripted import host_id
from tests.waiting import MovedClock, until

DAY = timedelta(days=1)
FORGETS = structs.replace(QUICK_PACE, prune_every_s=0.02)


@ONE_BROKER
async def test_a_host_that_was_removed_is_forgotten_after_a_day_and_one_that_is_only_silent_is_not(
    bus: str, books: str
) -> None:
    clock, forgetting = MovedClock(), structs.replace(QUICK, horizon_s=10**9)
    began = clock()
    async with (
        cloud(bus, books) as setup,
        setup.placement(),
        setup.scheduler(clock=clock, settings=forgetting, pace=FORGETS),
        setup.scheduler("another", clock=clock, settings=forgetting, pace=FORGETS),
    ):
        await setup.add_hosts("removed", "silent")
        assert isinstance(await setup.client.ask(SetHost(host="removed", mode="draining")), HostSet)
        assert isinstance(await setup.client.ask(DeleteProvider(id=host_id("removed"))), WriteAnswered)

        async def is_forgotten() -> bool:
            clock.pass_s(30 * 60)
            return {host.name for host in await setup.rows.hosts(HostQuery())} == {"silent"}

        await until(is_forgotten, "it is forgotten")
        assert clock() >= began + DAY
        numbers = itertools.count(1)

        async def is_counted_by_nobody() -> bool:
            """Eight builds in a row, so that both workers handled some. Each worker counts its own day: one may begin later."""
            clock.pass_s(30 * 60)
            for number in itertools.islice(numbers, 8):
                (state,) = await setup.built(a_build(number), "error")
                if [(step.step, step.removed) for step in funnel_of(state).steps] != [("up", 1)]:
                    return False
            return True

        await until(is_counted_by_nobody, "neither worker counts it among the hosts")
        # A host that comes back is a new host.
        await setup.add_hosts("removed")
        (back,) = await setup.rows.hosts(HostQuery(name="removed"))
        assert back.setting.mode == "up"


@ONE_BROKER
async def test_a_request_that_was_sent_too_long_ago_is_refused_and_builds_nothing(
    bus: str, books: str
) -> None:
    async with (
        cloud(bus, books) as setup,
        setup.scheduling("h1"),
        setup.listening("build.#") as heard,
    ):
        late = Envelope[Message](message=a_build(1), sent_at=datetime.now(UTC) - DAY - timedelta(minutes=1))
        parcel = Parcel(API, "build.request.-", encode(late), content_type=PLAIN, mandatory=True)

        await send(setup.client.consuming.broker, parcel)

        await until(lambda: bool(heard), "the refusal")
        (refused,) = heard
        assert isinstance(refused, BuildRejected)
        assert refused.field == "sent_at"
        assert refused.reason.startswith("too old: ")
        assert await setup.client.ask(DeleteInstance(instance=instance_of(a_build(1)))) == InstancesFound(
            instances=()
        )
        assert setup.placed == []
