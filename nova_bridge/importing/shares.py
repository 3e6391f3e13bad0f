"""Which share an instance has of its host here, from what it holds in Nova's placement, or from its flavor.

Trees may differ: Nova's host may be flat and ours nested, or have other devices. An amount goes to our provider of the same name
if that has its class; else to the root, to a pool that shares with the host, or to NUMA nodes. There the guest's own cells say
which; a guest that has none gets a node with room for all of it, or is spread over several.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from engine.flavors import Flavor
from engine.inventories import ProviderId, ProviderState, ResourceAmount, Share
from nova_bridge.importing.records import (
    ContradictionError,
    NovaAllocation,
    NovaDevice,
    NovaGuestCell,
    NovaInstance,
)

_NUMA = re.compile(r"_NUMA(\d+)\Z")
# The trait of providers that share with the hosts of their aggregates.
SHARING = "MISC_SHARES_VIA_AGGREGATE"
PAGES = "CUSTOM_MEMORY_MB_PAGES_"
SMALL_PAGE_KIB = 4
# The class of virtual functions of network cards.
VIRTUAL = "SRIOV_NET_VF"
_ASKED = re.compile(r"resources(?:[A-Za-z0-9_-]{1,64})?:([A-Z0-9_]+)\Z")


def needs_of(flavor: Flavor, *, on_volume: bool, cells: Sequence[NovaGuestCell] = ()) -> dict[str, int]:
    """What an instance of this flavor holds, if no placement database says so."""
    pinned = sum(cell.pinned_cpus for cell in cells)
    disk_gb = (0 if on_volume else flavor.root_gb) + flavor.ephemeral_gb + -(-flavor.swap_mb // 1024)
    needs = {"VCPU": flavor.vcpus - pinned, "PCPU": pinned, "MEMORY_MB": flavor.ram_mb, "DISK_GB": disk_gb}
    for key, value in flavor.extra_specs.items():
        if (asked := _ASKED.match(key)) is not None and value.isdigit():
            needs[asked[1]] = int(value)
    return {resource: amount for resource, amount in needs.items() if amount > 0}


class HostTree:
    """The providers of a host here, with the pools that share with it, and what is still free of each while instances come."""

    def __init__(self, root: ProviderId, providers: Iterable[ProviderState]) -> None:
        everything = list(providers)
        self.root = root
        self.own = {each.id: each for each in everything if each.root == root}
        top = self.own.get(root)
        shared = set() if top is None else {*top.aggregates}
        pools = [
            each
            for each in everything
            if each.root != root and shared & {*each.aggregates} and SHARING in each.traits
        ]
        self._pools = sorted(pools, key=lambda each: each.name)
        self._by_name = {each.name: each for each in [*self._pools, *self.own.values()]}
        self._numa = {
            int(found[1]): each
            for each in self.own.values()
            if (found := _NUMA.search(each.name)) is not None
        }
        self._left = {
            (each.id, resource): int((stock.total - stock.reserved) * stock.allocation_ratio) - stock.used
            for each in [*self._pools, *self.own.values()]
            for resource, stock in each.inventories.items()
        }

    @property
    def providers(self) -> list[ProviderState]:
        """The host's own, and the pools that share with it."""
        return [*self.own.values(), *self._pools]

    @property
    def is_known(self) -> bool:
        return self.root in self.own

    def named(self, name: str, resource: str) -> ProviderState | None:
        found = self._by_name.get(name)
        return found if found is not None and resource in found.inventories else None

    def top_or_pool(self, resource: str) -> ProviderState | None:
        top = self.own[self.root]
        places = [top, *self._pools]
        return next((each for each in places if resource in each.inventories), None)

    def numa_with(self, resource: str) -> list[tuple[int, ProviderState]]:
        return [(number, each) for number, each in sorted(self._numa.items()) if resource in each.inventories]

    def others_with(self, resource: str) -> list[ProviderState]:
        numa = {each.id for each in self._numa.values()}
        return sorted(
            (
                each
                for each in self.own.values()
                if each.id not in numa and each.id != self.root and resource in each.inventories
            ),
            key=lambda each: each.name,
        )

    def device(self, address: str) -> ProviderState | None:
        ending = f"_{address}".lower()
        return next((each for each in self.own.values() if each.name.lower().endswith(ending)), None)

    def left_of(self, provider: ProviderId, resource: str) -> int:
        return self._left.get((provider, resource), 0)

    def take(self, amounts: Iterable[ResourceAmount]) -> None:
        for each in amounts:
            self._left[each.provider, each.resource] = (
                self.left_of(each.provider, each.resource) - each.amount
            )

    def shortfalls(self) -> list[str]:
        """The classes of which the instances need more than the host has, by provider."""
        names = {each.id: each for each in [*self._pools, *self.own.values()]}
        return [
            f"{resource} of {names[provider].name}: its instances need {-left} more than the host has here"
            for (provider, resource), left in sorted(self._left.items(), key=str)
            if left < 0
        ]


