"""Server groups from a client's order to placement's verdict: kept apart or together, by several schedulers at once."""

from collections import Counter
from uuid import UUID

from msgspec import structs

from bus.messages.build import BuildAccepted, BuildRejected
from bus.messages.projects import AskGroups, CreateGroup, DeleteGroup, GroupsFound, GroupState, PlacedMember
from engine.flavors import JoinedGroup
from engine.inventories import (
    ConsumerId,
    GroupId,
    GroupMember,
    GroupPolicy,
)
from tests.stories.cloud import Cloud, a_build, cloud, funnel_of, instance_of
from tests.stories.layouts import STAGES
from tests.stories.scripted import host_id

GROUP = GroupId(UUID(int=5))
IN_GROUP = JoinedGroup(id=GROUP)


async def create(setup: Cloud, policy: GroupPolicy = "anti-affinity", **fields: object) -> GroupState:
    order = structs.replace(CreateGroup(id=GROUP, policy=policy, name="web"), **fields)
    answer = await setup.ask(order, GroupsFound)
    (group,) = answer.groups
    return group


async def shown(setup: Cloud) -> GroupState:
    (group,) = (await setup.ask(AskGroups(id=GROUP), GroupsFound)).groups
    return group


def members(group: GroupState) -> dict[ConsumerId, str]:
    return {each.consumer: each.host for each in group.members}


@STAGES
async def test_members_that_are_booted_at_once_by_three_schedulers_get_hosts_of_their_own(
    bus: str, books: str
) -> None:
    async with (
        cloud(bus, books) as setup,
        setup.placement(),
        setup.scheduler("a"),
        setup.scheduler("b"),
        setup.scheduler("c"),
    ):
        for cell in ("c1", "c2"):
            await setup.add_hosts(*(f"host-{number}-in-{cell}" for number in range(3)), cell=cell)
        assert await create(setup) == GroupState(id=GROUP, policy="anti-affinity", name="web")

        builds = [a_build(number, group=IN_GROUP) for number in range(1, 6)]
        await setup.client.ask_all(builds)
        await setup.until_each(builds, "active")

        assert max((await setup.used()).values()) == 1
        group = await shown(setup)
        assert group.size == 5
        assert len(set(members(group).values())) == 5
        assert {order.instance: order.chosen.name for order in setup.placed} == members(group)
        assert {order.group for order in setup.placed} == {setup.placed[0].group}
        too_many = [a_build(number, group=IN_GROUP) for number in range(6, 8)]
        await setup.client.ask_all(too_many)
        ends = await setup.until_each(too_many, "active", "error")
        assert Counter(end.state for end in ends) == {"active": 1, "error": 1}
        (failed,) = [end for end in ends if end.state == "error"]
        (step,) = funnel_of(failed).steps
        assert (step.step, step.removed) == ("anti-affinity", 6)
        host, _, reason = step.example.partition(": ")
        assert str(await member_on(setup, host)) in reason


async def member_on(setup: Cloud, host: str) -> ConsumerId:
    (member,) = [who for who, where in members(await shown(setup)).items() if where == host]
    return member


@STAGES
async def test_an_affinity_group_of_several_requests_stays_on_the_host_of_its_first_member(
    bus: str, books: str
) -> None:
    async with cloud(bus, books) as setup, setup.placement(), setup.scheduler("a"), setup.scheduler("b"):
        await setup.add_hosts("h1", "h2", "h3", vcpu=4)
        await create(setup, "affinity")

        builds = [a_build(1, group=IN_GROUP, count=2), a_build(2, group=IN_GROUP), a_build(3, group=IN_GROUP)]
        await setup.client.ask_all(builds)
        instances = [instance_of(builds[0], 1), *map(instance_of, builds)]

        assert len({(await setup.until_state(each, "active")).host for each in instances}) == 1
        failed = await setup.boot(4, "error", group=IN_GROUP)
        assert [(step.step, step.removed) for step in funnel_of(failed).steps] == [
            ("affinity", 2),
            ("capacity", 1),
        ]


async def test_a_build_that_names_no_group_or_describes_it_wrongly_ends_in_error() -> None:
    async with cloud("memory", "memory") as setup, setup.scheduling("h1"):
        await create(setup, max_per_host=2, project="shop")

        wrong = {
            "there is no such server group": a_build(
                1, project="shop", group=JoinedGroup(id=GroupId(UUID(int=99)))
            ),
            "or it is another project's": a_build(2, project="bank", group=IN_GROUP),
            "group.policy is 'affinity': the group's is 'anti-affinity'": a_build(
                3, project="shop", group=JoinedGroup(id=GROUP, policy="affinity")
            ),
            "group.max_per_host is 3: the group's is 2": a_build(
                4, project="shop", group=JoinedGroup(id=GROUP, max_per_host=3)
            ),
        }
        for reason, build in wrong.items():
            (state,) = await setup.built(build, "error")
            assert reason in state.reason
        right = JoinedGroup(id=GROUP, policy="anti-affinity", max_per_host=2)
        await setup.built(a_build(5, project="shop", group=right, count=2))
        assert await setup.used() == {"h1": 2}


async def test_a_group_is_created_once_listed_and_deleted_and_its_members_stay() -> None:
    async with cloud("memory", "sqlite") as setup, setup.scheduling("h1"):
        group = await create(setup, project="shop")
        assert await create(setup, project="shop") == group
        build = a_build(1, group=IN_GROUP, project="shop")
        await setup.built(build)

        listed = await setup.client.ask(AskGroups(project="shop"))
        assert listed == GroupsFound(groups=(structs.replace(group, size=1),))
        assert await setup.client.ask(AskGroups(project="bank")) == GroupsFound(groups=())
        assert (await shown(setup)).members == (PlacedMember(consumer=instance_of(build), host="h1"),)
        assert await setup.client.ask(DeleteGroup(id=GROUP, project="bank")) == GroupsFound(groups=())
        assert await setup.client.ask(DeleteGroup(id=GROUP, project="shop")) == GroupsFound(groups=(group,))
        assert await setup.client.ask(AskGroups()) == GroupsFound(groups=())
        assert isinstance(await setup.client.ask(build), BuildAccepted), "it is still the same request"
        assert isinstance(await setup.client.ask(CreateGroup(id=GROUP, policy="affinity")), BuildRejected)
        page = await setup.books.members_page(0, 10)
        assert page.members == (
            GroupMember(group=GROUP, consumer=instance_of(build), attempt=1, host=host_id("h1")),
        )
