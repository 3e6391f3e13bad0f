"""Instances of another cloud are taken over by a host that has them, and given back, while nothing is built or destroyed."""

from datetime import UTC, datetime
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.audit import AdoptedState, AdoptInstance, GiveBackInstance
from bus.messages.build import BuildRejected, InstancesFound, InstanceState
from bus.messages.cell import AdoptGuest, LeaveGuest, SpawnInstance
from bus.messages.hosts import HostSet, SetHost
from compute_sim.core.attempts import HostOrder, Work
from engine.flavors import Flavor, Image, InstanceId, RequestId
from engine.inventories import ResourceAmount, Share
from laboratory.computes.driver import SimulatedDriver, root_of
from moor.client.bus_client import answer_of, providers_of
from tests.stories.moves.books_stage import BooksStage, books_stage
from tests.waiting import until

HOST = root_of("c1-host-00001")
CREATED = datetime(2024, 5, 6, tzinfo=UTC)
# No scheduler here knows the second key.
SPECS = {"hw_rng:allowed": "True", "rack:color": "red"}
FLAVOR = Flavor(name="legacy", vcpus=2, ram_mb=1024, root_gb=3, extra_specs=SPECS)
IMAGE = Image(source="debian")
Obeyed = set[tuple[type[HostOrder], Image | None]]
STATES: tuple[AdoptedState, ...] = ("active", "stopped", "shelved", "broken")
TOLD = {"active": "active", "stopped": "stopped", "shelved": "shelved", "broken": "error"}


async def an_order(stage: BooksStage, number: int, state: AdoptedState = "active") -> AdoptInstance:
    tree = await providers_of(stage.client)
    numa = next(each for each in tree if each.name == "c1-host-00001_NUMA1")
    disk = next(each for each in tree if each.cell == "c1" and "DISK_GB" in each.inventories)
    amounts = (
        ResourceAmount(provider=numa.id, resource="VCPU", amount=2),
        ResourceAmount(provider=numa.id, resource="MEMORY_MB", amount=1024),
        ResourceAmount(provider=disk.id, resource="DISK_GB", amount=3),
    )
    return AdoptInstance(
        instance=InstanceId(UUID(int=(number << 64) + 7)),
        request_id=RequestId(UUID(int=500)),
        number=number,
        of_cell="c1",
        host="c1-host-00001",
        share=Share(host=HOST, amounts=amounts),
        state=state,
        flavor=FLAVOR,
        created_at=CREATED,
        name=f"old-{number}",
        project="shop",
        user="ann",
        image=IMAGE,
        reason="its disk is full" if state == "broken" else "",
    )


async def set_host(stage: BooksStage, mode: str) -> None:
    await answer_of(stage.client, SetHost(host="c1-host-00001", mode=mode, reason="import"), HostSet)  # type: ignore[arg-type]


async def told_of(stage: BooksStage, orders: list[AdoptInstance]) -> dict[InstanceId, InstanceState]:
    return await stage.states([each.instance for each in orders])


async def adopted(stage: BooksStage, orders: list[AdoptInstance]) -> None:
    for order in orders:
        await answer_of(stage.client, order, InstancesFound)

    wanted = {each.instance: TOLD[each.state] for each in orders}
    await until(
        lambda: told_of(stage, orders),
        f"they are {wanted}",
        lambda found: {id_: each.state for id_, each in found.items()} == wanted,
    )
    await stage.until_silent()


@pytest.fixture
def obeyed(monkeypatch: pytest.MonkeyPatch) -> Obeyed:
    """The orders that hosts get, with the image that each names."""
    obeyed: Obeyed = set()
    begin = SimulatedDriver.begin

    def watched(driver: SimulatedDriver, order: HostOrder, at_s: float) -> Work:
        obeyed.add((type(order), getattr(order, "image", None)))
        return begin(driver, order, at_s)

    monkeypatch.setattr(SimulatedDriver, "begin", watched)
    return obeyed


