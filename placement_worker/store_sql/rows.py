"""Rows as the drivers give and take them, the cache of providers, and the rows of a batch of claims as values.

SQLAlchemy's row objects cost as much as the query itself. So on hot paths statements go to the drivers directly. A few read a
batch and a few write it, however many claims it has. Rows are matched with the orders by the integers of their ids: a UUID is
hashed and compared in Python, an integer is not.

Amounts by resource class are compact JSON in one column: the usage of a provider, or what a consumer holds. With a table row
for each class, every claim would have to find and write several rows.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from msgspec import Struct

from engine.inventories import ConsumerId, GroupId, InventoryState, ProviderId, ResourceAmount
from placement_worker.core.allocation_writes import new_consumer
from placement_worker.core.claims import claimed_consumer
from placement_worker.core.ledger import (
    ClaimChanges,
    ClaimKeys,
    Consumer,
    GroupBook,
    GroupRow,
    InventoryLimits,
    Ledger,
    ProviderRow,
    Quota,
    limits_in,
)
from placement_worker.store_sql.names import CachedNames


def id_of(found: UUID | str) -> UUID:
    """An id as a plain UUID, from what a driver returned: SQLite has text, asyncpg a type of its own.

    asyncpg's type is slower to hash and to compare.
    """
    return UUID(found) if isinstance(found, str) else UUID(int=found.int)


NOTHING = "{}"

# Class's id -> amount.
Used = dict[int, int]
# Provider's id -> class's id -> amount.
Held = dict[int, dict[int, int]]

_encode_amounts = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode
decode_used = msgspec.json.Decoder(Used).decode
decode_held = msgspec.json.Decoder(Held).decode
# By the names of classes, as quotas have them.
decode_by_name = msgspec.json.Decoder(dict[str, int]).decode


def encode_amounts(amounts: Used | Held) -> str:
    return _encode_amounts(amounts).decode()


def kept_of(text: str | None) -> tuple[tuple[str, int], ...]:
    """What a MIGRATION counts of its project's quota."""
    return () if text is None else tuple(decode_by_name(text).items())


def text_of(amounts: Mapping[str, int]) -> str:
    return _encode_sorted(amounts).decode()


# A cache of providers: their internal id, their tree, and their inventories.
#
# Most claims of a batch go to providers of a recent batch, and of such a provider only one row has changed since, the one
# with its usage. So these two things are taken from the cache, and everything else is read:
#
# - The internal id of a provider never changes, and no other provider ever gets it.
# - Inventories and cell change only together with the column `base`, the revision at which they were last written. Each batch
#   reads `base`, and reads them again if it differs from the cached one.
#
# The cached root only says what to lock. After locking, the batch reads the rows. If a provider is in a tree that is not
# locked, its entry is dropped and the batch starts again.
#
# A transaction keeps what it reads to itself until it commits. Its writes may be rolled back, and then the same ids and
# bases may come again with other contents.
#
# Of providers whose usage this process wrote last, the whole row is remembered. That is a guess: the statement that relies on it
# compares it with the row, and writes nothing if they differ (postgres_claims.py).

# About 1 kB each; a larger cloud reads some of them again.
PROVIDERS_MAX = 100_000

# internal id, public id, the root's internal id, the root's public id
FoundRow = Sequence[Any]
# id, root's id, base, generation, shape, used, consumers
UsageRow = tuple[int, int, int, int, int, str, int]
# Internal id, cell, and for each inventory (or NULLs, if there is none): class id, total, reserved, min_unit, max_unit,
# step_size, allocation_ratio.
StockRow = Sequence[Any]
NO_BASE = -1


class CachedProvider(Struct, frozen=True, gc=False):
    """A provider as it was at the revision `base`. If only its ids were read, `base` is NO_BASE.

    Everything else is then not known. `classes` has the names of the resource classes of its inventories, by class id.
    """

    number: int
    id: ProviderId
    root: int
    base: int = NO_BASE
    cell: str = ""
    classes: Mapping[int, str] = {}
    limits: Mapping[str, InventoryLimits] = {}


