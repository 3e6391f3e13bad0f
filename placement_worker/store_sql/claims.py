"""Reads and writes consumers and what they hold. Where one statement for both databases would cost too much, each has its
own.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID

from msgspec import Struct

from engine.capacity import ProviderRow
from engine.inventories import ConsumerId, GroupId, ProviderId, ResourceAmount, ServerGroup
from kit.errors import Bug, Transient
from kit.sql import RowColumns, Transaction
from placement_worker.core.allocation_writes import new_consumer
from placement_worker.core.claims import claimed_consumer
from placement_worker.core.drafts import HARD
from placement_worker.core.ledger import ClaimChanges, ClaimKeys, Consumer, GroupBook, GroupRow, Ledger, Quota
from placement_worker.store import AtOnce
from placement_worker.store_sql import log
from placement_worker.store_sql.names import (
    NOTHING,
    CachedNames,
    Held,
    Statement,
    Used,
    decode_held,
    decode_used,
    encode_amounts,
    id_of,
    portable,
    rows_of,
)
from placement_worker.store_sql.provider_cache import CachedProviders, UsageRow
from placement_worker.store_sql.quotas import ClaimQuotas, QuotaCache, kept_of, text_of_kept
from placement_worker.tables import consumers, holders, providers, server_groups

# Translate claims between rows and values: the code that PostgreSQL and SQLite share, beside their statements.
#
# A few statements read a batch and a few write it, however many claims it has. Rows are matched with the orders by the
# integers of their ids: a UUID is hashed and compared in Python, an integer is not.


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
    """The rows that a transaction has locked for claims, or only read for a claim at once (claim_statements.py), by internal ids.

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


# Lock and read what a batch of claims touches, by a constant number of statements, and write what is rare. The statements are
# the same on both databases; those that each boot writes are each database's own.
#
# No statement both locks and checks. In PostgreSQL's READ COMMITTED, a statement that waited for a row sees that row's new
# version, but everything it joins as it was before the wait. If it also checked, a batch would be granted what others had
# taken meanwhile, without any error (measured: 7,050 claims where 4,000 fit). So locks come first, and later statements read.
# On SQLite, after BEGIN IMMEDIATE the writer has the file for itself, so everything read stays valid until the end.


_ROOT = "JOIN providers AS root ON root.id = ANY (ARRAY[providers.root_id])"
_FIND_BY_NUMBER = portable(
    """
SELECT providers.id, providers.uuid, root.id, root.uuid
FROM providers ROOT
WHERE providers.id = ANY ($1::text::bigint[])
""".replace("ROOT", _ROOT)
)

_STOCK = """
SELECT FIRST, providers.cell,
       stock.class_id, stock.total, stock.reserved, stock.min_unit, stock.max_unit,
       stock.step_size, stock.allocation_ratio
FROM providers JOINED LEFT JOIN inventories AS stock ON stock.provider_id = ANY (ARRAY[providers.id])
WHERE NAMED
ORDER BY providers.id + 0, stock.class_id
"""


def _stocks(first: str, named: str, joined: str = "") -> Statement:
    """Read these providers: the first columns, and those of `StockRow` from the cell on."""
    return portable(_STOCK.replace("FIRST", first).replace("JOINED", joined).replace("NAMED", named))


# In the order of `FoundProvider`. The claims will need the inventories, too: they hold while `base` is the same after the lock.
FIND_BY_ID = _stocks(
    "providers.id, providers.uuid, root.id, root.uuid, providers.base,"
    " providers.generation, providers.shape, providers.used, providers.consumers",
    "providers.uuid = ANY ($1::text::uuid[])",
    _ROOT,
)
_READ_STOCKS = _stocks("providers.id", "providers.id = ANY ($1::text::bigint[])")

# A statement that waited for a row reads that row anew, and evaluates its own condition on it again. So the condition has
# only numbers. It returns the row as it is now, so a decision may use it. Everything else is read by later statements.
_READ = (
    "SELECT id, root_id, base, generation, shape, used, consumers FROM providers"
    " WHERE id = ANY ($1::text::bigint[])"
)
READ_PROVIDERS = portable(_READ)
LOCK_ROOTS = portable(_READ + " ORDER BY id + 0 FOR NO KEY UPDATE")

_READ_MEMBERS = portable(
    "SELECT uuid, server_group, host FROM consumers WHERE server_group = ANY ($1::text::uuid[])"
)

