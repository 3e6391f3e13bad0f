"""What one project may ask for has limits. A request beyond them is rejected by name before anything is written."""

from uuid import UUID

from msgspec import structs

from bus.messages.build import (
    AskInstances,
    BuildAccepted,
    BuildInstance,
    BuildRejected,
    DeleteInstance,
    InstancesFound,
)
from bus.messages.projects import AskGroups, CreateGroup, DeleteGroup, GroupsFound
from engine.flavors import InstanceId, Wait
from engine.inventories import GroupId
from tests.narrowing import must_be
from tests.stories.cloud import QUICK, Cloud, a_build, cloud, instance_of
from tests.stories.layouts import BOTH
from tests.waiting import MovedClock

pytestmark = [BOTH]


async def booted(setup: Cloud, number: int, project: str = "shop", **fields: object) -> BuildInstance:
    """Build it; it must be accepted. Without a host it ends in error at once."""
    build = a_build(number, project=project, **fields)
    assert isinstance(await setup.client.ask(build), BuildAccepted)
    return build


async def refused(setup: Cloud, build: BuildInstance) -> str:
    """Ask for it: nothing is written, and the answer is why it is rejected."""
    answer = await setup.ask(build, BuildRejected)
    assert (answer.field, answer.value, answer.request_id) == ("project", "shop", build.request_id)
    assert await setup.instance(instance_of(build)) is None
    return answer.reason


async def rows(setup: Cloud) -> int:
    return len((await setup.ask(AskInstances(limit=200), InstancesFound)).instances)


async def test_a_project_has_only_so_many_instances_that_are_open_or_in_error(bus: str, books: str) -> None:
    """Those of other projects, those of no project, and those that have hosts do not count."""
    settings = structs.replace(QUICK, project_records_max=5)
    async with cloud(bus, books) as setup, setup.placement(), setup.scheduler(settings=settings):
        failed = await booted(setup, 1, count=3)
        await booted(setup, 2, count=2, wait=Wait(for_s=600))

        reason = await refused(setup, a_build(3, project="shop", count=2))

        assert reason.startswith("project shop has 5 instances that have no host")
        assert "asks for 2 more: at most 5 (scheduler.project_records_max)" in reason
        assert await rows(setup) == 5
        await booted(setup, 4, project="bank", count=5)
        await booted(setup, 5, project="", count=20)
        # What was taken before is answered as it was.
        assert isinstance(await setup.client.ask(failed), BuildAccepted)

        for index in range(3):
            await setup.client.ask(DeleteInstance(instance=instance_of(failed, index), project="shop"))
        await setup.add_hosts("h1", vcpu=64)
        for number in range(10, 20):
            build = await booted(setup, number, count=3)
            await setup.until_all(build, "active")


async def test_many_requests_of_a_batch_count_together(bus: str, books: str) -> None:
    settings = structs.replace(QUICK, project_records_max=4)
    async with cloud(bus, books) as setup, setup.placement():
        builds = [a_build(number, project="shop", count=2) for number in range(1, 30)]
        await setup.send(*builds)
        async with setup.scheduler(settings=settings):
            assert sum(isinstance(each, BuildAccepted) for each in await setup.client.ask_all(builds)) == 2
            assert await rows(setup) == 4


async def test_a_project_may_ask_for_only_so_many_instances_a_second(bus: str, books: str) -> None:
    """A project that has used up its rate may ask again later. A delete of what is not known counts, for it leaves a row; others do
    not.
    """
    clock, settings = MovedClock(), structs.replace(QUICK, project_rate=1)
    async with cloud(bus, books) as setup, setup.placement(), setup.scheduler(settings=settings, clock=clock):
        first = await booted(setup, 1, count=100)

        reason = await refused(setup, a_build(2, project="shop"))
        unknown = DeleteInstance(instance=InstanceId(UUID(int=77)), project="shop")
        answer = await setup.client.ask(unknown)

        assert "may ask this scheduler for 1 a second (scheduler.project_rate)" in reason
        assert must_be(BuildRejected, answer).reason.startswith("project shop has asked for")
        deleted = await setup.ask(DeleteInstance(instance=instance_of(first), project="shop"), InstancesFound)
        assert [each.state for each in deleted.instances] == ["deleted"]
        await booted(setup, 3, project="bank")

        clock.pass_s(100)
        await booted(setup, 4)
        assert isinstance(await setup.client.ask(unknown), InstancesFound)


async def test_a_project_has_only_so_many_server_groups_also_if_it_deletes_them(bus: str, books: str) -> None:
    settings = structs.replace(QUICK, project_records_max=3)
    async with cloud(bus, books) as setup, setup.placement(), setup.scheduler(settings=settings):
        orders = [
            CreateGroup(id=GroupId(UUID(int=number)), policy="affinity", project="shop")
            for number in range(1, 5)
        ]
        for each in orders[:3]:
            assert isinstance(await setup.client.ask(each), GroupsFound)
        await setup.client.ask(DeleteGroup(id=orders[0].id, project="shop"))

        assert "project shop has 3 server groups" in (await setup.ask(orders[3], BuildRejected)).reason
        assert isinstance(await setup.client.ask(orders[1]), GroupsFound)
        assert isinstance(await setup.client.ask(structs.replace(orders[3], project="bank")), GroupsFound)
        found = await setup.ask(AskGroups(), GroupsFound)
        assert [each.id for each in found.groups] == [each.id for each in orders[1:]]


async def test_deletes_without_a_host_do_not_make_room_without_end(bus: str, books: str) -> None:
    """Of instances that are not known, and of those that found no host: their rows stay for two days."""
    settings = structs.replace(QUICK, project_records_max=4)
    async with cloud(bus, books) as setup, setup.placement(), setup.scheduler(settings=settings):
        unknown, other, another = [
            DeleteInstance(instance=InstanceId(UUID(int=number)), project="shop")
            for number in (1001, 1002, 1003)
        ]
        for each in (unknown, other):
            assert isinstance(await setup.client.ask(each), InstancesFound)
        failed = await booted(setup, 3, count=2)
        for index in range(2):
            await setup.client.ask(DeleteInstance(instance=instance_of(failed, index), project="shop"))

        answer = await setup.client.ask(another)
        reason = await refused(setup, a_build(4, project="shop"))

        assert must_be(BuildRejected, answer).reason == reason
        assert "has 4 instances that were deleted before they had a host" in reason
        assert isinstance(await setup.client.ask(structs.replace(another, project="bank")), InstancesFound)
