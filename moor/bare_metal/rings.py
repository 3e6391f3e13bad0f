"""The ring of bare-metal daemons as an operator sees it. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Protocol

from msgspec import Struct

from ironic_sync.core.ring import Member


class DaemonShown(Struct, frozen=True, kw_only=True):
    """One daemon. `state` is alive, draining or gone; a daemon that is gone may own nodes until others take them over."""

    name: str
    state: str
    incarnation: str = ""
    # By the database's clock; 0 if the lease has expired.
    lease_left_s: float = 0.0
    joined_at: datetime | None = None
    nodes: int = 0
    with_instances: int = 0


class RingShown(Struct, frozen=True, kw_only=True):
    daemons: tuple[DaemonShown, ...]
    # How many nodes no daemon owns yet.
    untaken: int
    # How many nodes Ironic no longer lists, of which so many vanished at once that the daemons do not believe it.
    missing: int = 0
    # How many nodes move to another cell once no consumer holds them.
    moving: int = 0
    # How many nodes have a provider that another service writes.
    foreign: int = 0


class HasOwner(Protocol):
    @property
    def owner(self) -> str: ...
    @property
    def holds_instance(self) -> bool: ...


def ring_of(
    members: Iterable[Member],
    owned: Collection[HasOwner],
    *,
    missing: int = 0,
    moving: int = 0,
    foreign: int = 0,
) -> RingShown:
    """All daemons that are members of the ring or own a node."""
    by_name = {each.name: each for each in members}
    nodes = Counter(each.owner for each in owned)
    with_instances = Counter(each.owner for each in owned if each.holds_instance)
    return RingShown(
        daemons=tuple(
            _daemon(name, by_name.get(name), nodes[name], with_instances[name])
            for name in sorted({*by_name, *nodes} - {""})
        ),
        untaken=nodes[""],
        missing=missing,
        moving=moving,
        foreign=foreign,
    )


class RingNote(Struct, frozen=True):
    """How many nodes are in a state that an operator should know of."""

    count: int
    what: str
    is_trouble: bool = False


def notes_of_ring(shown: RingShown) -> list[RingNote]:
    gone = "that Ironic no longer lists, kept reserved until an operator confirms: `moor ring missing`"
    found = (
        RingNote(shown.untaken, "that no daemon has taken yet"),
        RingNote(shown.missing, gone, is_trouble=True),
        RingNote(shown.moving, "that move to another cell once no consumer holds them"),
        RingNote(shown.foreign, "whose provider another service writes"),
    )
    return [each for each in found if each.count]


def _daemon(name: str, member: Member | None, nodes: int, with_instances: int) -> DaemonShown:
    if member is None:
        return DaemonShown(name=name, state="gone", nodes=nodes, with_instances=with_instances)
    return DaemonShown(
        name=name,
        state=_state(member),
        incarnation=member.incarnation,
        lease_left_s=max(0.0, member.lease_left_s),
        joined_at=member.joined_at,
        nodes=nodes,
        with_instances=with_instances,
    )


def _state(member: Member) -> str:
    if not member.is_alive:
        return "gone"
    return "draining" if member.is_draining else "alive"