# Rows inserted here are locked already: no other transaction can see them.
_MAKE_GROUPS = RowColumns(server_groups, "uuid", "policy", "max_per_host").insert(
    "ON CONFLICT (uuid) DO NOTHING", returning=("uuid",)
)
_GROUP = RowColumns(server_groups, "uuid", "policy", "max_per_host", "project_id", free_texts=("project_id",))
_LOCK_GROUPS, _WRITE_GROUPS = _GROUP.lock("uuid"), _GROUP.update()
_DROP_GROUPS = RowColumns(server_groups).delete_unlocked("uuid")

# In the order of `ConsumerRow`.
LOCK_CONSUMERS = RowColumns(
    consumers,
    *("uuid", "id", "type", "project_id", "user_id", "cell", "generation", "attempt"),
    *("ended_at", "host", "server_group", "held", "kept"),
).lock("uuid")
_COUNT = RowColumns(providers, "id", "consumers").update()
_KEEP = RowColumns(consumers, "id", "kept", free_texts=("kept",)).update()
_FORGET = RowColumns(consumers).delete_unlocked("id")

END_HOLDING = RowColumns(holders, "provider_id", "consumer_id").statement(
    """
DELETE FROM holders USING unnest($1::text::bigint[], $2::text::bigint[]) AS old (provider_id, consumer_id)
WHERE holders.provider_id = ANY (ARRAY[old.provider_id]) AND holders.consumer_id = ANY (ARRAY[old.consumer_id])
""",
    "DELETE FROM holders WHERE provider_id = ?1 AND consumer_id = ?2",
)

AnyTransaction = TypeVar("AnyTransaction", bound=Transaction)