def totals_of(held: Iterable[NovaAllocation]) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in held:
        found[each.resource] = found.get(each.resource, 0) + each.amount
    return found


def wanted_of(
    held: Sequence[NovaAllocation] | None, needed: Mapping[str, int], roots: frozenset[str]
) -> dict[tuple[str, str], int]:
    """What an instance is to hold here: by the name of the provider in Nova, empty for its host, and by class. `held` is None if there
    is no placement database; `roots` are the providers of its host there.
    """
    if held is None:
        return {("", resource): amount for resource, amount in needed.items()}
    wanted: dict[tuple[str, str], int] = {}
    for each in held:
        key = ("" if each.provider in roots else each.provider_name, each.resource)
        wanted[key] = wanted.get(key, 0) + each.amount
    return wanted


def share_of(
    instance: NovaInstance,
    wanted: Mapping[tuple[str, str], int],
    cells: Sequence[NovaGuestCell],
    devices: Sequence[NovaDevice],
    tree: HostTree,
) -> Share:
    """The share of this instance here (`wanted_of`)."""
    amounts: dict[tuple[ProviderId, str], int] = {}
    spread: dict[str, int] = {}
    for (name, resource), amount in _in_pages(instance, wanted, cells, tree).items():
        place = tree.named(name, resource) if name else None
        place = place or tree.top_or_pool(resource)
        if place is None and tree.numa_with(resource):
            spread[resource] = spread.get(resource, 0) + amount
            continue
        if place is None:
            place = next(
                (each for each in tree.others_with(resource) if tree.left_of(each.id, resource) >= amount),
                None,
            )
        if place is None:
            where = f" of {name}" if name else ""
            raise ContradictionError(
                f"instance {instance.id} holds {amount} {resource}{where}, and the host has no such inventory here, or none free"
            )
        amounts[place.id, resource] = amounts.get((place.id, resource), 0) + amount
    for place_key, amount in _over_numa(instance, spread, cells, tree).items():
        amounts[place_key] = amounts.get(place_key, 0) + amount
    for place_key, amount in _of_devices(instance, devices, tree, amounts).items():
        amounts[place_key] = amounts.get(place_key, 0) + amount
    found = tuple(
        ResourceAmount(provider=provider, resource=resource, amount=amount)
        for (provider, resource), amount in sorted(amounts.items(), key=str)
    )
    if not found:
        raise ContradictionError(f"instance {instance.id} holds nothing")
    return Share(host=tree.root, amounts=found)


def _in_pages(
    instance: NovaInstance,
    wanted: Mapping[tuple[str, str], int],
    cells: Sequence[NovaGuestCell],
    tree: HostTree,
) -> Mapping[tuple[str, str], int]:
    """On a host that has its memory outside of NUMA nodes, memory in large pages is of the class of these pages. (Else `_by_cells`.)"""
    memory = Counter[str]()
    for cell in cells:
        memory[_memory_class(cell)] += cell.memory_mb
    if not memory.keys() - {"MEMORY_MB"} or tree.top_or_pool("MEMORY_MB") is None:
        return wanted
    found: dict[tuple[str, str], int] = {}
    for (name, resource), amount in wanted.items():
        if resource == "MEMORY_MB":
            _agree(instance, resource, amount, memory.total())
            found |= {(name, each): part for each, part in memory.items()}
        else:
            found[name, resource] = amount
    return found


def _memory_class(cell: NovaGuestCell) -> str:
    return f"{PAGES}{cell.page_kib}" if (cell.page_kib or 0) > SMALL_PAGE_KIB else "MEMORY_MB"


