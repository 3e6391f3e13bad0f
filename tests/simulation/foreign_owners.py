"""Attacks of a cell's users on what another owner has: a server group, an id that is taken or will be, and the name of a host.

Where a claim of the attacker is needed, it is for a consumer of its own, which it releases again.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING
from uuid import UUID

from msgspec import Struct

from bus.message import Message
from bus.messages.hosts import HostsReported
from bus.messages.placement import ClaimResources, Heir, ReleaseClaim, SwapClaim
from bus.topology import user_of
from engine.flavors import InstanceId, RequestId
from engine.hosts import HostFacts
from engine.inventories import ConsumerId, ProviderId, ResourceAmount, ServerGroup, Share
from tests.simulation.plan import CELLS

if TYPE_CHECKING:
    from tests.simulation.cloud import Cloud

RIVAL_PROJECT = "rival"
# Every host has so much of it, also one whose CPUs are in NUMA nodes.
AMOUNT = "DISK_GB"


class Target(Struct, frozen=True):
    """An active instance, with what an attacker needs to know of it."""

    instance: InstanceId
    request: RequestId
    cell: str
    host: ProviderId
    host_name: str
    attempt: int
    group: ServerGroup | None


Forged = tuple[str, Message]


def _foreign_group(known: "Cloud", chance: random.Random) -> Iterator[Forged]:
    """A cell claims for an instance of another project in a server group."""
    there = [each for each in known.targets() if each.group is not None and each.group.policy != "affinity"]
    for host, cell in _own_host(known, chance) if there else ():
        own = _own_consumer(chance)
        claim = _claim(known, own, cell, host, chance.choice(there).group)
        yield user_of("conductor", cell), claim
        yield user_of("conductor", cell), _release(known, own, cell)


def _foreign_heir(known: "Cloud", chance: random.Random) -> Iterator[Forged]:
    """A cell swaps a consumer of its own, and names another cell's instance as the heir of what it gives up."""
    for host, cell in _own_host(known, chance):
        theirs = [each for each in known.targets() if each.cell != cell]
        if theirs:
            own = _own_consumer(chance)
            claim = _claim(known, own, cell, host, None)
            yield user_of("conductor", cell), claim
            swap = SwapClaim(
                cell=cell,
                consumer=own,
                held_attempt=claim.attempt,
                attempt=claim.attempt + 1,
                issued_at=known.now(),
                share=claim.share,
                heir=Heir(id=ConsumerId(chance.choice(theirs).instance), type="CLEANUP"),
            )
            yield user_of("conductor", cell), swap
            yield user_of("conductor", cell), _release(known, own, cell)


def _foreign_tombstone(known: "Cloud", _chance: random.Random) -> Iterator[Forged]:
    """A cell releases what another cell will claim."""
    for instance, cell in known.upcoming().items():
        other = next(each for each in CELLS if each != cell)
        yield user_of("conductor", other), _release(known, ConsumerId(instance), other)


def _foreign_name(known: "Cloud", chance: random.Random) -> Iterator[Forged]:
    """A cell reports a host with the name of another cell's."""
    cell = chance.choice(CELLS)
    names = known.unused_names(next(each for each in CELLS if each != cell))
    facts = HostFacts(id=ProviderId(UUID(int=chance.getrandbits(128))), name=chance.choice(names).upper())
    yield user_of("compute", cell), HostsReported(cell=cell, hosts=(facts,), sequence=1)


FOREIGN_ATTACKS: Mapping[str, Callable[["Cloud", random.Random], Iterator[Forged]]] = {
    "foreign_group": _foreign_group,
    "foreign_heir": _foreign_heir,
    "foreign_tombstone": _foreign_tombstone,
    "foreign_name": _foreign_name,
}


def _own_host(known: "Cloud", chance: random.Random) -> Iterator[tuple[ProviderId, str]]:
    """A host that has an instance of its cell, at random; none if no instance is active."""
    if there := known.targets():
        one = chance.choice(there)
        yield one.host, one.cell


def _own_consumer(chance: random.Random) -> ConsumerId:
    return ConsumerId(UUID(int=chance.getrandbits(128)))


def _claim(
    known: "Cloud", own: ConsumerId, cell: str, host: ProviderId, group: ServerGroup | None
) -> ClaimResources:
    amounts = (ResourceAmount(provider=host, resource=AMOUNT, amount=1),)
    return ClaimResources(
        cell=cell,
        consumer=own,
        # After that of the heir that it may name.
        attempt=100,
        issued_at=known.now(),
        share=Share(host=host, amounts=amounts),
        project=RIVAL_PROJECT,
        group=group,
    )


def _release(known: "Cloud", consumer: ConsumerId, cell: str) -> ReleaseClaim:
    return ReleaseClaim(cell=cell, consumer=consumer, attempt=200, issued_at=known.now())