class ClaimLocks(ABC, Generic[AnyTransaction]):
    """Locks and reads the rows that the claims of one transaction need, once, and then writes the changes."""

    def __init__(
        self,
        transaction: AnyTransaction,
        classes: CachedNames,
        providers: CachedProviders,
        limited: QuotaCache,
    ) -> None:
        self._transaction = transaction
        self._quotas = ClaimQuotas(transaction, limited)
        self._classes = classes
        self._providers = providers
        self._locked: ClaimRows | None = None
        # The rows of the roots, if they were locked together with the consumers.
        self._locked_roots: Sequence[UsageRow] = ()
        # The groups that this transaction has inserted.
        self._made_groups: Sequence[GroupId] = ()

    async def lock(self, keys: ClaimKeys) -> Ledger:
        locked = self._locked = ClaimRows(keys, self._classes, self._providers)
        locked.quotas = await self._quotas.lock(keys)
        self._locked_roots = ()
        await self._find(locked, locked.unknown())
        if keys.groups:
            await self._add_groups(locked, await self._lock_groups(keys.groups))
        if rows := await self._lock_consumers(locked):
            await self._add_consumers(locked, rows)
            self._quotas.check_projects(locked.projects_of_holders())
        await self._lock_providers(locked)
        return locked.ledger()

    async def at_once(self, keys: ClaimKeys) -> AtOnce | None:  # noqa: ARG002 - only PostgreSQL has use for it
        """See `PlacementTransaction.at_once`."""
        return None

    async def write(self, changes: ClaimChanges) -> None:
        locked = self._locked
        assert locked is not None, "claims are written only after they were locked"
        await self._quotas.write_used(changes.quotas)
        await self._write_groups(changes.groups)
        # Consumers that the batch made and did not use have no row on SQLite.
        ids = locked.consumer_ids
        await _FORGET.fetch(self._transaction, [ids[one.int] for one in changes.forgotten if one.int in ids])
        await _COUNT.change(self._transaction, locked.counted(changes))
        if changes.consumers or changes.held or changes.touched:
            self._quotas.check_last(await self._write(locked, changes))
            await _KEEP.change(self._transaction, locked.kept(changes))

    @abstractmethod
    async def _lock_consumers(self, locked: ClaimRows) -> Sequence[ConsumerRow]:
        """Lock the consumers of the claims. Returns the rows that existed before. If none did, it may also lock the roots, which
        come next.
        """

    @abstractmethod
    async def _write(self, locked: ClaimRows, changes: ClaimChanges) -> int:
        """Write consumers and what they hold, the usage of providers, and the log. Returns the highest id of a quota's row."""

    async def _lock_groups(self, groups: Sequence[ServerGroup]) -> Sequence[GroupRow]:
        """Lock server groups by inserting those that have no row yet, as the batch first defines each. Returns those that
        existed before, as they are stored.
        """
        new = await _MAKE_GROUPS.fetch(
            self._transaction, [(each.id, each.policy, each.max_per_host) for each in groups]
        )
        made = {id_of(row[0]) for row in new}
        self._made_groups = [each.id for each in groups if each.id in made]
        rows = await _LOCK_GROUPS.fetch(self._transaction, [group.id for group in groups])
        if len(rows) < len(groups):
            raise Transient(
                "a server group was pruned at the moment of a new claim in it: the batch is tried again"
            )
        known = [
            GroupRow(ServerGroup(id=GroupId(id_of(row[0])), policy=row[1], max_per_host=row[2]), row[3])
            for row in rows
        ]
        return [each for each in known if each.definition.id not in made]

    async def _write_groups(self, groups: Sequence[GroupRow]) -> None:
        """Write the server groups as the granted claims define them. Those that this transaction has inserted, and that no
        granted claim is in, are deleted.
        """
        written = [(each.definition, each.project) for each in groups]
        await _WRITE_GROUPS.change(
            self._transaction, [(one.id, one.policy, one.max_per_host, project) for one, project in written]
        )
        granted = {one.id for one, _ in written}
        unused = [group for group in self._made_groups if group not in granted]
        await _DROP_GROUPS.fetch(self._transaction, unused)

    async def _find(self, locked: ClaimRows, providers: Collection[ProviderId]) -> int:
        """Look up internal ids, roots and inventories of these providers; returns how many of them exist."""
        rows = await rows_of(self._transaction, FIND_BY_ID, providers)
        return locked.learn(rows, await self._names_in(classes_in(rows))) if rows else 0

    async def _names_in(self, classes: AbstractSet[int]) -> Mapping[int, str]:
        """The names of resource classes by internal id, with those of these."""
        return await self._classes.naming(self._transaction, classes)

    async def _add_groups(self, locked: ClaimRows, known: Sequence[GroupRow]) -> None:
        """Add server groups that are locked, with their members: no consumer joins these groups until this transaction ends."""
        judged = [each.definition.id for each in known if each.definition.policy in HARD]
        locked.add_groups(known, await rows_of(self._transaction, _READ_MEMBERS, judged))

    async def _add_consumers(self, locked: ClaimRows, rows: Sequence[ConsumerRow]) -> None:
        unknown = locked.add_consumers(rows)
        self._providers.found(await rows_of(self._transaction, _FIND_BY_NUMBER, unknown))
        await self._classes.naming(self._transaction, locked.held_classes())
        locked.find_held()
        await self._find(locked, locked.unknown_hosts())

    async def _lock_providers(self, locked: ClaimRows) -> None:
        known, numbers, roots = self._providers, locked.provider_ids.values(), locked.roots()
        provider_rows = {row[0]: row for row in await self._lock_rows(numbers, roots)}
        await self._look_for_lost(locked, provider_rows, roots)
        # The roots are locked and read already; from here `numbers` has them, too.
        locked.add_roots([provider_rows[number] for number in numbers])
        moved = {
            number: provider_rows[number][2]
            for number in numbers
            if known.of(number).base != provider_rows[number][2]
        }
        if moved:
            stocks = await rows_of(self._transaction, _READ_STOCKS, moved)
            named = {row[2] for row in stocks if row[2] is not None}
            known.read(moved, stocks, await self._names_in(named))
        locked.add_providers([provider_rows[number] for number in numbers])

    async def _lock_rows(self, numbers: Collection[int], roots: Collection[int]) -> list[UsageRow]:
        below = [number for number in numbers if number not in roots]
        return [
            *(self._locked_roots or await rows_of(self._transaction, LOCK_ROOTS, sorted(roots))),
            *await rows_of(self._transaction, READ_PROVIDERS, below),
        ]

    async def _look_for_lost(self, locked: ClaimRows, provider_rows: Any, roots: AbstractSet[int]) -> None:
        """Drop cache entries of providers that are gone or in another tree than the cache said."""
        known = self._providers
        lost = [known.of(one) for one in locked.provider_ids.values() if one not in provider_rows]
        astray = [known.of(row[0]) for row in provider_rows.values() if row[1] not in roots]
        for one in (*lost, *astray):
            known.forget(one)
            locked.provider_ids.pop(one.id.int, None)
        # A provider found under an id that another one had is not locked yet.
        if astray or (lost and await self._find(locked, [one.id for one in lost])):
            raise Transient(
                "a provider moved to another tree while the batch waited for its lock: it is tried again"
            )


def check_written(written: tuple[int, int], wanted: tuple[int, int]) -> None:
    """The counts of written providers and consumers are compared with what was to be written: a missing row would be a lost
    update.
    """
    if written != wanted:
        raise Bug(
            f"claims not written: {written[0]} of {wanted[0]} providers and {written[1]} of {wanted[1]} consumers exist, "
            "although all of them were locked"
        )
