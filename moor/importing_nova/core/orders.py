"""The orders by which the instances of a host are taken over; or all that speaks against it."""

from collections.abc import Mapping
from datetime import datetime
from uuid import UUID, uuid5

from msgspec import Struct

from bus.message import GroupId
from bus.messages.adoption import AdoptedState, AdoptInstance
from bus.messages.build import Flavor, Image, InstanceId, RequestId
from bus.messages.placement import Share
from moor.importing_nova.core.judging import STATES
from moor.importing_nova.core.objects import cells_in, flavor_in, image_properties_in, zone_in
from moor.importing_nova.core.records import ContradictionError, NovaHost, NovaInstance
from moor.importing_nova.core.shares import HostTree, needs_of, share_of, totals_of, wanted_of
from moor.importing_nova.core.values import check_message, id_of

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
