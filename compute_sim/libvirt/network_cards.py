"""The addresses of guests' network cards: derived from the instance, and kept with its order, so that they stay when it moves."""

from collections.abc import Iterable, Mapping, Sequence
from uuid import uuid5

from bus.messages.build import InstanceId
from compute_sim.libvirt.core.plans import ForeignGuest, GuestPlan
from compute_sim.libvirt.failures import WorkFailed

# Locally administered, and of one card.
_FIRST = "fa"


def mac_of(instance: InstanceId, number: int = 0, tries: int = 0) -> str:
    """An address of a card: 40 bits that depend on the instance and on the card's number."""
    digest = uuid5(instance, f"card {number} {tries}").bytes
    return ":".join((_FIRST, *(f"{byte:02x}" for byte in digest[:5])))


def taken_macs(others: Iterable[GuestPlan | ForeignGuest]) -> dict[str, str]:
    """The addresses of all cards on the machine, with the domains that have them."""
    return {
        mac.lower(): each.domain if isinstance(each, GuestPlan) else each.name
        for each in others
        for mac in (
            [*(nic.mac for nic in each.nics), *(port.mac for port in each.functions)]
            if isinstance(each, GuestPlan)
            else each.macs
        )
    }


def macs_of(
    instance: InstanceId, count: int, kept: Sequence[str], taken: Mapping[str, str]
) -> tuple[str, ...]:
    """The addresses of a guest's cards, of which it keeps those that it has (`kept`). Raises `WorkFailed` if another guest on the
    machine has one of these; a new one is chosen so that none has it.
    """
    for mac in kept[:count]:
        if owner := taken.get(mac.lower()):
            raise WorkFailed(
                f"its network card has the address {mac}, which is in use here by a card of {owner}"
            )
    return (*kept[:count], *[_free(instance, number, taken) for number in range(len(kept), count)])


def _free(instance: InstanceId, number: int, taken: Mapping[str, str]) -> str:
    tries = 0
    while (mac := mac_of(instance, number, tries)) in taken:
        tries += 1
    return mac
