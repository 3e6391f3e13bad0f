"""Claims between rows and values: what is alike on every database, beside the statements themselves.

A batch is read by a few statements and written by as many, however many claims it has. Rows are matched with the
orders' own ids by the integers of these: a UUID hashes and compares in Python, an integer does not.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from uuid import UUID

from msgspec import Struct

from bus.message import ConsumerId, GroupId, ProviderId
from bus.messages.placement import ResourceAmount
from placement_worker.core.allocating import made_for
from placement_worker.core.claims import granted
from placement_worker.core.ledger import ClaimChanges, Consumer, Ledger, ProviderRow
from placement_worker.store_sql import log
from placement_worker.store_sql.amounts import (
    NOTHING,
    Held,
    Used,
    decode_held,
    decode_used,
    encode_amounts,
)
from placement_worker.store_sql.known import Providers
from placement_worker.store_sql.log import LogEntry
from placement_worker.store_sql.named import Named
from placement_worker.store_sql.names import Names

# uuid, id, type, project_id, user_id, cell, generation, attempt, ended_at, host, server_group, held
ConsumerRow = tuple[UUID, int, str, str, str, str, int, int, datetime | None, UUID | None, UUID | None, str]
# id, root's id, base, generation, shape, used, consumers
StandingRow = tuple[int, int, int, int, int, str, int]
# provider's id, consumer's id
HolderRow = tuple[int, int]


class KeptConsumer(Struct, frozen=True, gc=False):
    """A consumer's row, and what it holds: as it is decided on, and as it is written."""

    row: Consumer
    amounts: tuple[ResourceAmount, ...] = ()
    held: Held = {}

    @property
    def text(self) -> str:
        return encode_amounts(self.held) if self.held else NOTHING


class Kept:
    """What is written of consumers: rows, and of whom which holding moves from what to what."""

    def __init__(self) -> None:
        self.consumers: list[KeptConsumer] = []
        self.moved: list[tuple[int, Held, Held]] = []


_NOTHING_HELD: Held = {}


