"""Which providers a host's devices are, and what each of them gives.

A PCI function is a provider. A physical function and its virtual functions are one: it gives either itself or these. A GPU with
mediated devices is one, too, and several GPUs may be one pool. Whatever has several classes gives of one at a time.
"""

import re
from collections.abc import Iterable, Mapping
from uuid import uuid5

from msgspec import Struct, structs

from bus.message import ProviderId
from compute_sim.core.networks import Network
from compute_sim.libvirt.core.node_devices import NodeDevices, PciFunction
from compute_sim.libvirt.core.offer import DeviceOffer, HostOffer, MediatedOffer

ONE_CLASS = "CUSTOM_ONE_CLASS_AT_A_TIME"
VIRTUAL_PORT = "SRIOV_NET_VF"
VGPU = "VGPU"
# How Neutron calls ports that are a virtual function, and ports that are a whole card.
DIRECT, DIRECT_PHYSICAL = "CUSTOM_VNIC_TYPE_DIRECT", "CUSTOM_VNIC_TYPE_DIRECT_PHYSICAL"


class Gives(Struct, frozen=True):
    """A resource class of a provider of devices: one for each of these functions, or mediated devices of this type, which these
    parents make.
    """

    resource: str
    functions: tuple[str, ...] = ()
    mediated_type: str = ""
    parents: tuple[str, ...] = ()


class OfferedDevices(Struct, frozen=True):
    """A provider of devices."""

    provider: ProviderId
    name: str
    parent: ProviderId
    gives: tuple[Gives, ...]
    traits: frozenset[str] = frozenset()

    def what_gives(self, resource: str) -> Gives | None:
        return next((each for each in self.gives if each.resource == resource), None)


def device_layout(
    root: ProviderId, offer: HostOffer, found: NodeDevices, cells: Mapping[int, ProviderId]
) -> tuple[OfferedDevices, ...]:
    """The providers of devices. `cells` are the providers of the host's cells, by number."""
    draft = _Draft(root, offer.name, {each.address: each for each in found.functions}, cells)
    for function in found.functions:
        if chosen := next((each for each in offer.devices if each.has(function)), None):
            draft.add_function(function, chosen)
        if types := _types_of(function, offer.mediated):
            draft.add_mediated(function, types)
    return draft.finished()


def _types_of(function: PciFunction, offers: Iterable[MediatedOffer]) -> list[MediatedOffer]:
    makes = {each.name for each in function.mediated_types}
    chosen = {
        each.type: each for each in offers if each.type in makes and _matches(function.address, each.address)
    }
    return list(chosen.values())


def _matches(address: str, pattern: str) -> bool:
    return DeviceOffer("*", "*", pattern).has(PciFunction(address=address, vendor="", product=""))


class _Draft:
    """The providers as far as they are known, by the address or the pool that names them."""

    def __init__(
        self,
        root: ProviderId,
        host: str,
        functions: Mapping[str, PciFunction],
        cells: Mapping[int, ProviderId],
    ) -> None:
        self._root = root
        self._host = host
        self._functions = functions
        self._cells = cells
        self._drafts: dict[str, OfferedDevices] = {}

    def add_function(self, function: PciFunction, chosen: DeviceOffer) -> None:
        # A virtual function belongs to the provider of its physical one, whether that is offered itself or not.
        owner = self._functions.get(function.physical, function)
        resource = VIRTUAL_PORT if function.is_network and function.physical else function.resource
        traits = {Network(chosen.network, 0).trait} if chosen.network else set()
        if function.is_network and chosen.network:
            traits.add(DIRECT if function.physical else DIRECT_PHYSICAL)
        if function.is_network and (function.physical or function.virtual):
            traits.add("HW_NIC_SRIOV")
        draft = self._draft(owner.address, f"pci-{owner.address}", self._cell_of(owner))
        physnets = {each for each in draft.traits | traits if each.startswith("CUSTOM_PHYSNET_")}
        if len(physnets) > 1:
            raise ValueError(
                f"devices gives the functions of {owner.address} the networks {' and '.join(sorted(physnets))}: a card is on one"
            )
        self._give(owner.address, Gives(resource, functions=(function.address,)), traits)

    def add_mediated(self, function: PciFunction, types: list[MediatedOffer]) -> None:
        for each in types:
            key = each.pool or function.address
            of_id = f"gpus-{each.pool}" if each.pool else f"pci-{function.address}"
            draft = self._draft(key, of_id, self._cell_of(function))
            if draft.parent != self._cell_of(function):
                # A pool of GPUs near several cells is near none.
                self._drafts[key] = structs.replace(draft, parent=self._root)
            resource = VGPU if len(types) == 1 or each.pool else f"CUSTOM_VGPU_{_as_name(each.type)}"
            traits = {f"CUSTOM_{_as_name(each.type)}"} if resource == VGPU else set()
            self._give(key, Gives(resource, mediated_type=each.type, parents=(function.address,)), traits)

    def finished(self) -> tuple[OfferedDevices, ...]:
        return tuple(
            structs.replace(each, traits=each.traits | {ONE_CLASS}) if len(each.gives) > 1 else each
            for each in self._drafts.values()
        )

    def _draft(self, key: str, of_id: str, parent: ProviderId) -> OfferedDevices:
        return self._drafts.setdefault(
            key, OfferedDevices(ProviderId(uuid5(self._root, of_id)), f"{self._host}_{key}", parent, ())
        )

    def _give(self, key: str, new: Gives, traits: Iterable[str]) -> None:
        draft = self._drafts[key]
        old = draft.what_gives(new.resource)
        merged = (
            new
            if old is None
            else structs.replace(
                old, functions=(*old.functions, *new.functions), parents=(*old.parents, *new.parents)
            )
        )
        others = tuple(each for each in draft.gives if each.resource != new.resource)
        self._drafts[key] = structs.replace(
            draft,
            gives=tuple(sorted((*others, merged), key=lambda each: each.resource)),
            traits=draft.traits.union(traits),
        )

    def _cell_of(self, function: PciFunction) -> ProviderId:
        return self._cells.get(function.numa_node, self._root)


def _as_name(text: str) -> str:
    return re.sub("[^A-Z0-9_]", "_", text.upper())
