"""Places of hosts from the operator's order to placement's verdict: rules of groups for domains, requests for a domain."""

from collections import Counter
from collections.abc import Mapping

import pytest
from msgspec import structs

from bus.messages.build import BuildRejected
from bus.messages.hosts import (
    AskHosts,
    HostChanged,
    HostPlace,
    HostsFound,
    HostsPlaced,
    PlaceHosts,
)
from bus.messages.projects import CreateGroup, GroupsFound
from engine.flavors import JoinedGroup
from engine.inventories import GroupId, GroupPolicy, PlaceRule
from engine.places import domain_of
from tests.contracts.placement_orders import an_id
from tests.stories.cloud import Cloud, a_build, a_host, cloud, funnel_of, until_heard
from tests.stories.layouts import STAGES

GROUP = GroupId(an_id("group of racks"))
IN_GROUP = JoinedGroup(id=GROUP)
RACK = 3


async def create(setup: Cloud, *rules: PlaceRule, policy: GroupPolicy = "soft-anti-affinity") -> None:
    await setup.ask(CreateGroup(id=GROUP, policy=policy, rules=rules), GroupsFound)


async def placed(setup: Cloud, places: Mapping[str, str], cell: str = "c1") -> None:
    for name, place in places.items():
        report = a_host(name, cell)
        (root,) = report.providers
        await setup.add_host(name, cell)
        await setup.report(structs.replace(report, providers=(structs.replace(root, place=place),)))
    await setup.until_reported(*places)


async def members_by_domain(setup: Cloud, level: int) -> Counter[str]:
    """As the books have them."""
    places = {provider.id: provider.place for provider in (await setup.providers()).values()}
    members = (await setup.books.members_page(0, 1000)).members
    return Counter(domain_of(places[each.host], level) for each in members)


@STAGES
async def test_of_two_hundred_boots_by_three_schedulers_never_three_get_a_rack(bus: str, books: str) -> None:
    racks = [f"dc1/hall{number % 2}/rack{number}" for number in range(24)]
    async with (
        cloud(bus, books) as setup,
        setup.placement(),
        setup.scheduler("a"),
        setup.scheduler("b"),
        setup.scheduler("c"),
    ):
        await placed(setup, {f"h{at}-{number}": rack for number, rack in enumerate(racks) for at in range(3)})
        await setup.add_hosts("nowhere")
        await create(setup, PlaceRule(level=RACK, policy="anti-affinity", max_members=2))

        builds = [a_build(number, group=IN_GROUP) for number in range(1, 201)]
        await setup.client.ask_all(builds)
        ends = await setup.until_each(builds, "active", "error")

        assert Counter(end.state for end in ends) == {"active": 48, "error": 152}
        assert await members_by_domain(setup, RACK) == dict.fromkeys(racks, 2)
        (step,) = funnel_of(next(end for end in ends if end.state == "error" and end.no_valid_host)).steps
        assert (step.step, step.removed) == ("group rules", 73)


@STAGES
async def test_a_group_stays_in_one_row_and_a_request_in_its_domain(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, setup.placement(), setup.scheduler("a"), setup.scheduler("b"):
        await placed(setup, {f"h{row}{at}": f"dc1/row{row}/rack{at}" for row in range(3) for at in range(2)})
        await create(setup, PlaceRule(level=2, policy="affinity"), policy="anti-affinity")

        builds = [a_build(number, group=IN_GROUP) for number in range(1, 4)]
        await setup.client.ask_all(builds)
        ends = await setup.until_each(builds, "active", "error")

        assert Counter(end.state for end in ends) == {"active": 2, "error": 1}
        assert len(await members_by_domain(setup, 2)) == 1
        there = await setup.boot(10, place="dc1/row2")
        assert there.host.startswith("h2")
        nowhere = await setup.boot(11, "error", place="dc2")
        (step,) = funnel_of(nowhere).steps
        assert (step.step, step.removed) == ("place", 6)
        assert step.example.endswith("asked 'dc2', is at 'dc1/row0/rack0'")


async def test_an_operator_places_hosts_and_reports_do_not_move_them_back() -> None:
    async with cloud("memory", "sqlite") as setup, setup.placement(), setup.scheduler("a"):
        await placed(setup, {"h1": "dc1/rack1", "h2": "dc1/rack1"})
        async with setup.listening("host.changed.#") as heard:
            order = PlaceHosts(hosts=(HostPlace(host="c1/h1", place="dc1/rack2"),), for_user="ann")
            answer = await setup.ask(order, HostsPlaced)
            changed = await until_heard(heard, HostChanged)

        assert answer.hosts == (HostPlace(host="c1/h1", place="dc1/rack2"),)
        assert changed.placed is not None
        assert (changed.host.place, changed.placed.before) == ("dc1/rack2", "dc1/rack1")
        assert "ann" in changed.placed.by
        await placed(setup, {"h1": "dc1/rack1"})
        assert await places(setup) == {"h1": "dc1/rack2", "h2": "dc1/rack1"}
        assert await places(setup, place="dc1/rack2") == {"h1": "dc1/rack2"}
        # The rule counts the member where its host is now.
        await create(setup, PlaceRule(level=2, policy="anti-affinity"))
        first, second = [await setup.boot(number, group=IN_GROUP) for number in (1, 2)]
        assert {first.host, second.host} == {"h1", "h2"}
        back = await setup.ask(PlaceHosts(hosts=(HostPlace(host="h1", place=""),)), HostsPlaced)
        assert back.hosts == (HostPlace(host="c1/h1", place="dc1/rack1"),)
        await setup.boot(3, "error", group=IN_GROUP)


async def places(setup: Cloud, place: str = "") -> dict[str, str]:
    found = await setup.ask(AskHosts(place=place), HostsFound)
    return {host.name: host.place for host in found.hosts}


@pytest.mark.parametrize(
    ("hosts", "field", "reason"),
    [
        ((("h1", "dc9"), ("h3", "dc9")), "hosts[1].host", "no host of this name is known"),
        ((("h1", "dc9"), ("c1/h1", "dc9")), "hosts[1].host", "hosts[0] names it, too"),
    ],
)
async def test_of_an_order_with_one_wrong_host_nothing_is_done(
    hosts: tuple[tuple[str, str], ...], field: str, reason: str
) -> None:
    async with cloud("memory", "memory") as setup, setup.placement(), setup.scheduler("a"):
        await placed(setup, {"h1": "dc1", "h2": "dc1"})

        order = PlaceHosts(hosts=tuple([HostPlace(host=host, place=place) for host, place in hosts]))
        refused = await setup.ask(order, BuildRejected)

        assert (refused.field, refused.reason.startswith(reason)) == (field, True)
        checked = PlaceHosts(hosts=(HostPlace(host="h1", place="dc9"),), only_check=True)
        assert (await setup.ask(checked, HostsPlaced)).hosts == (HostPlace(host="c1/h1", place="dc1"),)
        assert await places(setup) == {"h1": "dc1", "h2": "dc1"}
