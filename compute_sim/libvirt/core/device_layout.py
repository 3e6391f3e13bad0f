"""Which providers a host's devices are, and what each of them gives.

A PCI function that guests get whole is a provider. The virtual functions of a card are one together. A GPU with mediated devices is
one, too, and several GPUs may be one pool. The operator's settings say which of these a device is, as in Nova: settings that make
one device two of these are refused.
"""

import re
from collections.abc import Iterable, Mapping
from uuid import uuid5

from msgspec import Struct, structs

from bus.message import ProviderId
from compute_sim.core.networks import Network
from compute_sim.libvirt.core.node_devices import NodeDevices, PciFunction
from compute_sim.libvirt.core.offer import DeviceOffer, HostOffer, MediatedOffer

VIRTUAL_PORT = "SRIOV_NET_VF"
VGPU = "VGPU"
_NOT_IN_NAMES = re.compile("[^A-Z0-9_]")
# How Neutron calls ports that are a virtual function, and ports that are a whole card.
DIRECT, DIRECT_PHYSICAL = "CUSTOM_VNIC_TYPE_DIRECT", "CUSTOM_VNIC_TYPE_DIRECT_PHYSICAL"


class Gives(Struct, frozen=True):
    """What a provider of devices gives: a resource class, one for each of these functions, or mediated devices of this type, which
    these parents make.
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
    gives: Gives
    traits: frozenset[str] = frozenset()


def device_layout(
    root: ProviderId, offer: HostOffer, found: NodeDevices, cells: Mapping[int, ProviderId]
) -> tuple[OfferedDevices, ...]:
    """The providers of devices. `cells` are the providers of the host's cells, by number."""
    draft = _Draft(root, offer.name, {each.address: each for each in found.functions}, cells)
    offered: set[str] = set()
    for function in found.functions:
        chosen = next((each for each in offer.devices if each.has(function)), None)
        if chosen is not None:
            offered.add(function.address)
            draft.add_function(function, chosen)
        if kind := _type_of(function, offer.mediated):
            if chosen is not None:
                raise ValueError(
                    f"devices offers {function.address}, and mediated_types offers its {kind.type}: "
                    "a GPU is passed through whole, or makes mediated devices"
                )
            draft.add_mediated(function, kind)
    for function in found.functions:
        if offered.issuperset((function.address, function.physical)):
            raise ValueError(
                f"devices offers {function.physical} and its virtual function {function.address}: a card is passed through "
                "whole, or by its virtual functions; name the addresses of each kind, as in 8086:10ed@0000:81:*"
            )
    return draft.finished()


def _type_of(function: PciFunction, offers: Iterable[MediatedOffer]) -> MediatedOffer | None:
    makes = {each.name for each in function.mediated_types}
    chosen = {
        each.type: each for each in offers if each.type in makes and _matches(function.address, each.address)
    }
    if len(chosen) > 1:
        raise ValueError(
            f"mediated_types offers {' and '.join(chosen)} of {function.address}: a GPU makes devices of one type; name the "
            "GPUs of each type, as in nvidia-35@0000:3b:*"
        )
    return next(iter(chosen.values()), None)


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
        known = self._drafts.get(owner.address)
        physnets = {
            each for each in traits.union(known.traits if known else ()) if each.startswith("CUSTOM_PHYSNET_")
        }
        if len(physnets) > 1:
            raise ValueError(
                f"devices gives the functions of {owner.address} the networks {' and '.join(sorted(physnets))}: a card is on one"
            )
        gives = Gives(resource, functions=(function.address,))
        self._give(owner.address, f"pci-{owner.address}", self._cell_of(owner), gives, traits)

    def add_mediated(self, function: PciFunction, kind: MediatedOffer) -> None:
        gives = Gives(VGPU, mediated_type=kind.type, parents=(function.address,))
        of_id = f"gpus-{kind.pool}" if kind.pool else f"pci-{function.address}"
        trait = f"CUSTOM_{_NOT_IN_NAMES.sub('_', kind.type.upper())}"
        self._give(kind.pool or function.address, of_id, self._cell_of(function), gives, {trait})

    def finished(self) -> tuple[OfferedDevices, ...]:
        return tuple(self._drafts.values())

    def _give(self, key: str, of_id: str, parent: ProviderId, new: Gives, traits: Iterable[str]) -> None:
        draft = self._drafts.get(key)
        if draft is None:
            provider, name = ProviderId(uuid5(self._root, of_id)), f"{self._host}_{key}"
            self._drafts[key] = OfferedDevices(provider, name, parent, new, frozenset(traits))
            return
        old = draft.gives
        self._drafts[key] = structs.replace(
            draft,
            # A pool of GPUs near several cells is near none.
            parent=parent if draft.parent == parent else self._root,
            gives=structs.replace(
                old, functions=(*old.functions, *new.functions), parents=(*old.parents, *new.parents)
            ),
            traits=draft.traits.union(traits),
        )

    def _cell_of(self, function: PciFunction) -> ProviderId:
        return self._cells.get(function.numa_node, self._root)
