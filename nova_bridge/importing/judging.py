"""What keeps a host back from being handed over: it is not fenced, something is under way, or its rows contradict each other."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from uuid import UUID, uuid5

from msgspec import Struct

from bus.messages.audit import AdoptedState, AdoptInstance, BookEntry
from bus.messages.build import InstanceDetails, InstanceState
from bus.messages.placement import NO_OWNER
from engine.flavors import Flavor, Image, InstanceId, RequestId
from engine.inventories import GroupId, ProviderState, ResourceAmount, Share
from moor.client.books.views import InstanceView
from nova_bridge.importing.records import (
    INSTANCE,
    MIGRATION,
    ContradictionError,
    NovaHost,
    NovaInstance,
    cells_in,
    check_message,
    flavor_in,
    id_of,
    image_properties_in,
    zone_in,
)
from nova_bridge.importing.shares import PAGES, HostTree, needs_of, share_of, totals_of, wanted_of

# Nova takes a service for down after this time without a word.
SERVICE_DOWN = timedelta(seconds=60)
# By Nova's state of an instance: what it is here.
STATES = {"active": "active", "stopped": "stopped", "shelved": "shelved", "error": "broken"}
# Migrations in these states are over.
ENDED = frozenset(("accepted", "cancelled", "completed", "confirmed", "done", "error", "failed", "reverted"))
_WHAT_TO_DO = {
    "paused": "unpause it",
    "suspended": "resume it",
    "rescued": "unrescue it",
    "resized": "confirm or revert its resize",
    "soft-delete": "restore it, or delete it for good",
    "building": "wait until it is built",
    "initialized": "wait until it is built",
}


def why_not_fenced(host: NovaHost, now: datetime) -> list[str]:
    """Why Nova may still build on the host, or change what it has."""
    service = host.service
    if service is None:
        return []
    if not service.disabled:
        return [f"enabled in Nova: `openstack compute service set --disable {host.name} nova-compute`"]
    seen_at = service.seen_at
    if service.forced_down or seen_at is None or now - seen_at > SERVICE_DOWN:
        return []
    seconds = max(0, round((now - seen_at).total_seconds()))
    return [f"nova-compute still runs there (heard {seconds} s ago): stop it, and wait for a minute"]


def what_is_under_way(host: NovaHost) -> list[str]:
    """What Nova has begun, and must end first."""
    found = [
        f"instance {each.id} is {each.state}, and Nova is {each.task}" for each in host.instances if each.task
    ]
    found += [
        f"instance {each.id} is {each.state}: {_WHAT_TO_DO[each.state]} in Nova"
        for each in host.instances
        if not each.task and each.state in _WHAT_TO_DO
    ]
    found += [
        f"migration {each.id} ({each.kind}) of instance {each.instance} is {each.status}"
        for each in host.migrations
        if each.status not in ENDED
    ]
    found += [f"instance {each} is being built there" for each in host.builds]
    return found


def contradictions_of(host: NovaHost) -> list[str]:
    """What cannot be true, or has no meaning here, in the rows of this host."""
    return [*_of_nodes(host), *_of_instances(host), *_of_allocations(host)]


def _of_nodes(host: NovaHost) -> Iterator[str]:
    if host.service is None:
        yield f"host {host.name} has no nova-compute in `services`"
    if not host.nodes:
        yield f"host {host.name} has no compute node"
    elif len(host.nodes) > 1:
        names = ", ".join(node.name for node in host.nodes)
        yield f"host {host.name} has {len(host.nodes)} compute nodes ({names}), and one is known here"


def _of_instances(host: NovaHost) -> Iterator[str]:
    for each in host.instances:
        if each.state not in STATES and each.state not in _WHAT_TO_DO:
            yield f"instance {each.id} is {each.state!r}, known are {', '.join(STATES)}"


def _of_allocations(host: NovaHost) -> Iterator[str]:
    if host.allocations is None:
        return
    roots = {node.uuid for node in host.nodes}
    known = {each.id: each for each in host.instances}
    for consumer, held in host.held.items():
        if consumer in host.builds:
            continue
        if consumer not in known:
            yield _leftover(host, consumer, held[0].type)
            continue
        abroad = sorted(
            {each.provider_name for each in held if each.root not in roots and _is_host(each.resource)}
        )
        if abroad:
            yield f"instance {consumer} also holds something of {', '.join(abroad)}: it is on one host only"
    for each in host.instances:
        if each.state in STATES and each.id not in host.held:
            yield (
                f"instance {each.id} holds nothing in Nova's placement: "
                f"`nova-manage placement heal_allocations --instance {each.id}`"
            )


def _is_host(resource: str) -> bool:
    """Disk, addresses and the like may come from a sharing provider."""
    return resource in ("VCPU", "PCPU", "MEMORY_MB")


def _leftover(host: NovaHost, consumer: str, type_: str) -> str:
    if (other := host.elsewhere.get(consumer)) is not None:
        return f"instance {consumer} holds something of host {host.name}, and is on {other}"
    what = "migration" if type_ == MIGRATION else "instance" if type_ == INSTANCE else type_
    return (
        f"consumer {consumer} ({what}) holds something of host {host.name}, and Nova has no such {what} there: "
        f"`nova-manage placement audit --delete`"
    )


# What an instance has here otherwise than in Nova: each difference in words, with both values.


TOLD = {"active": "active", "stopped": "stopped", "shelved": "shelved", "broken": "error"}


def differences_of(
    order: AdoptInstance, needed: Mapping[str, int], view: InstanceView | None, *, is_asked: bool
) -> list[str]:
    """`order` and `needed` are what Nova has now. `is_asked`: the host could be asked what it has."""
    who = f"instance {order.instance}"
    state = None if view is None else view.at_api
    if view is None or state is None:
        return [f"{who}: Nova has it on {order.of_cell}/{order.host}, and it is not here"]
    found = [
        f"{who}: {what} is {there} in Nova, and {here} here"
        for what, there, here in _pairs(order, state, view.details)
        if there != here
    ]
    if view.consumer is None:
        found.append(f"{who}: it holds nothing in placement here")
    else:
        found += _of_holder(who, order, needed, view.consumer)
    if not is_asked:
        found.append(f"{who}: its host does not say what it has")
    elif not any(each.entry.host == order.share.host for each in view.on_hosts) and order.state != "broken":
        found.append(f"{who}: its host does not have it")
    return found


def _pairs(
    order: AdoptInstance, state: InstanceState, details: InstanceDetails | None
) -> Iterator[tuple[str, object, object]]:
    yield "the state", TOLD[order.state], state.state
    yield "the host", f"{order.of_cell}/{order.host}", f"{state.cell}/{state.host}"
    yield "the name", order.name, state.name
    yield "the project", order.project, state.project
    if details is not None and details.size is not None:
        yield "the flavor", order.flavor.name, details.size.flavor
    if details is not None and details.accepted_at is not None:
        yield "the creation", order.created_at, details.accepted_at


def _of_holder(who: str, order: AdoptInstance, needed: Mapping[str, int], holder: BookEntry) -> Iterator[str]:
    held = _by_class(holder.held)
    for resource, there in sorted(needed.items()):
        if there != (here := held.get(resource, 0)):
            yield f"{who}: it holds {there} {resource} in Nova, and {here} here"
    for what, owner, here_ in (
        ("the project of its claim", order.project or NO_OWNER, holder.project),
        ("the user of its claim", order.user or NO_OWNER, holder.user),
    ):
        if owner != here_:
            yield f"{who}: {what} is {owner} in Nova, and {here_} here"


def _by_class(amounts: Iterable[ResourceAmount]) -> Mapping[str, int]:
    """Memory in large pages has a class of its own here, and none in Nova."""
    found: dict[str, int] = {}
    for each in amounts:
        resource = "MEMORY_MB" if each.resource.startswith(PAGES) else each.resource
        found[resource] = found.get(resource, 0) + each.amount
    return found


# What a host has in Nova and here: totals, reserves and ratios, by resource class. They need not agree to hand the host over, if its
# instances fit; but an operator wants to know.


class HostAmount(Struct, frozen=True):
    """Of one class, in the whole tree. A reserve or ratio that is None is not known."""

    total: int
    reserved: int | None = None
    ratio: float | None = None


def inventories_in_nova(host: NovaHost) -> dict[str, HostAmount]:
    """By Nova's placement; without it, by `compute_nodes`."""
    found: dict[str, HostAmount] = {}
    if host.allocations is None:
        for node in host.nodes:
            found["VCPU"] = HostAmount(node.vcpus, ratio=node.cpu_ratio)
            found["MEMORY_MB"] = HostAmount(node.memory_mb, ratio=node.ram_ratio)
            found["DISK_GB"] = HostAmount(node.local_gb, ratio=node.disk_ratio)
        return found
    for each in host.inventories:
        _add(found, each.resource, each.total, each.reserved, each.ratio)
    return found