@pytest.mark.parametrize(
    "kind", ["embedded", pytest.param("real", marks=[pytest.mark.rabbitmq, pytest.mark.postgresql])]
)
async def test_they_keep_all_that_they_are_and_live_on_like_any_instance(kind: str, obeyed: Obeyed) -> None:
    async with books_stage(kind) as stage:
        await set_host(stage, "draining")
        orders = [await an_order(stage, number, state) for number, state in enumerate(STATES)]
        await adopted(stage, orders)
        await adopted(stage, orders)

        told = await told_of(stage, orders)
        assert [(each.name, each.host, each.project, each.attempt) for each in told.values()] == [
            (f"old-{number}", "c1-host-00001", "shop", 1) for number in range(4)
        ]
        held = {each.id: each for each in await stage.placement.books_page(None, 100)}
        assert {held[each.instance].host for each in orders} == {HOST}
        await set_host(stage, "up")
        # They are moved, started, built anew of their image and deleted as if they were built here.
        active, stopped, shelved, broken = [each.instance for each in orders]
        await stage.move(active, "migrate", "moved", hosts=("c1-host-00002",))
        await stage.move(stopped, "start", "active")
        await stage.move(shelved, "unshelve", "active")
        await set_host(stage, "down")
        await stage.move(stopped, "evacuate", "active")
        assert (SpawnInstance, IMAGE) in obeyed
        await stage.delete([active, stopped, shelved, broken])
        await stage.until_silent()
        assert not [each for each in await stage.placement.books_page(None, 100) if each.held]


async def test_what_is_given_back_leaves_nothing_here_and_may_come_again(obeyed: Obeyed) -> None:
    async with books_stage("embedded") as stage:
        await set_host(stage, "draining")
        orders = [await an_order(stage, number, state) for number, state in enumerate(STATES)]
        for _ in range(2):
            await adopted(stage, orders)
            for order in orders:
                await answer_of(stage.client, GiveBackInstance(instance=order.instance), InstancesFound)
                await answer_of(stage.client, GiveBackInstance(instance=order.instance), InstancesFound)
            await stage.until([each.instance for each in orders], {"deleted"})
            await stage.until_silent()
            assert not [each for each in await stage.placement.books_page(None, 100) if each.held]
        await adopted(stage, orders)
        assert {each.attempt for each in (await told_of(stage, orders)).values()} == {3}
    assert obeyed == {(AdoptGuest, None), (LeaveGuest, None)}


async def test_wrong_orders_change_nothing_and_say_why() -> None:
    async with books_stage("embedded") as stage:
        order = await an_order(stage, 0)
        (built,) = await stage.boot(9, 1)

        async def refused(field: str, why: str, message: AdoptInstance | GiveBackInstance) -> None:
            answer = await stage.client.ask(message)
            assert isinstance(answer, BuildRejected), answer
            assert (answer.field, why in answer.reason) == (field, True), answer

        too_much = structs.replace(order.share.amounts[0], amount=100_000)
        beyond = structs.replace(order.share, amounts=(too_much,))
        await refused("host", "must be draining", order)
        await set_host(stage, "draining")
        await refused("host", "", structs.replace(order, host="nowhere"))
        await refused(
            "instance", "an instance with this id was built here", structs.replace(order, instance=built)
        )
        await refused("share", "does_not_fit", structs.replace(order, share=beyond))
        await refused("group", "there is no such server group", structs.replace(order, group=UUID(int=77)))
        await refused("instance", "it was built here", GiveBackInstance(instance=built))
        await refused("instance", "", GiveBackInstance(instance=order.instance))
        await adopted(stage, [order])
        await refused("request_id", "", structs.replace(order, instance=InstanceId(UUID(int=4))))

        async def is_released() -> bool:
            held = {each.id for each in await stage.placement.books_page(None, 100) if each.held}
            return held == {order.instance, built}

        await until(is_released, "the claim of the refused one is released")
        await stage.until_silent()
        await stage.move(order.instance, "migrate", "moved", hosts=("c1-host-00002",))
        await refused("instance", "it is moved", GiveBackInstance(instance=order.instance))