def _agree(instance: NovaInstance, resource: str, held: int, of_cells: int) -> None:
    if held != of_cells:
        raise ContradictionError(
            f"instance {instance.id} holds {held} {resource}, and its NUMA cells have {of_cells}"
        )


def _over_numa(
    instance: NovaInstance, spread: Mapping[str, int], cells: Sequence[NovaGuestCell], tree: HostTree
) -> dict[tuple[ProviderId, str], int]:
    if not spread:
        return {}
    if cells:
        return _by_cells(instance, spread, cells, tree)
    numbers = sorted({number for resource in spread for number, _ in tree.numa_with(resource)})
    for number in sorted(numbers, key=lambda each: -_room(tree, each, "MEMORY_MB")):
        if all(_room(tree, number, resource) >= amount for resource, amount in spread.items()):
            return {
                (_numa(tree, number, resource).id, resource): amount for resource, amount in spread.items()
            }
    found: dict[tuple[ProviderId, str], int] = {}
    for resource, amount in spread.items():
        places = sorted(tree.numa_with(resource), key=lambda each: -_room(tree, each[0], resource))
        rest = amount
        for number, place in places:
            part = min(rest, max(0, _room(tree, number, resource)))
            if part:
                found[place.id, resource] = part
                rest -= part
        if rest:
            # Too much, wherever it goes; the sum says so later.
            key = (places[0][1].id, resource)
            found[key] = found.get(key, 0) + rest
    return found


def _by_cells(
    instance: NovaInstance, spread: Mapping[str, int], cells: Sequence[NovaGuestCell], tree: HostTree
) -> dict[tuple[ProviderId, str], int]:
    found: dict[tuple[ProviderId, str], int] = {}
    given = dict.fromkeys(spread, 0)
    for cell in cells:
        for resource, amount in (
            ("VCPU", cell.shared_cpus),
            ("PCPU", cell.pinned_cpus),
            ("MEMORY_MB", cell.memory_mb),
        ):
            if not amount or resource not in spread:
                continue
            given[resource] += amount
            name = _memory_class(cell) if resource == "MEMORY_MB" else resource
            key = (_numa(tree, cell.id, name, instance).id, name)
            found[key] = found.get(key, 0) + amount
    for resource, amount in spread.items():
        _agree(instance, resource, amount, given[resource])
    return found


def _numa(tree: HostTree, number: int, resource: str, instance: NovaInstance | None = None) -> ProviderState:
    for each, place in tree.numa_with(resource):
        if each == number:
            return place
    whose = f"instance {instance.id}: " if instance else ""
    raise ContradictionError(f"{whose}NUMA node {number} of the host has no {resource} here")


def _room(tree: HostTree, number: int, resource: str) -> int:
    return next(
        (tree.left_of(place.id, resource) for each, place in tree.numa_with(resource) if each == number), 0
    )


def _of_devices(
    instance: NovaInstance,
    devices: Sequence[NovaDevice],
    tree: HostTree,
    held: Mapping[tuple[ProviderId, str], int],
) -> dict[tuple[ProviderId, str], int]:
    """The PCI devices of the instance that Nova's placement does not know: each is one of its own class, or a virtual function of
    the provider of its physical one.
    """
    found: dict[tuple[ProviderId, str], int] = {}
    for device in devices:
        place = tree.device(device.address) or (tree.device(device.parent) if device.parent else None)
        if place is None:
            raise ContradictionError(
                f"instance {instance.id} has the PCI device {device.address}, and the host has no such provider here"
            )
        if any(provider == place.id for provider, _ in held):
            continue
        own = f"CUSTOM_PCI_{device.vendor}_{device.product}".upper()
        # A physical function has a class of its own beside that of its virtual ones.
        likely = [own, *[each for each in place.inventories if each.startswith("CUSTOM_PCI_")]]
        if tree.device(device.address) is None:
            likely = [
                VIRTUAL,
                own,
                *[each for each in place.inventories if not each.startswith("CUSTOM_PCI_")],
            ]
        names = [each for each in likely if each in place.inventories]
        if not names:
            raise ContradictionError(
                f"instance {instance.id}: provider {place.name} has no class for {device.address}"
            )
        key = (place.id, names[0])
        found[key] = found.get(key, 0) + 1
    return found
