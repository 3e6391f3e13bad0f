"""Lists of instances over the bus: orders, conditions, counts, and the page behind an instance that is gone."""

import pytest
from msgspec import structs

from bus.messages.build import AskInstances, BuildRejected, InstancesFound
from tests.stories.cloud import SMALL, Cloud, a_build, cloud, instance_of
from tests.stories.layouts import BOTH

pytestmark = pytest.mark.asyncio

LARGE = structs.replace(SMALL, name="large", vcpus=2)


async def names(setup: Cloud, question: AskInstances) -> list[str]:
    """All names, by pages of one instance each."""
    found, after = list[str](), None
    while True:
        page = await setup.ask(structs.replace(question, limit=1, after=after), InstancesFound)
        found += [each.name for each in page.instances]
        if (after := page.next) is None:
            return found


@BOTH
async def test_instances_are_listed_in_each_order_and_counted(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, setup.scheduling("h1"):
        await setup.add_hosts("h2", cell="c2")
        builds = (
            a_build(1, name="web-10", hosts=("h1",)),
            a_build(2, name="web-2", hosts=("h2",), flavor=LARGE),
            a_build(3, name="db", hosts=("h1",), count=2),
        )
        for build in builds:
            await setup.client.ask(build)
            await setup.until_all(build, "active")

        assert await names(setup, AskInstances(order="age")) == ["web-10", "web-2", "db-1", "db-2"]
        assert await names(setup, AskInstances(order="name", backwards=True)) == [
            "web-10",
            "web-2",
            "db-2",
            "db-1",
        ]
        assert await names(setup, AskInstances(order="host")) == ["db-1", "db-2", "web-10", "web-2"]
        assert await names(setup, AskInstances(order="name", part="EB")) == ["web-2", "web-10"]
        assert await names(setup, AskInstances(flavor="large")) == ["web-2"]
        assert await names(setup, AskInstances(host="c1/h1", cell="c1", order="name")) == [
            "db-1",
            "db-2",
            "web-10",
        ]
        counted = await setup.ask(AskInstances(cell="c1", limit=1, counted=True), InstancesFound)
        assert (len(counted.instances), counted.count, counted.more_than) == (1, 3, False)

        odd = await setup.boot(4, name="WEB-ÜBER", hosts=("h1",))
        # Only the capitals of ASCII are like small letters, whatever the database and its locale.
        for part, wanted in (("Ü", ["WEB-ÜBER"]), ("b-Üb", ["WEB-ÜBER"]), ("ü", []), ("%", []), ("_", [])):
            assert await names(setup, AskInstances(part=part)) == wanted, part
        await setup.delete(odd.id)
        # A deleted instance has no place in the order of hosts, and is not counted there.
        by_host = await setup.ask(AskInstances(order="host", limit=1, counted=True), InstancesFound)
        assert by_host.count == len(await names(setup, AskInstances(order="host"))) == 4
        gone = instance_of(a_build(9))
        refused = await setup.ask(AskInstances(order="name", after=gone), BuildRejected)
        assert (refused.field, refused.value) == ("after", str(gone))
        assert refused.reason == "there is no such instance any more: begin with the first page again"
