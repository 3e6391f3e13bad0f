"""The entries of all books about one instance, the faults that an audit finds in them, and the mends."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta

from msgspec import Struct, structs

from bus.messages.audit import (
    BookEntry,
    CellEntry,
    ExpectedClaim,
    HostEntry,
    MendConsumer,
    MendedClaim,
    MendInstance,
    RecountBooks,
    SeenConsumer,
)
from bus.messages.build import InstanceDetails, InstanceState
from bus.messages.cell import DestroyInstance, RemoveFromCell
from engine.flavors import InstanceId
from engine.hosts import HostState
from engine.inventories import ConsumerId, ProviderId, ProviderState, ResourceAmount, Share, capacity_of

# The type of an instance's consumer.
INSTANCE = "INSTANCE"

Mend = MendConsumer | MendInstance | RecountBooks | RemoveFromCell | DestroyInstance


class OnHost(Struct, frozen=True):
    """An attempt of an instance that is on a host, and the cell whose compute reports it. `broken` says why it cannot run again."""

    cell: str
    entry: HostEntry
    broken: str = ""


class InstanceView(Struct, frozen=True):
    """All that the API level, the cells, placement and the hosts have about one instance.

    `consumer` is placement's consumer with the instance's id.
    """

    id: InstanceId
    at_api: InstanceState | None = None
    in_cells: tuple[CellEntry, ...] = ()
    consumer: BookEntry | None = None
    on_hosts: tuple[OnHost, ...] = ()
    # The size and the times of the instance, from the API level.
    details: InstanceDetails | None = None

    @property
    def version(self) -> tuple[object, ...]:
        """The versions of all rows seen. If two looks have the same version, no row changed between them."""
        return (
            self.at_api and (self.at_api.sequence, self.at_api.state, self.at_api.cell, self.at_api.host),
            tuple((each.instance, each.stirred_at) for each in self.in_cells),
            # A page has no consumer that holds nothing.
            (self.consumer.generation, self.consumer.attempt, self.consumer.held)
            if self.consumer is not None and self.consumer.held
            else None,
            self.on_hosts,
        )

    @property
    def is_alone(self) -> bool:
        """True if only placement or hosts know the id: neither the API level nor a cell has a row of it."""
        return self.at_api is None and not self.in_cells

    def cells(self) -> Iterable[str]:
        """The cells that are named by the rows, the hosts' entries or the consumer."""
        if self.at_api is not None:
            yield self.at_api.cell
        yield from (each.instance.cell for each in self.in_cells)
        yield from (each.cell for each in self.on_hosts)
        if self.consumer is not None:
            yield self.consumer.cell

    def hosts(self) -> Iterable[ProviderId]:
        yield from (each.host for each in self.in_cells if each.host is not None)
        yield from (each.entry.host for each in self.on_hosts)
        if self.consumer is not None and self.consumer.host is not None:
            yield self.consumer.host


class Places(Struct, frozen=True):
    providers: Mapping[ProviderId, ProviderState]

    def name(self, provider: ProviderId | None) -> str:
        if provider is None:
            return "no host"
        known = self.providers.get(provider)
        return known.name if known else str(provider)

    def root(self, provider: ProviderId) -> ProviderId:
        known = self.providers.get(provider)
        return known.root if known else provider


class Sight(Struct, frozen=True):
    """Which cells and hosts have answered an audit, and which changes are too recent to be judged.

    `known` are all cells. `cells` are those whose conductor has answered, and `computes` those whose hosts have. `asked` are
    the hosts that could be asked; None in a first look, which asks for pages and not for hosts. A change
    within the last `settle` may still have to reach the other books.
    """

    now: datetime
    settle: timedelta
    known: frozenset[str]
    cells: frozenset[str]
    computes: frozenset[str]
    asked: frozenset[ProviderId] | None = None


class Fault(Struct, frozen=True):
    """A difference that an audit found between two of the books. `about` is the instance or the consumer; None for
    placement's tables as a whole.

    `mend` is the order that mends it. Without one, only a person can decide, and `advice` says what to look at. `unheld` is what
    runs on a host on which placement holds nothing for it.
    """

    kind: str
    about: ConsumerId | None
    text: str
    mend: Mend | None = None
    advice: str = ""
    version: tuple[object, ...] = ()
    unheld: OnHost | None = None

    @property
    def key(self) -> tuple[str, ConsumerId | None, str]:
        return (self.kind, self.about, self.text)


# Which names do hosts of several cells have? Pure.

NAME = "name in two cells"


def name_clashes(hosts: Iterable[HostState]) -> list[Fault]:
    """The names that hosts of several cells have."""
    cells: dict[str, set[str]] = {}
    for host in hosts:
        cells.setdefault(host.name.lower(), set()).add(host.cell)
    return [
        Fault(
            NAME,
            None,
            f"hosts of cells {', '.join(sorted(there))} are called {name}",
            advice="each is used as before; give the name with its cell. If one of them is none of yours, its cell's user "
            "has sent a false report",
        )
        for name, there in sorted(cells.items())
        if len(there) > 1
    ]


# Which consumers are Nova's, and which of those may be freed? Pure.
#
# Nova, and a scheduler of ours in its place, write allocations over HTTP. On Nova's own providers these have no cell. No row of ours has any
# of them, so they look like orphans and leaks, but only Nova can say whether it needs them.