def inventories_here(providers: Iterable[ProviderState]) -> dict[str, HostAmount]:
    """Of the host's own providers and the pools that share with it. Memory in large pages counts as memory, as in Nova."""
    found: dict[str, HostAmount] = {}
    for provider in providers:
        for name, stock in provider.inventories.items():
            resource = "MEMORY_MB" if name.startswith(PAGES) else name
            _add(found, resource, stock.total, stock.reserved, stock.allocation_ratio)
    return found


def _add(found: dict[str, HostAmount], resource: str, total: int, reserved: int, ratio: float) -> None:
    before = found.get(resource, HostAmount(0, 0, ratio))
    # Of several providers the first ratio counts: a host has one for each class.
    found[resource] = HostAmount(before.total + total, (before.reserved or 0) + reserved, before.ratio)


def inventory_differences(in_nova: Mapping[str, HostAmount], here: Mapping[str, HostAmount]) -> Iterator[str]:
    """Of the classes that Nova has: those that only Moorage knows, such as devices, are no differences."""
    for resource, there in sorted(in_nova.items()):
        ours = here.get(resource)
        if ours is None:
            yield f"inventory of {resource}: {there.total} in Nova, none here"
            continue
        for what, one, other in (
            ("total", there.total, ours.total),
            ("reserved", there.reserved, ours.reserved),
            ("allocation_ratio", there.ratio, ours.ratio),
        ):
            # In `compute_nodes`, 0 stands for Nova's default.
            if one is not None and one != other and (one or there.reserved is not None):
                yield f"inventory of {resource}: {what} is {one} in Nova, and {other} here"


