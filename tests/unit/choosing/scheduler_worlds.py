"""Small clouds for tests of the scheduler's choice: hosts by name, known to placement and to the registry."""

from collections.abc import Mapping

from engine.hosts import HostMode, HostSetting, HostState
from engine.inventories import AggregateId, InventoryState, ProviderId, ProviderState, ProviderUsage
from engine.picture.picture import Picture
from engine.requests import InstanceSpec
from tests.contracts.placement_orders import provider

ROOMY = InventoryState(total=16, max_unit=16)


def a_state(
    name: str,
    inventories: Mapping[str, InventoryState] | None = None,
    *,
    internal: int = 0,
    parent: ProviderId | None = None,
    root: ProviderId | None = None,
    cell: str = "c1",
    shape: int = 1,
    revision: int = 1,
    traits: tuple[str, ...] = (),
    aggregates: tuple[AggregateId, ...] = (),
    consumers: int = 0,
) -> ProviderState:
    """Internal ids follow from names, unless given."""
    return ProviderState(
        internal=internal or provider(name).int % 2**40,
        id=provider(name),
        name=name,
        root=root or provider(name),
        parent=parent,
        cell=cell,
        shape=shape,
        revision=revision,
        inventories=dict({"VCPU": ROOMY} if inventories is None else inventories),
        traits=traits,
        aggregates=aggregates,
        consumers=consumers,
    )


def usage_of(state: ProviderState, used: int, revision: int, base: int = 1) -> ProviderUsage:
    return ProviderUsage(
        internal=state.internal, id=state.id, base=base, revision=revision, used={"VCPU": used}
    )


def a_host(
    name: str,
    *,
    cell: str = "c1",
    up: bool = True,
    mode: HostMode = "up",
    mode_reason: str = "",
    instances: int = 0,
    io_ops: int = 0,
    availability_zone: str = "",
    sequence: int = 1,
    kind: str = "",
    projects: tuple[str, ...] = (),
) -> HostState:
    return HostState(
        id=provider(name),
        name=name,
        cell=cell,
        up=up,
        setting=HostSetting(mode=mode, reason=mode_reason),
        instances=instances,
        io_ops=io_ops,
        availability_zone=availability_zone,
        sequence=sequence,
        kind=kind,
        projects=projects,
    )


def vcpus(total: int, used: int = 0, ratio: float = 1.0) -> dict[str, InventoryState]:
    return {"VCPU": InventoryState(total=total, used=used, max_unit=max(total, 1), allocation_ratio=ratio)}


def a_picture(*states: ProviderState, hosts: tuple[HostState, ...] | None = None) -> Picture:
    """Each root is a host in the registry, too, unless others are given."""
    picture = Picture()
    picture.apply(states)
    roots = [state for state in states if state.id == state.root]
    picture.put_hosts([a_host(root.name, cell=root.cell) for root in roots] if hosts is None else hosts)
    return picture


def a_spec(vcpu: int = 1, **amounts: int) -> InstanceSpec:
    return InstanceSpec(amounts=tuple(sorted({"VCPU": vcpu, **amounts}.items())))