class ProviderCache:
    """The providers that committed transactions have read, by internal id and by public id.

    Public ids are keys as integers, since Python computes the hash of a UUID at each lookup.
    """

    def __init__(self) -> None:
        self.by_number: dict[int, CachedProvider] = {}
        self.by_id: dict[int, CachedProvider] = {}
        # By internal id: rows as this process wrote them last.
        self.usages: dict[int, UsageRow] = {}

    def forget(self, known: CachedProvider) -> None:
        self.by_number.pop(known.number, None)
        self.by_id.pop(known.id.int, None)
        self.usages.pop(known.number, None)

    def keep(self, learned: Collection[CachedProvider]) -> None:
        if len(self.by_number) + len(learned) > PROVIDERS_MAX:
            self.by_number.clear()
            self.by_id.clear()
            self.usages.clear()
        for known in learned:
            self.by_number[known.number] = known
            self.by_id[known.id.int] = known


class CachedProviders:
    """The cache of providers as one transaction sees it: an entry that it has used stays, even if other transactions drop
    it.
    """

    def __init__(self, known: ProviderCache) -> None:
        self._known = known
        self.usages = known.usages
        self._seen: dict[int, CachedProvider] = {}
        self._learned: dict[int, CachedProvider] = {}

    def by_id(self, provider: int) -> CachedProvider | None:
        """The cached provider with this public id (as an integer), or None.

        Providers that this transaction itself has just looked up are not found here, only by `by_number`.
        """
        return self._see(self._known.by_id.get(provider))

    def by_number(self, number: int) -> CachedProvider | None:
        return self._seen.get(number) or self._see(self._known.by_number.get(number))

    def of(self, number: int) -> CachedProvider:
        """The cached provider with this internal id, which this transaction must have looked up before."""
        return self._seen[number]

    def found(self, rows: Iterable[FoundRow]) -> None:
        """Add providers, and their roots, that were looked up in the database. Afterwards `by_number` finds them."""
        for number, uuid, root, root_uuid in rows:
            for one, id_ in ((number, uuid), (root, root_uuid)):
                if self.by_number(one) is None:
                    self._learn(CachedProvider(one, ProviderId(id_of(id_)), root))

    def read(self, bases: Mapping[int, int], rows: Iterable[StockRow], names: Mapping[int, str]) -> None:
        """Cache the cells and inventories of providers that were just read. `bases` has the revision at which each
        provider's were last written: while a provider has that `base`, they hold.
        """
        cells: dict[int, str] = {}
        stocks: dict[int, dict[int, InventoryState]] = {number: {} for number in bases}
        for number, cell, class_id, *stock in rows:
            cells[number] = cell
            if class_id is not None:
                stocks[number][class_id] = InventoryState(*stock)
        for number, base in bases.items():
            known = self._seen[number]
            classes = {class_id: names[class_id] for class_id in stocks[number]}
            limits = limits_in({classes[class_id]: stock for class_id, stock in stocks[number].items()})
            self._learn(
                CachedProvider(
                    number,
                    *(known.id, known.root, base, cells[number], classes, limits),
                )
            )

    def forget(self, known: CachedProvider) -> None:
        self._seen.pop(known.number, None)
        self._learned.pop(known.number, None)
        self._known.forget(known)

    def committed(self) -> None:
        if self._learned:
            self._known.keep(self._learned.values())

    def _see(self, known: CachedProvider | None) -> CachedProvider | None:
        """Use a cached provider in this transaction. None if the provider or its root is not cached."""
        if known is None or (known.root != known.number and self.by_number(known.root) is None):
            return None
        return self._seen.setdefault(known.number, known)

    def _learn(self, known: CachedProvider) -> None:
        self._seen[known.number] = self._learned[known.number] = known


# The rows of a batch of claims, between the database and the values by which they are decided.

# uuid, id, type, project_id, user_id, cell, generation, attempt, ended_at, host, server_group, held, kept
ConsumerRow = Sequence[Any]
# consumer's uuid, group's uuid, host's uuid: text on SQLite
MemberRow = Sequence[Any]
# id, uuid, root's id, root's uuid, base, generation, shape, used, consumers; then as in a `StockRow`, from the cell on
FoundProvider = Sequence[Any]
# provider's id, consumer's id
HolderRow = tuple[int, int]


