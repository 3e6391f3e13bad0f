"""The entries of all books about one instance, the faults that an audit finds in them, and the mends."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from msgspec import Struct

from bus.messages.audit import BookEntry, CellEntry, HostEntry, MendConsumer, MendInstance, RecountBooks
from bus.messages.build import InstanceDetails, InstanceState
from bus.messages.cell import DestroyInstance, RemoveFromCell
from engine.flavors import InstanceId
from engine.hosts import HostState
from engine.inventories import ConsumerId, ProviderId, ProviderState

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
