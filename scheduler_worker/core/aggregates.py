"""The rules about host aggregates: what metadata may say, and what an order changes."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum

from msgspec import Struct, structs

from bus.messages.hosts import METADATA_KEYS_MAX, SetAggregate
from engine.hosts import ZONE, Aggregate, AggregateProblem, problem_of
from engine.inventories import AggregateId

# An aggregate as its row keeps it: with the last orders about it, and for a while after it was deleted.
#
# A broker may deliver an order twice, and an asker repeats one that is not answered. Such a repetition may come after a newer
# order, and must not undo it. So a row knows its last orders by the ids of their messages.


# A repetition that comes after more orders than this is taken for a new order.
ORDERS_KEPT = 16


class KnownOrder(Struct, frozen=True, array_like=True):
    """An order that the row of its aggregate remembers. `is_done`: it has also added and removed its hosts."""

    id: str
    is_done: bool


class KeptAggregate(Aggregate, frozen=True):
    """An aggregate as its row is stored, with its orders. `deleted_us`: when it was deleted, in microseconds; otherwise 0."""

    orders: tuple[KnownOrder, ...] = ()
    deleted_us: int = 0

    @property
    def told(self) -> Aggregate:
        return Aggregate(id=self.id, name=self.name, metadata=self.metadata, sequence=self.sequence)


class OrderSeen(Enum):
    """Whether the row of an aggregate has seen an order before, and what became of the order."""

    NEW = "new"
    # It is the last one: to follow it again completes it, and changes nothing else.
    LAST = "last"
    # It is done, and another one came after it.
    PAST = "past"
    # Another one came after it, before it had added and removed its hosts.
    OVERTAKEN = "overtaken"


def seen(kept: KeptAggregate | None, order: str) -> OrderSeen:
    orders = kept.orders if kept else ()
    known = next((each for each in orders if each.id == order), None)
    if known is None:
        return OrderSeen.NEW
    if known is orders[-1]:
        return OrderSeen.LAST
    return OrderSeen.PAST if known.is_done else OrderSeen.OVERTAKEN


def with_order(
    aggregate: Aggregate, before: KeptAggregate | None, order: str, *, is_done: bool, deleted_us: int = 0
) -> KeptAggregate:
    """The row of an aggregate after this order, which is added to the orders that the row remembers."""
    others = [each for each in (before.orders if before else ()) if each.id != order]
    return KeptAggregate(
        id=aggregate.id,
        name=aggregate.name,
        metadata=aggregate.metadata,
        sequence=aggregate.sequence,
        orders=(*others, KnownOrder(order, is_done))[-ORDERS_KEPT:],
        deleted_us=deleted_us,
    )


def done(kept: KeptAggregate, order: str) -> KeptAggregate:
    """The row of an aggregate after this order has added and removed its hosts, too."""
    return structs.replace(
        kept,
        orders=tuple([KnownOrder(each.id, is_done=each.is_done or each.id == order) for each in kept.orders]),
    )


# May an order about an aggregate be obeyed, and what is the aggregate then?


# The aggregates of each host, by the host's name.
Memberships = Mapping[str, Collection[AggregateId]]
SHOWN_MAX = 3


def changed(
    order: SetAggregate, aggregates: Iterable[KeptAggregate], multipliers: Collection[str], now_us: int
) -> Aggregate | AggregateProblem:
    """The aggregate as the order leaves it, or why the order is refused. `aggregates` are all rows, with those of
    deleted aggregates.
    """
    rows = {each.id: each for each in aggregates}
    known = {id_: each.told for id_, each in rows.items() if not each.deleted_us}
    before = known.get(order.aggregate)
    metadata = _merged(before.metadata if before else {}, order.metadata)
    if (
        problem := _problem_of_name(order, known)
        or _problem_of_size(metadata)
        or problem_of(metadata, multipliers)
    ):
        return problem
    after = Aggregate(id=order.aggregate, name=before.name if before else order.name, metadata=metadata)
    if before is not None and structs.replace(before, sequence=0) == after:
        return before
    last = rows[order.aggregate].sequence if order.aggregate in rows else -1
    return structs.replace(after, sequence=max(now_us, last + 1))


def _merged(before: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    merged = {**before, **changes}
    return {key: value for key, value in sorted(merged.items()) if value is not None}


def _problem_of_name(order: SetAggregate, known: Mapping[AggregateId, Aggregate]) -> AggregateProblem | None:
    before, name = known.get(order.aggregate), order.name
    if before is not None:
        is_same = name in ("", before.name)
        reason = f"the aggregate is called {before.name!r}, and keeps its name"
        return None if is_same else AggregateProblem("name", name, reason)
    if not name or name.strip() != name:
        reason = (
            f"there is no aggregate {order.aggregate}, and a new one needs a name without blanks around it"
        )
        return AggregateProblem("name", name, reason)
    for other in known.values():
        if name in (other.name, str(other.id)):
            return AggregateProblem("name", name, f"aggregate {other.id} has this name")
    return None


def _problem_of_size(metadata: Mapping[str, str]) -> AggregateProblem | None:
    if len(metadata) <= METADATA_KEYS_MAX:
        return None
    return AggregateProblem(
        "metadata", str(len(metadata)), f"an aggregate has at most {METADATA_KEYS_MAX} keys"
    )


def second_zone(
    after: Aggregate, aggregates: Iterable[Aggregate], members: Memberships, added: Collection[str]
) -> AggregateProblem | None:
    """A host that would be in two zones. `members` are the hosts that the aggregate will have, with the aggregates that each
    is in; those in `added` are new.
    """
    zone = after.metadata.get(ZONE)
    if zone is None:
        return None
    others = {
        each.id: each for each in aggregates if each.id != after.id and each.metadata.get(ZONE, zone) != zone
    }
    for host, memberships in members.items():
        other = next((others[each] for each in memberships if each in others), None)
        if other is None:
            continue
        reason = f"is in zone {other.metadata[ZONE]!r} by aggregate {other.name!r}, and a host has one zone"
        if host in added:
            return AggregateProblem("add_hosts", host, f"{reason}: this aggregate's is {zone!r}")
        return AggregateProblem(f"metadata.{ZONE}", zone, f"its host {host} {reason}")
    return None


def still_has(hosts: Sequence[str]) -> str:
    """Why an aggregate that still has these hosts is not deleted."""
    beside = f" and {len(hosts) - SHOWN_MAX} more" if len(hosts) > SHOWN_MAX else ""
    return f"it has {', '.join(hosts[:SHOWN_MAX])}{beside}: remove its hosts first"