class ConsumerRecord(Struct, frozen=True, gc=False):
    """A consumer's row and its holdings, both as values and in the form in which the database stores them."""

    row: Consumer
    amounts: tuple[ResourceAmount, ...] = ()
    held: Held = {}

    @property
    def text(self) -> str:
        return encode_amounts(self.held) if self.held else NOTHING


class ConsumerWrites(NamedTuple):
    """Everything that a batch writes about consumers: the rows to write, and each consumer's holdings before and after."""

    consumers: list[ConsumerRecord]
    moved: list[tuple[int, Held, Held]]


_NOTHING_HELD: Held = {}


def classes_in(rows: Iterable[FoundProvider]) -> set[int]:
    return {row[10] for row in rows if row[10] is not None}


class ClaimRows:
    """The rows that a transaction has locked for claims, or only read for a claim at once (postgres_claims.py), by internal ids.

    It makes the `Ledger` of them by which claims are decided, and translates the changes back into rows.
    """

    def __init__(self, keys: ClaimKeys, classes: CachedNames, providers: CachedProviders) -> None:
        self.keys = keys
        self.providers = providers
        self._classes = classes
        self.consumer_ids: dict[int, int] = {}
        # Internal ids of the providers that are named or held, as far as they exist, by the integers of their public ids.
        self.provider_ids: dict[int, int] = {}
        self._provider_rows: dict[int, ProviderRow] = {}
        self._rows: dict[int, ConsumerRecord] = {}
        self._groups: dict[GroupId, GroupBook] = {}
        self._places: dict[ProviderId, str] = {}
        self.quotas: Mapping[str, Quota] = {}

    # From rows to the ledger

    def unknown(self) -> list[ProviderId]:
        """Those of the providers named by the claims whose internal ids are not in the cache."""
        return self._not_cached(self.keys.providers)

    def _not_cached(self, providers: Collection[ProviderId]) -> list[ProviderId]:
        by_id, ids = self.providers.by_id, self.provider_ids
        for provider in providers:
            if (known := by_id(number := provider.int)) is not None:
                ids[number] = known.number
        return [one for one in providers if one.int not in ids]

    def roots(self) -> set[int]:
        """The roots of the known providers, as the cache has them."""
        of = self.providers.of
        return {of(number).root for number in self.provider_ids.values()}

    def found(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.provider_ids[self.providers.of(number).id.int] = number

    def learn(self, rows: Sequence[FoundProvider], names: Mapping[int, str]) -> int:
        """Add providers that were looked up, with their inventories, to the cache; returns how many they are. `names` has the names
        of their classes.
        """
        bases = {row[0]: row[4] for row in rows}
        self.providers.found(row[:4] for row in rows)
        self.providers.read(bases, [(row[0], *row[9:]) for row in rows], names)
        self.found(bases)
        return len(bases)

    def add_consumers(self, rows: Iterable[ConsumerRow]) -> list[int]:
        """Add locked rows of consumers. Returns the internal ids of the providers they hold that are not in the cache."""
        mine = {consumer.int: consumer for consumer in self.keys.consumers}
        unknown: dict[int, None] = {}
        for (
            uuid,
            _,
            kind,
            project,
            user,
            cell,
            generation,
            attempt,
            ended_at,
            host,
            group,
            text,
            kept,
        ) in rows:
            consumer = mine[uuid.int]
            row = Consumer(
                id=consumer,
                type=kind,
                project=project,
                user=user,
                cell=cell,
                generation=generation,
                attempt=attempt,
                ended_at=ended_at,
                host=None if host is None else ProviderId(host),
                group=None if group is None else GroupId(group),
                kept=kept_of(kept),
            )
            held = decode_held(text)
            self._rows[consumer.int] = ConsumerRecord(row, held=held)
            unknown |= {one: None for one in held if self.providers.by_number(one) is None}
        return list(unknown)

    def held_classes(self) -> set[int]:
        """The resource classes that the consumers hold, by internal id."""
        of_class = [amounts for kept in self._rows.values() for amounts in kept.held.values()]
        return {class_id for amounts in of_class for class_id in amounts}

    def find_held(self) -> None:
        """Translate the stored holdings of the consumers into amounts. A provider that does not exist is left out: the
        audit reports it.
        """
        for consumer, kept in self._rows.items():
            if kept.held:
                self._rows[consumer] = ConsumerRecord(kept.row, tuple(self._amounts_of(kept.held)), kept.held)

    def projects_of_holders(self) -> set[str]:
        return {record.row.project for record in self._rows.values() if record.held}

    def kept(self, changes: ClaimChanges) -> list[tuple[int, str | None]]:
        """The consumers for which another amount is kept than before, each with this amount."""
        before = self._rows
        # A consumer keeps something only beside another one that was there before.
        return [
            (self.consumer_ids[row.id.int], text_of(dict(row.kept)) if row.kept else None)
            for row in (changes.consumers if before else ())
            if row.kept != (old.row.kept if (old := before.get(row.id.int)) else ())
        ]

    def unknown_hosts(self) -> list[ProviderId]:
        """The hosts of this batch's consumers that the cache lacks.

        They are looked up, since placement counts the consumers of each host.
        """
        rows = [kept.row for kept in self._rows.values() if kept.held]
        return self._not_cached({row.host: None for row in rows if row.host is not None})

    def _amounts_of(self, held: Held) -> Iterator[ResourceAmount]:
        names = self._classes.names
        for number, of_class in held.items():
            known = self.providers.by_number(number)
            if known is None:
                continue
            self.provider_ids[known.id.int] = number
            for class_id, amount in of_class.items():
                yield ResourceAmount(provider=known.id, resource=names[class_id], amount=amount)

    def add_roots(self, rows: Iterable[UsageRow]) -> None:
        """When administrators write allocations, remember the roots of these providers as possible hosts of the consumers.

        Such a write does not name the consumers' hosts, so any of these roots may become one.
        """
        if self.keys.allocations:
            self.found({row[1] for row in rows})

    def add_providers(self, rows: Iterable[UsageRow]) -> None:
        of = self.providers.of
        for number, root, _, generation, shape, text, consumer_count in rows:
            known = of(number)
            by_class = decode_used(text)
            used = {name: by_class.get(class_id, 0) for class_id, name in known.classes.items()}
            is_root = root == number
            self._provider_rows[known.id.int] = ProviderRow(
                known.id,
                known.id if is_root else of(root).id,
                known.cell,
                generation,
                shape if is_root else None,
                known.limits,
                used,
                consumer_count,
            )

    def add_groups(self, known: Iterable[GroupRow], members: Iterable[MemberRow]) -> None:
        of_group: dict[UUID, list[tuple[ConsumerId, ProviderId]]] = {}
        for uuid, group, host in members:
            if host is not None:
                living = of_group.setdefault(id_of(group), [])
                living.append((ConsumerId(id_of(uuid)), ProviderId(id_of(host))))
        for each in known:
            group = each.definition.id
            self._groups[group] = GroupBook(each, tuple(of_group.get(group, ())))

    def hosts_with_rules(self) -> list[ProviderId]:
        """The hosts whose places decide: those that the batch names, and those of groups' members; none if no group has hard rules."""
        definitions = (*self.keys.groups, *(book.row.definition for book in self._groups.values()))
        if not any(each.hard_rules for each in definitions):
            return []
        members = [host for book in self._groups.values() for _, host in book.members]
        own = [record.row.host for record in self._rows.values() if record.row.host is not None]
        return [*dict.fromkeys((*self.keys.providers, *members, *own))]

    def add_places(self, rows: Iterable[Sequence[Any]]) -> None:
        """Add places; of each host the operator's comes last."""
        self._places = {ProviderId(id_of(host)): place for host, place in rows}

    def ledger(self) -> Ledger:
        rows = self._rows
        return Ledger(
            consumers={
                (number := consumer.int): rows[number].row if number in rows else Consumer(consumer)
                for consumer in self.keys.consumers
            },
            held={number: kept.amounts for number, kept in rows.items() if kept.amounts},
            providers=self._provider_rows,
            groups=self._groups,
            quotas=self.quotas,
            places=self._places,
        )

    # From changes back to rows

    def optimistic_rows(self) -> list[ConsumerRecord]:
        """The row of each consumer as it will be if the consumer is new and its claim is granted, as most are."""
        return [self._optimistic_row(consumer) for consumer in self.keys.consumers]

    def _optimistic_row(self, consumer: ConsumerId) -> ConsumerRecord:
        try:
            if order := self.keys.claims.get(consumer.int):
                amounts = order.share.amounts
                return ConsumerRecord(claimed_consumer(order, 0), amounts, self._held_of(amounts))
            if allocations := self.keys.allocations.get(consumer.int):
                held = self._held_of(allocations.amounts)
                return ConsumerRecord(
                    new_consumer(allocations, self._cell_of(held)), allocations.amounts, held
                )
        except KeyError:
            # It names a provider or class that does not exist or is not in the cache: it is written after the decision.
            pass
        return ConsumerRecord(Consumer(consumer))

    def _cell_of(self, held: Held) -> str:
        cells = [self.providers.of(number).cell for number in held]
        return next((cell for cell in cells if cell), "")

    def _held_of(self, amounts: Iterable[ResourceAmount]) -> Held:
        numbers, class_ids = self.provider_ids, self._classes.ids
        held: Held = {}
        last = -1
        of_provider: Used = {}
        for amount in amounts:
            # Amounts of one provider usually come one after another.
            if amount.provider.int != last:
                last = amount.provider.int
                of_provider = held.setdefault(numbers[last], {})
            class_id = class_ids[amount.resource]
            of_provider[class_id] = of_provider.get(class_id, 0) + amount.amount
        return held

    def consumer_writes(
        self, changes: ClaimChanges, optimistic_rows: Mapping[int, ConsumerRecord]
    ) -> "ConsumerWrites":
        """What to write about consumers, without the rows that were inserted in their final state already."""
        kept = ConsumerWrites([], [])
        held = {consumer.int: amounts for consumer, amounts in changes.held}
        for row in changes.consumers:
            number = row.id.int
            before = self._rows.get(number)
            amounts = held.pop(number, None)
            if amounts is None:
                kept.consumers.append(ConsumerRecord(row, held=before.held if before else {}))
                continue
            record = optimistic_rows.get(number)
            if record is None or record.amounts != amounts or record.row != row:
                record = ConsumerRecord(row, amounts, self._held_of(amounts))
                kept.consumers.append(record)
            kept.moved.append((number, before.held if before else _NOTHING_HELD, record.held))
        # Consumers whose rows are deleted.
        rows = self._rows
        kept.moved.extend((number, rows[number].held, _NOTHING_HELD) for number in held if number in rows)
        return kept

    def holders(self, kept: "ConsumerWrites") -> tuple[list[HolderRow], list[HolderRow]]:
        """Rows to delete and rows to insert in the table that says which consumer holds something of which provider."""
        ids = self.consumer_ids
        ended: list[HolderRow] = []
        begun: list[HolderRow] = []
        for consumer, before, after in kept.moved:
            number = ids[consumer]
            if before:
                ended += [(provider, number) for provider in before if provider not in after]
            begun += [(provider, number) for provider in after if provider not in before]
        return ended, begun

    def touched(self, changes: ClaimChanges) -> Iterator[tuple[int, int, str, int]]:
        """For each changed provider: internal id, generation, usage, and the number of consumers whose host it is."""
        ids, class_ids = self.provider_ids, self._classes.ids
        for one in changes.touched:
            used = {class_ids[name]: amount for name, amount in one.used.items()}
            yield ids[one.provider.int], one.generation, encode_amounts(used), one.consumers

    def counted(self, changes: ClaimChanges) -> list[tuple[int, int]]:
        """For each provider whose count changed: its internal id, and the number of consumers whose host it is."""
        return [(self.provider_ids[provider.int], count) for provider, count in changes.counted]