# The orders by which the instances of a host are taken over; or all that speaks against it.


# Requests that Nova has no id of get one that follows from the instance's.
REQUESTS = UUID("5b0f7b9e-6f0c-4bb0-a2f6-0f2d1d6b7a55")


# Where the fields of an order come from.
_COLUMNS = {
    "number": "instances.launch_index",
    "flavor": "instance_extra.flavor",
    "share": "allocations",
    "name": "instances.display_name",
    "project": "instances.project_id",
    "user": "instances.user_id",
    "image": "instances.image_ref",
    "image_properties": "request_specs.spec",
    "availability_zone": "request_specs.spec",
    "host": "instances.host",
    "created_at": "instances.created_at",
}


class HostPlan(Struct, frozen=True):
    """The order for each instance of a host; without contradictions, if it may be handed over."""

    orders: tuple[AdoptInstance, ...]
    contradictions: tuple[str, ...]
    # What each instance holds by Nova, by resource class.
    needs: Mapping[InstanceId, Mapping[str, int]] = {}


def planned(
    host: NovaHost,
    tree: HostTree,
    flavors: Mapping[int, Flavor],
    here: Mapping[InstanceId, Share],
    now: datetime,
) -> HostPlan:
    """`flavors` are those of the API database, by their row. `here` are the shares of the instances that are here already: they keep
    these.
    """
    orders: list[AdoptInstance] = []
    problems: list[str] = []
    needs: dict[InstanceId, Mapping[str, int]] = {}
    for instance in host.instances:
        try:
            order, needed = _order_for(instance, host, tree, flavors, here, now=now)
        except ContradictionError as problem:
            problems.append(str(problem))
        except ValueError as problem:
            problems.append(f"instance {instance.id}: {problem}")
        else:
            orders.append(order)
            needs[order.instance] = needed
            if order.instance not in here:
                tree.take(order.share.amounts)
    return HostPlan(tuple(orders), tuple(problems or tree.shortfalls()), needs)


def _order_for(
    instance: NovaInstance,
    host: NovaHost,
    tree: HostTree,
    flavors: Mapping[int, Flavor],
    here: Mapping[InstanceId, Share],
    *,
    now: datetime,
) -> tuple[AdoptInstance, Mapping[str, int]]:
    id_ = InstanceId(UUID(instance.id))
    where = f"instance {instance.id}: instance_extra.numa_topology"
    flavor = _flavor_of(instance, flavors)
    cells = cells_in(instance.numa_topology, where)
    held = None if host.allocations is None else host.held.get(instance.id, [])
    needed = needs_of(flavor, on_volume=instance.on_volume, cells=cells) if held is None else totals_of(held)
    share = here.get(id_)
    if share is None:
        devices = [each for each in host.devices if each.instance == instance.id]
        roots = frozenset(node.uuid for node in host.nodes)
        wanted = wanted_of(held, needed, roots)
        share = share_of(instance, wanted, cells, devices, tree)
    spec = f"instance {instance.id}: request_specs.spec"
    order = AdoptInstance(
        instance=id_,
        request_id=_request_of(instance),
        number=instance.number,
        of_cell=host.cell,
        host=host.name,
        share=share,
        state=_state_of(instance),
        flavor=flavor,
        created_at=instance.created_at or now,
        name=instance.name,
        project=instance.project,
        user=instance.user,
        image=Image(source=instance.image) if instance.image else None,
        image_properties=image_properties_in(instance.spec, spec),
        availability_zone=zone_in(instance.spec, spec),
        group=GroupId(id_of(instance.group, f"instance {instance.id}: instance_groups.uuid"))
        if instance.group
        else None,
        reason=(instance.fault or "Nova says no reason") if instance.state == "error" else "",
    )
    check_message(order, _COLUMNS, f"instance {instance.id}: ")
    return order, needed


def _flavor_of(instance: NovaInstance, flavors: Mapping[int, Flavor]) -> Flavor:
    if instance.flavor:
        return flavor_in(instance.flavor, f"instance {instance.id}: instance_extra.flavor")
    found = flavors.get(instance.flavor_id)
    if found is None:
        raise ContradictionError(
            f"instance {instance.id} has no flavor in instance_extra, and flavor number {instance.flavor_id} is deleted"
        )
    return found


def _state_of(instance: NovaInstance) -> AdoptedState:
    states: Mapping[str, AdoptedState] = {
        "active": "active",
        "stopped": "stopped",
        "shelved": "shelved",
        "broken": "broken",
    }
    return states[STATES.get(instance.state, "broken")]


def _request_of(instance: NovaInstance) -> RequestId:
    """Nova's request ids are `req-` and a uuid."""
    try:
        return RequestId(UUID(instance.request.removeprefix("req-")))
    except ValueError:
        return RequestId(uuid5(REQUESTS, instance.id))
