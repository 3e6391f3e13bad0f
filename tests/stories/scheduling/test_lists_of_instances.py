"""Lists of instances over the bus: orders, conditions, counts, and the page behind an instance that is gone."""

from msgspec import structs

from bus.messages.build import AskInstances, BuildRejected, InstancesFound
from tests.stories.cloud import SMALL, Cloud, a_build, cloud, instance_of
from tests.stories.layouts import BOTH

LARGE = structs.replace(SMALL, name="large", vcpus=2)


async def names(setup: Cloud, question: AskInstances) -> list[str]:
    """All names, by pages of one instance each."""
    found, after = list[str](), None
    while True:
        page = await setup.ask(structs.replace(question, limit=1, after=after), InstancesFound)
        found += [each.name for each in page.instances]
        if (after := page.next) is None:
            return found


BUILDS = (
    a_build(1, name="web-10", hosts=("h1",)),
    a_build(2, name="web-2", hosts=("h2",), flavor=LARGE),
    a_build(3, name="db", hosts=("h1",), count=2),
)
# Conditions and orders together are tested by the store's contract.
LISTS = (
    (AskInstances(order="age"), ["web-10", "web-2", "db-1", "db-2"]),
    (AskInstances(order="name", backwards=True), ["web-10", "web-2", "db-2", "db-1"]),
    (AskInstances(order="host"), ["db-1", "db-2", "web-10", "web-2"]),
    (AskInstances(order="name", part="EB"), ["web-2", "web-10"]),
    (AskInstances(flavor="large"), ["web-2"]),
    (AskInstances(host="c1/h1", cell="c1", order="name"), ["db-1", "db-2", "web-10"]),
)


@BOTH
async def test_instances_are_listed_in_each_order_and_counted(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, setup.scheduling("h1"):
        await setup.add_hosts("h2", cell="c2")
        for build in BUILDS:
            await setup.built(build)

        assert [await names(setup, question) for question, _ in LISTS] == [wanted for _, wanted in LISTS]
        counted = await setup.ask(AskInstances(cell="c1", limit=1, counted=True), InstancesFound)
        assert (len(counted.instances), counted.count, counted.more_than) == (1, 3, False)
        gone = instance_of(a_build(9))
        refused = await setup.ask(AskInstances(order="name", after=gone), BuildRejected)
        assert (refused.field, refused.value) == ("after", str(gone))
        assert refused.reason == "there is no such instance any more: begin with the first page again"
