"""What keeps a host of Nova back: it is not fenced, something is under way, or its rows contradict each other; and what an instance holds here."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid5

import pytest
from msgspec import structs

from bus.message import Message
from bus.messages.audit import AdoptInstance, BookEntry
from bus.messages.build import InstanceState
from bus.messages.catalog import CreateFlavor
from bus.messages.hosts import AggregateSet, AggregateState, SetAggregate
from engine.flavors import Flavor, Image, InstanceId, RequestId
from engine.inventories import GroupId, InventoryState, ProviderId, ProviderState, ResourceAmount, Share
from moor.client.books.views import InstanceView
from nova_bridge.importing.handing_over import FROM_NOVA, FROM_NOVA_NAME, Cloud
from nova_bridge.importing.judging import (
    REQUESTS,
    HostPlan,
    differences_of,
    planned,
    what_is_under_way,
    why_not_fenced,
)
from nova_bridge.importing.records import (
    ContradictionError,
    NovaAllocation,
    NovaDevice,
    NovaGuestCell,
    NovaHost,
    NovaInstance,
    NovaMigration,
    NovaNode,
    NovaService,
)
from nova_bridge.importing.shared import Difference, create_shared
from nova_bridge.importing.shares import HostTree, share_of, wanted_of
from tests.nova.rows import SMALL, stored
from tests.unit.choosing.scheduler_worlds import a_host

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
NODE = NovaNode(1, "root", "h1", "h1.org", "QEMU", 8, 8192, 100)
ONE = NovaInstance("one", "h1", "active")
HELD = NovaAllocation("one", "root", "h1.org", "root", "VCPU", 2)
HOST = NovaHost(
    "c1",
    "h1",
    (NODE,),
    NovaService("h1", disabled=True, seen_at=NOON - timedelta(hours=1)),
    (ONE,),
    allocations=(HELD,),
)


@pytest.mark.parametrize(
    ("service", "why"),
    [
        (
            NovaService("h1", disabled=False),
            "enabled in Nova: `openstack compute service set --disable h1 nova-compute`",
        ),
        (
            NovaService("h1", disabled=True, seen_at=NOON - timedelta(seconds=4)),
            "nova-compute still runs there (heard 4 s ago): stop it, and wait for a minute",
        ),
    ],
)
def test_it_must_be_disabled_and_its_compute_stopped(service: NovaService, why: str) -> None:
    assert why_not_fenced(structs.replace(HOST, service=service), NOON) == [why]
    forced = structs.replace(service, disabled=True, forced_down=True)
    assert why_not_fenced(structs.replace(HOST, service=forced), NOON) == []


def test_migrations_and_builds_to_the_host_keep_it_back() -> None:
    moves = tuple(
        NovaMigration(f"m-{state}", "one", "migration", state, "h2", "h1")
        for state in ("running", "done", "confirmed")
    )

    found = what_is_under_way(structs.replace(HOST, migrations=moves, builds=("two",)))

    assert found == [
        "migration m-running (migration) of instance one is running",
        "instance two is being built there",
    ]


def test_an_instance_is_taken_over_with_all_that_nova_says_of_it() -> None:
    root, id_ = ProviderId(UUID(int=1)), str(UUID(int=7))
    state = ProviderState(
        internal=1, id=root, name="h1", root=root, inventories={"VCPU": InventoryState(total=8)}
    )
    image = stored("ImageMeta", "1.8", {"properties": stored("ImageMetaProps", "1.36", {"os_type": "linux"})})
    one = NovaInstance(
        id=id_, host="h1", state="stopped", name="web", project="shop", user="ann", created_at=NOON, number=3,
        image="debian", flavor=json.dumps({"cur": SMALL.object}), request=f"req-{UUID(int=8)}",
        group=str(UUID(int=9)),
        spec=json.dumps(stored("RequestSpec", "1.14", {"image": image, "availability_zone": "north"})),
    )  # fmt: skip
    lost = structs.replace(one, id=str(UUID(int=5)), state="error", fault="its disk is full", request="")
    held = tuple(structs.replace(HELD, consumer=each.id) for each in (one, lost))
    host = structs.replace(HOST, instances=(one, lost), allocations=held)

    plan = planned(host, HostTree(root, (state,)), {}, {}, NOON)

    order = AdoptInstance(
        instance=InstanceId(UUID(id_)),
        request_id=RequestId(UUID(int=8)),
        number=3,
        of_cell="c1",
        host="h1",
        share=Share(host=root, amounts=(ResourceAmount(root, "VCPU", 2),)),
        state="stopped",
        flavor=Flavor(name="m1.small", vcpus=2, ram_mb=2048, root_gb=20),
        created_at=NOON,
        name="web",
        project="shop",
        user="ann",
        image=Image(source="debian"),
        image_properties={"os_type": "linux"},
        availability_zone="north",
        group=GroupId(UUID(int=9)),
    )
    broken = structs.replace(
        order,
        instance=InstanceId(UUID(lost.id)),
        request_id=RequestId(uuid5(REQUESTS, lost.id)),
        state="broken",
        reason="its disk is full",
    )
    assert (plan.contradictions, plan.orders) == ((), (order, broken))
    assert plan.needs == {each.instance: {"VCPU": 2} for each in plan.orders}


class Taken(list[Message]):
    """All orders are taken."""

    async def ask_all(self, orders: Sequence[Message]) -> Sequence[Message]:
        self += orders
        return orders

    async def ask(self, order: SetAggregate) -> AggregateSet:
        self.append(order)
        return AggregateSet(aggregate=AggregateState(id=order.aggregate, name=order.name))


async def test_all_orders_about_what_is_missing_are_given_each_after_those_before_it() -> None:
    taken, (*three, other) = Taken(), [CreateFlavor(flavor=Flavor(name=name)) for name in "abcd"]
    differences = [Difference("one", "", (*three,)), Difference("other", "", (other,))]
    assert await create_shared(taken, differences) == []  # type: ignore[arg-type]
    assert taken == [three[0], other, *three[1:]]


async def test_a_host_that_is_given_back_leaves_the_aggregate_of_those_that_were_handed_over() -> None:
    taken, host = Taken(), a_host("h1")
    cloud = Cloud(taken, {})  # type: ignore[arg-type]
    await cloud.note_taken(host)
    await cloud.note_given_back(host)
    joins = SetAggregate(aggregate=FROM_NOVA, name=FROM_NOVA_NAME, add_hosts=(str(host.id),))
    assert taken == [joins, structs.replace(joins, add_hosts=(), remove_hosts=joins.add_hosts)]


ROOT = ProviderId(UUID(int=1))
NOVA_ROOT = "nova-root"
HOLDER = NovaInstance(id=str(UUID(int=7)), host="h1", state="active")


def provider(name: str, *, is_root: bool = False, **inventories: int) -> ProviderState:
    id_ = ProviderId(uuid5(ROOT, name)) if not is_root else ROOT
    return ProviderState(
        internal=1,
        id=id_,
        name=name,
        root=ROOT,
        parent=None if is_root else ROOT,
        inventories={resource: InventoryState(total=total) for resource, total in inventories.items()},
    )


NESTED = (
    provider("h1", is_root=True, DISK_GB=100),
    provider("h1_NUMA0", VCPU=8, PCPU=4, MEMORY_MB=8_192, CUSTOM_MEMORY_MB_PAGES_2048=8_192),
    provider("h1_NUMA1", VCPU=8, PCPU=4, MEMORY_MB=16_384),
)


def held(**amounts: int) -> list[NovaAllocation]:
    return [
        NovaAllocation(HOLDER.id, NOVA_ROOT, "h1.org", NOVA_ROOT, name, each)
        for name, each in amounts.items()
    ]


def share(
    tree: HostTree,
    allocations: list[NovaAllocation],
    cells: tuple[NovaGuestCell, ...] = (),
    devices: tuple[NovaDevice, ...] = (),
) -> Share:
    wanted = wanted_of(allocations, {}, frozenset({NOVA_ROOT}))
    return share_of(HOLDER, wanted, cells, devices, tree)


def named(found: Share, tree: HostTree) -> set[tuple[str, str, int]]:
    return {(tree.own[each.provider].name, each.resource, each.amount) for each in found.amounts}


def planned_on(vcpus: int) -> HostPlan:
    """Two instances of two processors each come to a host that has so many."""
    one = structs.replace(HOLDER, flavor=json.dumps({"cur": SMALL.object}))
    both = (one, structs.replace(one, id=str(UUID(int=8))))
    allocations = tuple(structs.replace(HELD, consumer=each.id) for each in both)
    host = structs.replace(HOST, instances=both, allocations=allocations)
    return planned(host, HostTree(ROOT, (provider("h1", is_root=True, VCPU=vcpus),)), {}, {}, NOON)


def test_instances_that_fit_one_by_one_and_not_together_keep_their_host_back() -> None:
    assert planned_on(4).contradictions == ()
    assert planned_on(3).contradictions == ("VCPU of h1: its instances need 1 more than the host has here",)


def test_what_an_instance_holds_otherwise_than_in_nova_is_named() -> None:
    order, _ = planned_on(4).orders
    told = InstanceState(id=order.instance, request_id=order.request_id, sequence=1, state="active")
    claim = BookEntry(
        order.instance, "INSTANCE", "", "", "c1", 1, 1, host=ROOT, held=(ResourceAmount(ROOT, "VCPU", 1),)
    )
    view = InstanceView(order.instance, at_api=told, consumer=claim)

    differences = differences_of(order, {"VCPU": 2}, view, is_asked=True)

    assert f"instance {order.instance}: it holds 2 VCPU in Nova, and 1 here" in differences


def test_its_own_cells_say_which_node_gives_what() -> None:
    tree = HostTree(ROOT, NESTED)
    cells = (NovaGuestCell(0, 0, 2, 4_096, 2_048), NovaGuestCell(1, 0, 2, 4_096, 4))

    assert named(share(tree, held(PCPU=4, MEMORY_MB=8_192), cells), tree) == {
        ("h1_NUMA0", "PCPU", 2),
        ("h1_NUMA0", "CUSTOM_MEMORY_MB_PAGES_2048", 4_096),
        ("h1_NUMA1", "PCPU", 2),
        ("h1_NUMA1", "MEMORY_MB", 4_096),
    }


@pytest.mark.parametrize("of_pages", [{"CUSTOM_MEMORY_MB_PAGES_2048": 8_192}, {}])
def test_without_numa_nodes_large_pages_are_the_hosts_own_or_refused(of_pages: dict[str, int]) -> None:
    tree = HostTree(ROOT, (provider("h1", is_root=True, VCPU=8, MEMORY_MB=16_384, **of_pages),))
    cells = (NovaGuestCell(0, 2, 0, 4_096, 2_048), NovaGuestCell(1, 2, 0, 1_024, 4))
    if not of_pages:
        with pytest.raises(ContradictionError, match="holds 4096 CUSTOM_MEMORY_MB_PAGES_2048, and the host"):
            share(tree, held(VCPU=4, MEMORY_MB=5_120), cells)
        return

    assert named(share(tree, held(VCPU=4, MEMORY_MB=5_120), cells), tree) == {
        ("h1", "VCPU", 4),
        ("h1", "CUSTOM_MEMORY_MB_PAGES_2048", 4_096),
        ("h1", "MEMORY_MB", 1_024),
    }


# Objects
