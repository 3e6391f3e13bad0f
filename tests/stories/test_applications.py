"""What an application hears: the events of its own projects, from whichever scheduler, again after a crash."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from msgspec import structs

from bus.broker import Parcel
from bus.message import Message, type_of
from bus.messages.applications import (
    ApplicationSet,
    ApplicationsFound,
    AskApplications,
    KnownApplication,
    SetApplication,
)
from bus.messages.build import BuildAccepted, BuildInstance, BuildRejected, DeleteInstance, InstanceId
from bus.topology import API, FEED
from scheduler_worker.core.instances.lifecycle import accepted, failed
from scheduler_worker.store import NewRequest
from tests.contracts.stage import dead_letters, station
from tests.stories.cloud import QUICK, SMALL, Cloud, a_build, cloud, instance_of, until_so
from tests.stories.layouts import APART, STAGES

pytestmark = pytest.mark.asyncio

# What real servers do with a feed, the first story shows.
IN_MEMORY = pytest.mark.parametrize(
    ("bus", "books"), [("memory", "memory"), ("memory", "sqlite"), (f"memory{APART}", "memory")]
)
WHOLE_LIFE = ["build.accepted", "instance.placed", "instance.active", "instance.deleted"]


def types_of(instance: InstanceId, heard: Sequence[Message]) -> list[str]:
    """What was said of an instance, in the order in which it was heard first."""
    said: list[str] = []
    for each in heard:
        if isinstance(each, BuildRejected):
            continue
        about: Any = each
        ids = about.instances if isinstance(each, BuildAccepted) else (about.instance.id,)
        if instance in ids and type_of(type(each)) not in said:
            said.append(type_of(type(each)))
    return said


async def register(here: Cloud, name: str, *projects: str) -> None:
    answer = await here.client.ask(SetApplication(name=name, projects=projects))
    assert answer == ApplicationSet(application=KnownApplication(name=name, projects=projects))


async def until_fed(here: Cloud, project: str, heard: list[Message]) -> None:
    """Until the schedulers know who listens: each looks for that now and then."""

    async def is_fed() -> bool:
        await here.send(a_build(99, project=project, flavor=structs.replace(SMALL, vcpus=-1)))
        return any(isinstance(each, BuildRejected) and each.project == project for each in heard)

    await until_so(is_fed, f"the feed of {project} is said", heard)


async def build_and_delete(here: Cloud, build: BuildInstance) -> InstanceId:
    id_ = instance_of(build)
    await here.send(build)
    await here.until_state(id_, "active")
    await here.send(DeleteInstance(instance=id_))
    await here.until_state(id_, "deleted")
    return id_


async def ordered(here: Cloud, sent_at: datetime, order: SetApplication) -> KnownApplication | None:
    """What is answered to an operator whose order was sent then, however late it is delivered."""
    async with station(
        here.brokers.at_api("operator"), "an-operator", asks=True, clock=lambda: sent_at
    ) as operator:
        answer = await operator.ask(order)
    assert isinstance(answer, ApplicationSet)
    return answer.application


@IN_MEMORY
async def test_a_late_copy_of_an_old_order_changes_nothing(bus: str, books: str) -> None:
    began = datetime.now(UTC)
    at = [began + timedelta(seconds=number) for number in range(5)]
    one, two, none, three = (
        SetApplication(name="shop", projects=("p1",)),
        SetApplication(name="shop", projects=("p1", "p2")),
        SetApplication(name="shop", removed=True),
        SetApplication(name="shop", projects=("p3",)),
    )
    both = KnownApplication(name="shop", projects=("p1", "p2"))
    third = KnownApplication(name="shop", projects=("p3",))

    async with cloud(bus, books) as here, here.placement(), here.scheduler():
        await ordered(here, at[1], one)
        assert await ordered(here, at[2], two) == both
        assert await ordered(here, at[1], one) == both
        assert await ordered(here, at[2], two) == both
        assert await ordered(here, at[3], none) is None
        assert await ordered(here, at[2], two) is None
        assert await here.client.ask(AskApplications()) == ApplicationsFound(applications=())
        assert await ordered(here, at[4], three) == third
        assert await ordered(here, at[3], none) == third
        assert await here.client.ask(AskApplications()) == ApplicationsFound(applications=(third,))


@IN_MEMORY
async def test_an_order_that_says_not_when_it_was_sent_or_says_it_wrongly_is_refused(
    bus: str, books: str
) -> None:
    async with cloud(bus, books) as here, here.placement(), here.scheduler():
        for said in ({}, {"sent_at": (datetime.now(UTC) + timedelta(hours=1)).isoformat()}):
            message = {"type": "application.set", "name": "shop", "admin": True}
            body = msgspec.json.encode({"message": message, **said})
            await here.client.publisher.offer(Parcel(API, "application.set", body, mandatory=True))
        letters = await dead_letters(here.brokers.at_api("operator"), 2)

        letters.sort(key=lambda letter: len(letter.body))
        assert [letter.reason.partition(": ")[0] for letter in letters] == ["sent_at", "sent_at"]
        assert "must be given" in letters[0].reason
        assert re.search("is 3[56][0-9]{2} s ahead of the clock here, may be 300", letters[1].reason)
        assert await here.client.ask(AskApplications()) == ApplicationsFound(applications=())


@STAGES
async def test_it_hears_of_its_own_projects_and_of_no_others(bus: str, books: str) -> None:
    async with (
        cloud(bus, books) as here,
        here.placement(),
        here.scheduler(),
        here.listening("p1", FEED) as heard_of_one,
        here.listening("*", FEED) as heard,
    ):
        await here.add_host("h1")
        await here.until_known("h1")
        await build_and_delete(here, a_build(1, project="p1"))
        assert heard == [], "nobody is registered, and nothing is said"
        await register(here, "shop", "p1", "p2")
        await until_fed(here, "p1", heard)

        ids = {
            project: await build_and_delete(here, a_build(number, project=project))
            for number, project in ((2, "p1"), (3, "p2"), (4, "p3"), (5, ""))
        }

        for project in ("p1", "p2"):

            async def is_whole(id_: InstanceId = ids[project]) -> bool:
                return sorted(types_of(id_, heard)) == sorted(WHOLE_LIFE)

            await until_so(is_whole, f"all is heard of {project}", heard)
        assert types_of(ids["p3"], heard) == types_of(ids[""], heard) == []
        assert sorted(types_of(ids["p1"], heard_of_one)) == sorted(WHOLE_LIFE)
        assert types_of(ids["p2"], heard_of_one) == []


@IN_MEMORY
async def test_it_is_told_why_its_request_was_rejected_and_why_nothing_was_found(
    bus: str, books: str
) -> None:
    async with (
        cloud(bus, books) as here,
        here.placement(),
        here.scheduler(),
        here.listening("p1", FEED) as heard,
    ):
        await here.add_host("h1")
        await here.until_known("h1")
        await register(here, "shop", "p1")
        await until_fed(here, "p1", heard)

        await here.send(a_build(1, project="p1", flavor=structs.replace(SMALL, vcpus=-1)))
        await here.send(a_build(2, project="p1", flavor=structs.replace(SMALL, vcpus=500)))

        async def both() -> bool:
            return {type_of(type(each)) for each in heard} >= {"build.rejected", "instance.error"}

        await until_so(both, "a rejection and an error are heard", heard)


@IN_MEMORY
async def test_other_schedulers_learn_of_it_and_one_that_is_removed_is_said_nothing(
    bus: str, books: str
) -> None:
    async with cloud(bus, books) as here, here.placement(), here.listening("*", FEED) as heard:
        async with here.scheduler():
            await here.add_host("h1")
            await here.until_known("h1")
            await register(here, "shop", "p1")
            await register(here, "shop", "p2")
            await register(here, "desk", "p1")
            assert await here.client.ask(AskApplications()) == ApplicationsFound(
                applications=(
                    KnownApplication(name="desk", projects=("p1",)),
                    KnownApplication(name="shop", projects=("p2",)),
                )
            )
            removed = await here.client.ask(SetApplication(name="desk", removed=True))
            assert removed == ApplicationSet(application=None)
        async with here.scheduler("another"):
            gone = await build_and_delete(here, a_build(1, project="p1"))
            kept = await build_and_delete(here, a_build(2, project="p2"))

            async def is_heard() -> bool:
                return "instance.deleted" in types_of(kept, heard)

            await until_so(is_heard, "what is registered is heard", heard)
            assert types_of(gone, heard) == []


@IN_MEMORY
async def test_what_is_said_again_after_a_crash_is_said_again_to_it(bus: str, books: str) -> None:
    """A note keeps what was not confirmed, and the sweep of another scheduler says it, on the feed too."""
    async with cloud(bus, books) as here, here.placement():
        async with here.scheduler():
            await here.add_host("h1")
            await here.until_known("h1")
            await register(here, "shop", "p1")
        build = a_build(1, project="p1")
        await unsaid(here, build)

        async with here.listening("p1", FEED) as heard, here.scheduler("another", settings=QUICK):

            async def is_heard() -> bool:
                return "instance.error" in types_of(instance_of(build), heard)

            await until_so(is_heard, "it is heard", heard)


async def test_it_hears_of_a_request_that_cannot_be_read_by_the_key_that_it_came_under() -> None:
    async with (
        cloud("memory", "memory") as here,
        here.placement(),
        here.scheduler(),
        here.listening("*", FEED) as heard,
    ):
        await register(here, "shop", "p1", "p2")
        await until_fed(here, "p1", heard)
        heard.clear()
        for message in (
            {"type": "build.request", "flavor": {"vcpus": "two"}, "project": "p1"},
            # What is said of another project under one's own key is heard by oneself.
            {"type": "build.request", "request_id": str(UUID(int=5)), "flavor": {}, "project": "p2"},
        ):
            body = msgspec.json.encode({"message": message})
            await here.client.publisher.offer(Parcel(API, "build.request.p1", body))

        async def are_told() -> bool:
            told = [each for each in heard if isinstance(each, BuildRejected) and each.project == "p1"]
            return {each.field for each in told} >= {"flavor.vcpus", "routing key"}

        await until_so(are_told, "both are told", heard)
        assert {each.project for each in heard if isinstance(each, BuildRejected)} == {"p1"}


async def unsaid(here: Cloud, build: BuildInstance) -> None:
    """A request that was written down and failed, by a scheduler that died before it said so."""

    then = datetime.now(UTC) - timedelta(seconds=30)
    assert build.request_id is not None
    (row,) = accepted(build, [instance_of(build)], then, then + timedelta(minutes=10))
    failed_row = failed(row, then, reason="no valid host")
    assert failed_row is not None
    async with here.rows.transaction() as transaction:
        await transaction.accept([NewRequest(build.request_id, b"digest", (failed_row,))])
        await transaction.note([[failed_row]])