# The types that Nova gives its consumers.
TYPES = (INSTANCE, "MIGRATION")


def is_of_nova(consumer: BookEntry) -> bool:
    """Is this Nova's, or another program's on providers of no cell?"""
    return not consumer.cell


def is_held_by_nova(view: InstanceView) -> bool:
    """Does this consumer hold something for an instance or a migration that only Nova can know?"""
    consumer = view.consumer
    return (
        view.is_alone
        and consumer is not None
        and bool(consumer.held)
        and is_of_nova(consumer)
        and consumer.type in TYPES
    )


# The mend of a fault: one order, which names what the audit saw. If that has changed, the order does nothing.

# Is a share from an earlier shape of its host? Then where may its instance hold it now?
#
# A cell's row has the share as it was claimed. A reshape of the host moves what is held to other providers, and no row of a cell
# learns that. So the share names providers that are gone, or have no such inventory any more.


def is_of_old_shape(share: Share, places: Places) -> bool:
    return not all(_is_there(each, places) for each in share.amounts)


def in_present_shape(share: Share, places: Places) -> Share:
    """The share from providers that there are. Its tree's providers with most room give what others gave before.

    What finds no room stays where it was claimed: placement refuses it then, and says why.
    """
    amounts: list[ResourceAmount] = []
    given = Counter[tuple[ProviderId, str]]()
    for each in share.amounts:
        amounts += [each] if _is_there(each, places) else _found(each, share, places, given)
    return structs.replace(share, amounts=tuple(amounts))


def _is_there(amount: ResourceAmount, places: Places) -> bool:
    provider = places.providers.get(amount.provider)
    return provider is not None and amount.resource in provider.inventories


def _found(
    amount: ResourceAmount, share: Share, places: Places, given: Counter[tuple[ProviderId, str]]
) -> Iterator[ResourceAmount]:
    """`given` is what other amounts of the share have got, of each provider and class."""
    left, resource = amount.amount, amount.resource
    having = [
        (each, capacity_of(stock) - stock.used - given[each.id, resource])
        for each in places.providers.values()
        if each.root == share.host and (stock := each.inventories.get(resource)) is not None
    ]
    for provider, room in sorted(having, key=lambda each: (-each[1], each[0].name)):
        part = min(left, room)
        if part > 0:
            left -= part
            given[provider.id, resource] += part
            yield structs.replace(amount, provider=provider.id, amount=part)
    if left:
        yield structs.replace(amount, amount=left)


RECOUNT = RecountBooks()


def order_to_free(consumer: BookEntry) -> MendConsumer:
    """The order to free everything that the consumer holds."""
    return MendConsumer(consumer=consumer.id, seen=seen_of(consumer))


def order_to_claim(
    view: InstanceView,
    entry: CellEntry,
    expected: ExpectedClaim,
    consumer: BookEntry | None,
    places: Places,
) -> MendConsumer:
    """The order to let the consumer hold what the instance's cell expects it to hold, of the host's present providers."""
    assert expected.share is not None, "only a claim with a share is mended"
    return MendConsumer(
        consumer=expected.consumer,
        seen=seen_of(consumer) if consumer else None,
        claim=MendedClaim(
            cell=entry.instance.cell,
            attempt=expected.attempt,
            share=in_present_shape(expected.share, places),
            type=expected.type,
            project=project_of(view, entry),
            user=entry.user,
            group=entry.group,
            has_place=expected.has_place,
        ),
    )


def project_of(view: InstanceView, entry: CellEntry) -> str:
    return view.at_api.project if view.at_api else entry.instance.project


def seen_of(consumer: BookEntry) -> SeenConsumer:
    return SeenConsumer(generation=consumer.generation, attempt=consumer.attempt, ended=consumer.ended)


def order_to_write_row(told: InstanceState, of_cell: InstanceState) -> MendInstance:
    """The order to bring the API level's row to the state that the cell has."""
    return MendInstance(seen=told.sequence, instance=of_cell)


def order_to_remove(told: InstanceState, cell: str) -> RemoveFromCell | None:
    """The order to let the cell delete the instance: a client was told that it is deleted, or is being deleted.

    None if the API level's row does not say since when that is so.
    """
    if told.changed_at is None:
        return None
    return RemoveFromCell(
        cell=cell,
        instance=told.id,
        request_id=told.request_id,
        sequence=told.sequence,
        issued_at=told.changed_at,
    )


def order_to_destroy(view: InstanceView, entry: CellEntry | None, found: OnHost) -> DestroyInstance | None:
    """The order to let a host remove an attempt, as a conductor gives it to a host that answered too late.

    A row must say that the attempt is not wanted: the row of the host's cell, or the API level's row of a deleted
    instance. Otherwise there is no order, since the attempt may be all that is left of the instance.
    """
    is_known = entry is not None and entry.instance.cell == found.cell
    is_deleted = view.at_api is not None and view.at_api.state == "deleted"
    if not (is_known or is_deleted):
        return None
    at = found.entry
    return DestroyInstance(cell=found.cell, instance=at.instance, attempt=at.attempt, host=at.host)
