"""Decides which daemon owns which node, and which nodes move between daemons.

Rendezvous hashing: each daemon has a score for each node, made from the daemon's name and the node's id, and the daemon
with the highest score owns the node. Every process computes the same, whatever the order in which it learned of the
others. When a daemon comes, it has the highest score for about one of K nodes, and only these move; when it goes, only its
own nodes move. There is no table of points as on a hash ring, so there is nothing to keep balanced.

The scores say where a node belongs; the row in the database says who owns it. Three rules bring the two together, and
each move is a compare-and-set on the row's owner and epoch, so that of two daemons which see different members only one
gets the node:

    takes    a live daemon takes a node whose owner is not alive, if its own score is the highest
    gives    an owner gives its node to the live daemon with the highest score; but while the owner lives, a node with an
             instance stays with it, since a deploy may be under way
    drains   an owner that drains gives all its nodes, with instances too, and is given none

Time is not known here: each member comes with what the database says is left of its lease.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from hashlib import blake2b

from msgspec import Struct

from engine.inventories import ProviderId


class Member(Struct, frozen=True, kw_only=True):
    """A daemon in the database's table. `incarnation` is another one each time that the process starts."""

    name: str
    incarnation: str
    # By the database's clock; 0 or less when the lease is over.
    lease_left_s: float
    is_draining: bool = False
    joined_at: datetime | None = None

    @property
    def is_alive(self) -> bool:
        return self.lease_left_s > 0


class NodeOwner(Struct, frozen=True, gc=False):
    """A node and its owner; the owner is empty before any daemon took the node."""

    id: ProviderId
    owner: str
    epoch: int


class Owned(NodeOwner, frozen=True, gc=False):
    """A node with its owner, and whether an instance is on it."""

    holds_instance: bool = False


class NodeHandover(NodeOwner, frozen=True, gc=False):
    """An order to give a node to another owner, or to the same one in a new epoch. It is carried out only if the node
    still has this owner and this epoch, and with `only_free`, only if no instance is on it. The node's next epoch
    will be above `above`.
    """

    to: str
    only_free: bool = False
    above: int = 0


class Why(NodeOwner, frozen=True, kw_only=True):
    """Why a node has the owner that it has. `best` has the highest score; `scores` are those of all that may own nodes."""

    best: str
    reason: str
    scores: tuple[tuple[str, int], ...]


class Ring:
    """The daemons that may be given nodes: those that are alive and do not drain."""

    def __init__(self, members: Iterable[Member]) -> None:
        self.names = tuple(sorted({each.name for each in members if each.is_alive and not each.is_draining}))
        self._seeds = [(_number(name.encode()), name) for name in self.names]

    def owner_of(self, node: ProviderId) -> str:
        """The daemon with the highest score; empty if there is none."""
        number = _number(node.bytes)
        return max(self._seeds, key=lambda each: _mixed(number ^ each[0]), default=(0, ""))[1]

    def scores(self, node: ProviderId) -> tuple[tuple[str, int], ...]:
        """The score of each daemon for this node, the highest first."""
        number = _number(node.bytes)
        scored = [(name, _mixed(number ^ seed)) for seed, name in self._seeds]
        return tuple(sorted(scored, key=lambda each: -each[1]))


def takes(owned: Iterable[Owned], members: Sequence[Member], me: str) -> tuple[NodeHandover, ...]:
    """The moves to `me` of nodes whose owner is not alive, and which the ring assigns to `me`."""
    ring, alive = Ring(members), names_alive(members)
    return tuple(
        NodeHandover(each.id, each.owner, each.epoch, me)
        for each in owned
        if each.owner not in alive and ring.owner_of(each.id) == me
    )


def takes_anew(owned: Iterable[Owned], me: str) -> tuple[NodeHandover, ...]:
    """The moves that give a new epoch to nodes that carry my name from an earlier lease: somebody may still act on
    them in the old epoch.
    """
    return tuple(NodeHandover(each.id, me, each.epoch, me) for each in owned if each.owner == me)


def gives(owned: Iterable[Owned], members: Sequence[Member], me: str) -> tuple[NodeHandover, ...]:
    """My nodes that belong to another live daemon. If I drain, that is all of them, as long as there is another."""
    ring = Ring(members)
    drains = any(each.name == me and each.is_draining for each in members)
    return tuple(
        NodeHandover(each.id, me, each.epoch, to, only_free=not drains)
        for each in owned
        if each.owner == me
        and (drains or not each.holds_instance)
        and (to := ring.owner_of(each.id)) not in ("", me)
    )


def why(node: Owned, members: Sequence[Member]) -> Why:
    """The line of `moor node ring show` about a node: its owner, the daemon with the highest score, and the reason."""
    ring = Ring(members)
    scores = ring.scores(node.id)
    best = scores[0][0] if scores else ""
    return Why(
        id=node.id,
        owner=node.owner,
        epoch=node.epoch,
        best=best,
        reason=_reason(node, best, members),
        scores=scores,
    )


def names_alive(members: Iterable[Member]) -> frozenset[str]:
    return frozenset(each.name for each in members if each.is_alive)


def _reason(node: Owned, best: str, members: Sequence[Member]) -> str:
    owner = node.owner
    if owner not in names_alive(members):
        whose = f"its owner {owner} has no lease any more" if owner else "no daemon has taken it yet"
        return f"{whose}; {best} takes it" if best else f"{whose}, and no live daemon may take nodes"
    if not best:
        return f"{owner} keeps it: every live daemon drains"
    if owner == best:
        return f"of the daemons that are alive and do not drain, {owner} has the highest score for it"
    if any(each.name == owner and each.is_draining for each in members):
        return f"{owner} drains, and gives it to {best}"
    if node.holds_instance:
        return f"it holds an instance, so it stays with {owner} while {owner} is alive; {best} has the highest score"
    return f"{best} has the highest score for it, and {owner} gives it to {best}"


_BITS = (1 << 64) - 1
# Odd numbers that spread each bit over all of 64 (SplitMix64). A cryptographic hash for each pair of node and daemon would
# take as long as all else together.
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _number(value: bytes) -> int:
    return int.from_bytes(blake2b(value, digest_size=8).digest(), "big")


def _mixed(number: int) -> int:
    mixed = number * _FIRST & _BITS
    return (mixed ^ mixed >> 31) * _SECOND & _BITS
