"""One host for several instances that move together, such as the members of an affinity group.

The host must have room for all of them. Their sums tell which hosts can have room at all. Of these, the best ones for the first
instance are tried one after another: on each, all instances are placed in turn, as a batch of builds would be.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import structs

from bus.messages.build import NoValidHost
from bus.messages.cell import ALTERNATES_MAX
from scheduler_worker.core.choosing.choosing import Chosen, choose
from scheduler_worker.core.choosing.draft import Draft
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.plugins import Plugins
from scheduler_worker.core.choosing.waking import room_by_sums
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.core.requests import InstanceSpec

# So many hosts are tried at most.
TRIED_MAX = 200


def choose_together(
    picture: Picture, specs: Sequence[InstanceSpec], plugins: Plugins, salt: int, alternates: int
) -> list[Chosen] | NoValidHost:
    """A choice for each of these instances: all have the same host, and the same hosts as alternates, in the same order."""
    possible = _hosts_with_room(picture, summed(specs))
    if not possible:
        nowhere = choose(picture, [summed(specs)], plugins, salt, 0)[0]
        if isinstance(nowhere, NoValidHost):
            return nowhere
    found: list[list[Chosen]] = []
    left, refusal = possible, NoValidHost(hosts=len(picture), steps=())
    for _ in range(TRIED_MAX):
        best = choose(picture, [structs.replace(specs[0], hosts=left)], plugins, salt, 0)[0]
        if isinstance(best, NoValidHost):
            refusal = refusal if refusal.steps else best
            break
        host = best.choice.name.lower()
        there = choose(picture, [structs.replace(each, hosts=(host,)) for each in specs], plugins, salt, 0)
        placed = [each for each in there if isinstance(each, Chosen)]
        if len(placed) == len(specs):
            found.append(placed)
        else:
            refusal = next(each for each in there if isinstance(each, NoValidHost))
        left = tuple([name for name in left if name != host])
        if not left or len(found) > min(alternates, ALTERNATES_MAX):
            break
    if not found:
        return refusal
    first, *others = found
    return [
        structs.replace(chosen, alternates=tuple([other[number].choice for other in others]))
        for number, chosen in enumerate(first)
    ]


def summed(specs: Sequence[InstanceSpec]) -> InstanceSpec:
    """The first of these specs, with the amounts of all."""
    sums: dict[str, int] = {}
    for spec in specs:
        for resource, amount in spec.amounts:
            sums[resource] = sums.get(resource, 0) + amount
    return structs.replace(specs[0], amounts=tuple(sums.items()))


def _hosts_with_room(picture: Picture, spec: InstanceSpec) -> tuple[str, ...]:
    """The names of the hosts whose sums have room for the amounts, among those of its cell that the spec allows."""
    hosts = Hosts(Draft(picture))
    fits = (room_by_sums(hosts, spec) >= 1) & hosts.in_cell(spec.cell)
    if spec.hosts:
        fits &= hosts.named(spec.hosts)
    if spec.ignore_hosts:
        fits &= ~hosts.named(spec.ignore_hosts)
    return tuple(sorted({picture.columns.names[row].lower() for row in np.flatnonzero(fits).tolist()}))