class Books:
    """What a transaction has locked, by internal ids: read into a ledger, and written from its changes."""

    def __init__(self, named: Named, classes: Names, providers: Providers) -> None:
        self.named = named
        self.providers = providers
        self._classes = classes
        self.consumer_ids: dict[int, int] = {}
        # Of providers that are named or held, as far as they exist, by the integers of their ids.
        self.provider_ids: dict[int, int] = {}
        self._standing: dict[int, ProviderRow] = {}
        self._rows: dict[int, KeptConsumer] = {}

    # From rows

    def unknown(self) -> list[ProviderId]:
        """Named, and not known by number."""
        ids = self.provider_ids
        by_id = self.providers.by_id
        for provider in self.named.providers:
            known = by_id(number := provider.int)
            if known is not None:
                ids[number] = known.number
        return (
            [one for one in self.named.providers if one.int not in ids]
            if len(ids) < len(self.named.providers)
            else []
        )

    def found(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.provider_ids[self.providers.of(number).id.int] = number

    def add_consumers(self, rows: Iterable[ConsumerRow]) -> list[int]:
        """Also says which providers of those that are held are not known."""
        mine = {consumer.int: consumer for consumer in self.named.consumers}
        unknown: dict[int, None] = {}
        for uuid, number, kind, project, user, cell, generation, attempt, ended_at, host, group, text in rows:
            consumer = mine[uuid.int]
            self.consumer_ids[consumer.int] = number
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
            )
            held = decode_held(text)
            self._rows[consumer.int] = KeptConsumer(row, held=held)
            unknown |= {one: None for one in held if self.providers.by_number(one) is None}
        return list(unknown)

    def lacks_classes(self) -> bool:
        """Is any class unheard of that is held?"""
        of_class = [amounts for kept in self._rows.values() for amounts in kept.held.values()]
        return self._classes.lack({class_id for amounts in of_class for class_id in amounts})

    def find_held(self) -> None:
        """A provider that is held and does not exist is left to the audit."""
        for consumer, kept in self._rows.items():
            if kept.held:
                self._rows[consumer] = KeptConsumer(kept.row, tuple(self._amounts_of(kept.held)), kept.held)

    def unknown_hosts(self) -> list[ProviderId]:
        """Hosts that count somebody who is read here, and that are not known by number."""
        ids = self.provider_ids
        for kept in self._rows.values():
            host = kept.row.host
            if kept.held and host is not None and host.int not in ids:
                known = self.providers.by_id(host.int)
                if known is not None:
                    ids[host.int] = known.number
        hosts = {kept.row.host: None for kept in self._rows.values() if kept.held}
        return [host for host in hosts if host is not None and host.int not in ids]

    def _amounts_of(self, held: Held) -> Iterator[ResourceAmount]:
        names = self._classes.names
        for number, of_class in held.items():
            known = self.providers.by_number(number)
            if known is None:
                continue
            self.provider_ids[known.id.int] = number
            for class_id, amount in of_class.items():
                yield ResourceAmount(provider=known.id, resource=names[class_id], amount=amount)

    def add_roots(self, rows: Iterable[StandingRow]) -> list[int]:
        """The roots of these that nobody named, by number. Who is given something by name, and no host, may live on any of
        them from now on.
        """
        if not self.named.wishes:
            return []
        there = set(self.provider_ids.values())
        roots = [root for root in dict.fromkeys([row[1] for row in rows]) if root not in there]
        for root in roots:
            self.provider_ids[self.providers.of(root).id.int] = root
        return roots

    def add_standing(self, rows: Iterable[StandingRow]) -> None:
        of = self.providers.of
        for number, root, _, generation, shape, text, consumers in rows:
            known = of(number)
            by_class = decode_used(text)
            used = {name: by_class.get(class_id, 0) for class_id, name in known.classes.items()}
            self._standing[known.id.int] = (
                ProviderRow(known.id, known.id, known.cell, generation, shape, known.terms, used, consumers)
                if root == number
                else ProviderRow(
                    known.id, of(root).id, known.cell, generation, None, known.terms, used, consumers
                )
            )

    def ledger(self) -> Ledger:
        rows = self._rows
        return Ledger(
            consumers={
                (number := consumer.int): rows[number].row if number in rows else Consumer(consumer)
                for consumer in self.named.consumers
            },
            held={number: kept.amounts for number, kept in rows.items() if kept.amounts},
            providers=self._standing,
        )

    # Back into rows

    def hopes(self) -> list[KeptConsumer]:
        """Each consumer as it will be if it is new and what is claimed for it is granted, as most is."""
        return [self._hope(consumer) for consumer in self.named.consumers]

    def _hope(self, consumer: ConsumerId) -> KeptConsumer:
        try:
            if order := self.named.claims.get(consumer.int):
                amounts = order.share.amounts
                return KeptConsumer(granted(order, 0), amounts, self._held_of(amounts))
            if wish := self.named.wishes.get(consumer.int):
                held = self._held_of(wish.amounts)
                return KeptConsumer(made_for(wish, self._cell_of(held)), wish.amounts, held)
        except KeyError:
            # Of a provider or a class that does not exist, or is not known yet: it is written when it was decided.
            pass
        return KeptConsumer(Consumer(consumer))

    def _cell_of(self, held: Held) -> str:
        cells = [self.providers.of(number).cell for number in held]
        return next((cell for cell in cells if cell), "")

    def _held_of(self, amounts: Iterable[ResourceAmount]) -> Held:
        numbers, class_ids = self.provider_ids, self._classes.ids
        held: Held = {}
        last = -1
        of_provider: Used = {}
        for amount in amounts:
            # Amounts of one provider usually stand together.
            if amount.provider.int != last:
                last = amount.provider.int
                of_provider = held.setdefault(numbers[last], {})
            class_id = class_ids[amount.resource]
            of_provider[class_id] = of_provider.get(class_id, 0) + amount.amount
        return held

    def kept(self, changes: ClaimChanges, hopes: Mapping[int, KeptConsumer]) -> "Kept":
        """What to write of consumers, but for those that came as they were hoped for."""
        kept = Kept()
        held = {consumer.int: amounts for consumer, amounts in changes.held}
        for row in changes.consumers:
            number = row.id.int
            before = self._rows.get(number)
            amounts = held.pop(number, None)
            if amounts is None:
                kept.consumers.append(KeptConsumer(row, held=before.held if before else {}))
                continue
            hope = hopes.get(number)
            if hope is None or hope.amounts != amounts or hope.row != row:
                hope = KeptConsumer(row, amounts, self._held_of(amounts))
                kept.consumers.append(hope)
            kept.moved.append((number, before.held if before else _NOTHING_HELD, hope.held))
        # Those whose rows go.
        rows = self._rows
        kept.moved += [(number, rows[number].held, _NOTHING_HELD) for number in held if number in rows]
        return kept

    def holders(self, kept: "Kept") -> tuple[list[HolderRow], list[HolderRow]]:
        """Of those that hold something no more, and of those that do now."""
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
        """Provider's id, generation, what is used of it, how many consumers live on it."""
        ids, class_ids = self.provider_ids, self._classes.ids
        for one in changes.touched:
            used = {class_ids[name]: amount for name, amount in one.used.items()}
            yield ids[one.provider.int], one.generation, encode_amounts(used), one.consumers

    def counted(self, changes: ClaimChanges) -> list[tuple[int, int]]:
        """How many consumers live on it, and the provider's id."""
        return [(count, self.provider_ids[provider.int]) for provider, count in changes.counted]

    def log_body(self, changes: ClaimChanges) -> bytes | None:
        ids = self.provider_ids
        entry = LogEntry(
            used=tuple([ids[one.provider.int] for one in changes.touched]),
            claimed=changes.claimed,
            ended=changes.ended,
        )
        return None if entry.is_empty else log.encode(entry)
