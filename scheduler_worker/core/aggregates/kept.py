"""An aggregate as its row keeps it: with the last orders about it, and for a while after it was deleted.

A broker may deliver an order twice, and an asker repeats one that is not answered. Such a repetition may come after a newer
order, and must not undo it. So a row knows its last orders by the ids of their messages.
"""

from enum import Enum

from msgspec import Struct, structs

from bus.messages.aggregates import Aggregate

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
