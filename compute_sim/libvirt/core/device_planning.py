"""Which PCI functions and mediated devices a guest gets of the providers that it claims them from."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from uuid import UUID, uuid5

from msgspec import Struct, structs

from bus.message import ProviderId
from compute_sim.libvirt.core.device_layout import VIRTUAL_PORT, Gives, OfferedDevices
from compute_sim.libvirt.core.image_asks import CannotGiveError
from compute_sim.libvirt.core.orders import DirectPort, GuestOrder
from compute_sim.libvirt.core.plans import PlannedFunction, PlannedMediated
from compute_sim.libvirt.core.taken import Taken

Amounts = Mapping[str, int]


class PlannedDevices(Struct, frozen=True):
    functions: tuple[PlannedFunction, ...] = ()
    mediated: tuple[PlannedMediated, ...] = ()


def planned_devices(order: GuestOrder, share: Mapping[ProviderId, Amounts], taken: Taken) -> PlannedDevices:
    plain: list[PlannedFunction] = []
    ports: list[tuple[PlannedFunction, frozenset[str]]] = []
    mediated: list[PlannedMediated] = []
    new_ids = (uuid5(order.instance, f"mediated-{order.attempt}-{number}") for number in count())
    for devices in taken.layout.devices:
        for resource, amount in sorted(share.get(devices.provider, {}).items()):
            gives = devices.gives
            if gives.resource != resource:
                raise CannotGiveError(
                    f"{devices.name} gives no {resource} any more, and {amount} are claimed"
                )
            if gives.mediated_type:
                mediated += _mediated(devices, gives, amount, taken, new_ids)
                continue
            free = _functions(devices, gives, amount, taken)
            if resource == VIRTUAL_PORT:
                ports += [(each, devices.traits) for each in free]
            else:
                plain += free
    functions = (*_as_ports(ports, order.direct_ports), *plain)
    # As libvirt orders them: interfaces, then other devices.
    return PlannedDevices(tuple(sorted(functions, key=lambda each: not each.mac)), tuple(mediated))


def _functions(devices: OfferedDevices, gives: Gives, amount: int, taken: Taken) -> list[PlannedFunction]:
    why_not = {address: _why_taken(address, taken) for address in gives.functions}
    free = [address for address, why in why_not.items() if not why]
    if len(free) < amount:
        reasons = "; ".join(dict.fromkeys(why for why in why_not.values() if why))
        raise CannotGiveError(
            f"{devices.name} has {len(free)} free {gives.resource}, and {amount} are claimed{f': {reasons}' if reasons else ''}"
        )
    return [PlannedFunction(address) for address in free[:amount]]


def _why_taken(address: str, taken: Taken) -> str:
    """Who has this function, or one that excludes it; empty if nobody has."""
    function = next(each for each in taken.layout.functions if each.address == address)
    for each in (address, function.physical, *function.virtual):
        if owner := taken.functions.get(each):
            return f"{each} is {owner}'s"
    made = [(each.parent, each.uuid) for each in taken.layout.mediated]
    for parent, uuid in (*made, *((each.parent, each.uuid) for each in taken.to_be_made)):
        if parent == address and uuid in taken.mediated:
            return f"{address} makes a mediated device of {taken.mediated[uuid]}"
    return ""


def _mediated(
    devices: OfferedDevices, gives: Gives, amount: int, taken: Taken, new_ids: Iterator[UUID]
) -> list[PlannedMediated]:
    can_make = [parent for parent in gives.parents for _ in range(_can_make(parent, gives, taken))]
    made = [PlannedMediated(next(new_ids), gives.mediated_type, parent) for parent in can_make[:amount]]
    # Devices that exist and nobody has: somebody may just be about to use them, so they come last.
    made += [
        PlannedMediated(each.uuid, each.type, each.parent)
        for each in taken.layout.mediated
        if each.type == gives.mediated_type
        and each.parent in gives.parents
        and each.uuid not in taken.mediated
    ][: amount - len(made)]
    if len(made) < amount:
        raise CannotGiveError(
            f"{devices.name} can make {len(made)} devices of {gives.mediated_type}, and {amount} {gives.resource} are claimed"
        )
    return made


def _can_make(parent: str, gives: Gives, taken: Taken) -> int:
    """How many devices of this type a GPU can make, beside those that other guests are about to have it make."""
    function = next(each for each in taken.layout.functions if each.address == parent)
    if parent in taken.functions:
        return 0
    soon = [each for each in taken.to_be_made if each.parent == parent]
    if any(each.type != gives.mediated_type for each in soon):
        return 0
    available = sum(each.available for each in function.mediated_types if each.name == gives.mediated_type)
    return max(0, available - len(soon))


def _as_ports(
    functions: Sequence[tuple[PlannedFunction, frozenset[str]]], ports: Sequence[DirectPort]
) -> list[PlannedFunction]:
    """The functions as the ports that they are for; a port that names a network gets a function there."""
    left = list(functions)
    found: dict[int, PlannedFunction] = {}
    for number, port in sorted(enumerate(ports), key=lambda each: not each[1].network):
        fits = next((each for each in left if not port.network or port.network in each[1]), None)
        if fits is None:
            where = f" on {port.network}" if port.network else ""
            raise CannotGiveError(f"no {VIRTUAL_PORT}{where} is claimed for the port {port.mac}")
        left.remove(fits)
        found[number] = structs.replace(fits[0], mac=port.mac, vlan=port.vlan)
    return [found[number] for number in sorted(found)] + [function for function, _ in left]
