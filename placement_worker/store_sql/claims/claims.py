"""Translate claims between rows and values: the code that PostgreSQL and SQLite share, beside their statements.

A few statements read a batch and a few write it, however many claims it has. Rows are matched with the orders by the
integers of their ids: a UUID is hashed and compared in Python, an integer is not.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from msgspec import Struct

from bus.message import ConsumerId, GroupId, ProviderId
from bus.messages.placement import ResourceAmount
from placement_worker.core.claim_keys import ClaimKeys
from placement_worker.core.claims import claimed_consumer
from placement_worker.core.ledger import (
    ClaimChanges,
    Consumer,
    GroupBook,
    GroupRow,
    Ledger,
    ProviderRow,
    Quota,
)
from placement_worker.core.writes.allocation_writes import new_consumer
from placement_worker.store_sql import log
from placement_worker.store_sql.driver_rows import (
    NOTHING,
    Held,
    Used,
    decode_held,
    decode_used,
    encode_amounts,
    id_of,
)
from placement_worker.store_sql.name_cache import CachedNames
from placement_worker.store_sql.provider_cache import CachedProviders, UsageRow
from placement_worker.store_sql.quotas import kept_of, text_of_kept

# uuid, id, type, project_id, user_id, cell, generation, attempt, ended_at, host, server_group, held, kept
ConsumerRow = Sequence[Any]
# consumer's uuid, group's uuid, host's uuid: text on SQLite
MemberRow = tuple[UUID | str, UUID | str, UUID | str | None]
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
    """The rows that a transaction has locked for claims, or only read for a claim at once (at_once.py), by internal ids.

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
                kept=() if kept is None else kept_of(kept),
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
            (self.consumer_ids[row.id.int], text_of_kept(row.kept))
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
        for number, root, _, generation, shape, text, consumers in rows:
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
                consumers,
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

    def log_body(self, changes: ClaimChanges) -> bytes | None:
        ids = self.provider_ids
        entry = log.LogEntry(
            used=tuple([ids[one.provider.int] for one in changes.touched]),
            claimed=changes.claimed,
            ended=changes.ended,
            joined=changes.joined,
            left=changes.left,
        )
        return log.body_of(entry)
