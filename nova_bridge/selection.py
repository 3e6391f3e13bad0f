"""The answer to `select_destinations`: for each instance the chosen host and its alternates, as Nova's Selection objects.

The allocation request is what nova-conductor puts to placement for an alternate, and where it reads which provider serves which port.
On the chosen host it is claimed already.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

import msgspec
from msgspec import Struct

from engine.candidates.provider_index import ProviderIndex
from engine.inventories import ProviderId, ProviderState, Share
from engine.requests import InstanceSpec
from engine.requests.spec import GranularGroup
from nova_bridge.demands import PORT
from nova_bridge.envelope import Fields, RefusedError, id_in, read_object, write_object

SELECTION, LIMITS = "1.1", "1.0"
# The microversion of placement at which the allocation request is written: the first with a mapping for each group.
MICROVERSION = "1.36"
# The limits by which a compute checks again what it has room for. Placement judged all amounts, so there are none.
_NO_LIMITS = {"numa_topology": None, "vcpu": None, "disk_gb": None, "memory_mb": None}

_encode = msgspec.json.Encoder(order="sorted").encode


class ComputeNode(Struct, frozen=True):
    """A host by Nova's names. `id` is the compute node's, which is also that of its root provider. `zone` is None if the cloud has no
    default zone, and the host is in none.
    """

    id: ProviderId
    service: str
    name: str
    cell: UUID
    zone: str | None = None


class SelectedHost(Struct, frozen=True):
    """A compute node with the share that an instance takes of it. `providers` has that of each granular group, by its suffix."""

    node: ComputeNode
    share: Share
    providers: Mapping[str, ProviderId] = {}


def write_selections(
    chosen: Sequence[Sequence[SelectedHost]], spec: InstanceSpec
) -> list[list[dict[str, object]]]:
    """The result of the call. Each list has the chosen host of an instance, and then its alternates, all of one cell."""
    answer: list[list[dict[str, object]]] = []
    for hosts in chosen:
        cells = {each.node.cell for each in hosts}
        assert len(cells) == 1, (
            f"an instance has a host, and alternates of its cell, not of {len(cells)} cells"
        )
        answer.append([_selection(each, spec) for each in hosts])
    return answer


def write_stay(nodes: Sequence[ComputeNode]) -> list[list[dict[str, object]]]:
    """The result for instances that stay where they are: nothing is to be allocated."""
    return [[_written(node, None, None)] for node in nodes]


def _selection(selected: SelectedHost, spec: InstanceSpec) -> dict[str, object]:
    node = selected.node
    assert node.id == selected.share.host, f"the share is of {selected.share.host}, not of {node.id}"
    return _written(node, _encode(allocation_request(selected, spec)).decode(), MICROVERSION)


def _written(node: ComputeNode, request: str | None, version: str | None) -> dict[str, object]:
    data = {
        "compute_node_uuid": str(node.id),
        "service_host": node.service,
        "nodename": node.name,
        "cell_uuid": str(node.cell),
        "limits": write_object("SchedulerLimits", LIMITS, _NO_LIMITS),
        "allocation_request": request,
        "allocation_request_version": version,
        "availability_zone": node.zone,
    }
    return write_object("Selection", SELECTION, data)


def allocation_request(selected: SelectedHost, spec: InstanceSpec) -> dict[str, object]:
    """The amounts that each provider gives, and the providers that serve each group. The group without a suffix has the rest."""
    allocations: dict[str, dict[str, dict[str, int]]] = {}
    rest: dict[tuple[ProviderId, str], int] = {}
    for amount in selected.share.amounts:
        of_provider = allocations.setdefault(str(amount.provider), {"resources": {}})["resources"]
        of_provider[amount.resource] = of_provider.get(amount.resource, 0) + amount.amount
        key = amount.provider, amount.resource
        rest[key] = rest.get(key, 0) + amount.amount
    mappings: dict[str, list[str]] = {}
    for group in spec.groups:
        provider = selected.providers[group.suffix]
        mappings[group.suffix.removeprefix(PORT)] = [str(provider)]
        for resource, asked in group.amounts:
            rest[provider, resource] = rest.get((provider, resource), 0) - asked
    assert all(left >= 0 for left in rest.values()), (
        f"the groups of {selected.node.name} take more than its share"
    )
    if others := sorted({str(provider) for (provider, _), left in rest.items() if left}):
        mappings[""] = others
    return {"allocations": allocations, "mappings": mappings}


# Which instances each compute service has, as Nova's computes tell all schedulers by casts.
#
# A compute tells of all its instances when it starts, of each change, and now and then of all ids. Names of services are in lower
# case here.


# Work on an instance that loads its host: Nova's own list of states of an instance and of its tasks.
_BUSY_STATES = frozenset({"building"})
_BUSY_TASKS = frozenset(
    {
        *("resize_migrating", "rebuilding", "resize_prep", "image_snapshot", "image_backup"),
        *("rescuing", "unshelving"),
    }
)
# A user of Nova's broker may invent names and ids. A cloud has fewer services, and a host fewer instances.
SERVICES_MAX, INSTANCES_MAX = 50_000, 10_000


class ServiceInstances(Struct, frozen=True):
    """The instances of one service, each with whether work on it loads the host."""

    busy: Mapping[UUID, bool] = {}

    @property
    def count(self) -> int:
        return len(self.busy)

    @property
    def io_ops(self) -> int:
        return sum(self.busy.values())


class InstancesByService:
    """Changed in place by each cast, and only where a cast says something new: clouds have many instances, and most casts are about one."""

    def __init__(self, services: Mapping[str, ServiceInstances] = {}) -> None:
        self._services: dict[str, ServiceInstances] = {}
        # The services that have each instance: one that moves is for a while on two.
        self._services_of: dict[UUID, tuple[str, ...]] = {}
        for name, each in services.items():
            self._put(name, each.busy)

    def of(self, service: str) -> ServiceInstances:
        return self._services.get(service.lower(), ServiceInstances())

    def count(self, instances: Iterable[UUID]) -> Counter[str]:
        """How many of these instances each service has."""
        return Counter(name for each in instances for name in self._services_of.get(each, ()))

    def updated(self, args: Mapping[str, object]) -> str:
        """After `update_instance_info`, which tells of one instance, or of all that a service has. Returns the service."""
        fields = Fields(args, "")
        service = fields.text("host_name").lower()
        told = fields.value("instance_info")
        name = fields.object("instance_info").text("nova_object.name")
        if name == "InstanceList":
            items = read_object(told, "instance_info", name).list("objects")
            return self._put(
                service,
                dict(
                    _instance(item, f"instance_info.objects[{number}]") for number, item in enumerate(items)
                ),
            )
        one, is_busy = _instance(told, "instance_info")
        return self._put(service, {**self.of(service).busy, one: is_busy})

    def deleted(self, args: Mapping[str, object]) -> str:
        """After `delete_instance_info`."""
        fields = Fields(args, "")
        service, gone = fields.text("host_name").lower(), fields.id("instance_uuid")
        busy = self.of(service).busy
        return self._put(service, {id_: is_busy for id_, is_busy in busy.items() if id_ != gone})

    def synced(self, args: Mapping[str, object]) -> str:
        """After `sync_instance_info`, which tells the ids of all that a service has."""
        fields = Fields(args, "")
        service = fields.text("host_name").lower()
        before = self.of(service).busy
        ids = [id_in(each, "instance_uuids") for each in fields.texts("instance_uuids")]
        return self._put(service, {id_: before.get(id_, False) for id_ in ids})

    def _put(self, service: str, busy: Mapping[UUID, bool]) -> str:
        if service not in self._services and len(self._services) >= SERVICES_MAX:
            raise RefusedError("host_name", service, f"{SERVICES_MAX} services are known already")
        if len(busy) > INSTANCES_MAX:
            raise RefusedError(
                "host_name", service, f"it has {len(busy)} instances, at most {INSTANCES_MAX} are kept"
            )
        before = self.of(service).busy
        for id_ in before.keys() - busy.keys():
            others = tuple(name for name in self._services_of.pop(id_) if name != service)
            if others:
                self._services_of[id_] = others
        for id_ in busy.keys() - before.keys():
            self._services_of[id_] = (*self._services_of.get(id_, ()), service)
        self._services[service] = ServiceInstances(busy)
        return service


def _instance(value: object, path: str) -> tuple[UUID, bool]:
    instance = read_object(value, path, "Instance")
    is_busy = instance.text("vm_state", "") in _BUSY_STATES or instance.text("task_state", "") in _BUSY_TASKS
    return instance.id("uuid"), is_busy


# Which provider of a claimed share serves which granular group of the request. A share has only the sums.
#
# Nova's computes bind ports and devices to the providers that the answer names. If several providers could serve a group, any
# assignment will do in which each group gets what it asks for.


Left = dict[tuple[ProviderId, str], int]


def group_providers(
    spec: InstanceSpec, share: Share, index: ProviderIndex
) -> Mapping[str, ProviderId] | None:
    """The provider of each group, by its suffix. None if no assignment gives each group what it asks for: the tree has changed
    since it was chosen.
    """
    if not spec.groups:
        return {}
    left: Left = {}
    for each in share.amounts:
        key = each.provider, each.resource
        left[key] = left.get(key, 0) + each.amount
    givers = list(dict.fromkeys(each.provider for each in share.amounts))
    states = {id_: state for id_ in givers if (state := _state(index, id_)) is not None}
    # A group without amounts may be served by any provider of the trees.
    roots = sorted({state.root for state in states.values()})
    others = {each.id: each for root in roots for each in index.states_in_tree(root) if each.id not in states}
    states |= others
    order = sorted(spec.groups, key=lambda group: -len(group.amounts))
    return _assign(order, {}, left, _Solver(spec, states, givers, [*others]))


class _Solver:
    def __init__(
        self,
        spec: InstanceSpec,
        states: Mapping[ProviderId, ProviderState],
        givers: Sequence[ProviderId],
        others: Sequence[ProviderId],
    ) -> None:
        self.spec = spec
        self.states = states
        self.givers = givers
        self.others = others

    def candidates(
        self, group: GranularGroup, left: Left, taken: Mapping[str, ProviderId]
    ) -> list[ProviderId]:
        among = self.givers if group.amounts else (*self.givers, *self.others)
        return [
            id_
            for id_ in among
            if all(left.get((id_, resource), 0) >= amount for resource, amount in group.amounts)
            and self._has_traits(id_, group)
            and not (self.spec.isolates and group.amounts and id_ in taken.values())
        ]

    def is_near(self, taken: Mapping[str, ProviderId]) -> bool:
        """Are the groups of each wish for one subtree, as far as they are assigned, at or below one of their providers?"""
        for wish in self.spec.same_subtree:
            providers = [taken[suffix] for suffix in wish if suffix in taken]
            if len(providers) == len(wish) and not any(
                all(top in self._ancestors(each) for each in providers) for top in providers
            ):
                return False
        return True

    def _has_traits(self, id_: ProviderId, group: GranularGroup) -> bool:
        state = self.states.get(id_)
        traits = frozenset(state.traits) if state is not None else frozenset[str]()
        return traits.issuperset(group.required) and traits.isdisjoint(group.forbidden)

    def _ancestors(self, id_: ProviderId) -> set[ProviderId]:
        found: set[ProviderId] = set()
        at: ProviderId | None = id_
        while at is not None and at not in found:
            found.add(at)
            state = self.states.get(at)
            at = None if state is None else state.parent
        return found


def _assign(
    groups: Sequence[GranularGroup], taken: Mapping[str, ProviderId], left: Left, solver: _Solver
) -> Mapping[str, ProviderId] | None:
    if not groups:
        return taken
    group, others = groups[0], groups[1:]
    for id_ in solver.candidates(group, left, taken):
        now = {**taken, group.suffix: id_}
        if not solver.is_near(now):
            continue
        rest = dict(left)
        for resource, amount in group.amounts:
            rest[id_, resource] -= amount
        if (found := _assign(others, now, rest, solver)) is not None:
            return found
    return None


def _state(index: ProviderIndex, id_: ProviderId) -> ProviderState | None:
    row = index.row_of(id_)
    return None if row is None else index.state(row)
