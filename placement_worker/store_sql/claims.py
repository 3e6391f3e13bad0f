"""Claims between rows and values: what is alike on every database, beside the statements themselves.

A batch is read by four statements and written by as many, however many claims it has. Rows are matched with the
orders' own ids by the integers of these: a UUID hashes and compares in Python, an integer does not.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from msgspec import Struct

from bus.message import ConsumerId, GroupId, ProviderId
from bus.messages.placement import InventoryState, ReleaseClaim, ResourceAmount, ServerGroup, SwapClaim
from placement_worker.core.ledger import ClaimChanges, ClaimOrder, Consumer, Ledger, ProviderRow
from placement_worker.store_sql import log
from placement_worker.store_sql.log import LogEntry
from placement_worker.store_sql.names import Names

# uuid, id, type, project_id, user_id, cell, generation, attempt, ended_at, host, server_group
ConsumerRow = tuple[UUID, int, str, str, str, str, int, int, datetime | None, UUID | None, UUID | None]
# consumer id, provider, class id, amount
HeldRow = tuple[int, UUID, int, int]
# place among those asked for, id, root's id, root if it is another, cell, generation, shape of the root, and
# for each inventory: class id, total, reserved, min_unit, max_unit, step_size, allocation_ratio, used
StandingRow = Sequence[Any]
# consumer id, provider id, class id, amount
AllocationRow = tuple[int, int, int, int]


class Named(Struct, frozen=True):
    """Whom and what a batch of orders names, each once; consumers and groups in the order of their locks."""

    consumers: list[ConsumerId]
    providers: list[ProviderId]
    groups: list[ServerGroup]


def named_by(orders: Iterable[ClaimOrder]) -> Named:
    consumers: dict[int, ConsumerId] = {}
    providers: dict[int, ProviderId] = {}
    groups: dict[int, ServerGroup] = {}
    for order in orders:
        consumers[order.consumer.int] = order.consumer
        if isinstance(order, ReleaseClaim):
            continue
        if isinstance(order, SwapClaim) and order.cleanup is not None:
            consumers[order.cleanup.int] = order.cleanup
        if order.group is not None:
            groups[order.group.id.int] = order.group
        share = order.share
        providers[share.host.int] = share.host
        for amount in share.amounts:
            providers[amount.provider.int] = amount.provider
        for seen in share.shapes:
            providers[seen.root.int] = seen.root
    return Named(
        consumers=[consumers[number] for number in sorted(consumers)],
        providers=list(providers.values()),
        groups=[groups[number] for number in sorted(groups)],
    )


class Books:
    """What a transaction has locked, by internal ids: read into a ledger, and written from its changes."""

    def __init__(self, named: Named, classes: Names) -> None:
        self.named = named
        self.providers = named.providers
        self._classes = classes
        self.consumer_ids: dict[int, int] = {}
        self.provider_ids: dict[int, int] = {}
        self.standing: dict[int, ProviderRow] = {}
        self._holding: set[int] = set()
        self._rows: dict[int, Consumer] = {}
        self._held: dict[int, tuple[ResourceAmount, ...]] = {}

    def add_consumers(self, rows: Iterable[ConsumerRow]) -> None:
        mine = {consumer.int: consumer for consumer in self.named.consumers}
        for uuid, number, kind, project, user, cell, generation, attempt, ended_at, host, group in rows:
            consumer = mine[uuid.int]
            self.consumer_ids[uuid.int] = number
            self._rows[uuid.int] = Consumer(
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

    def add_held(self, rows: Iterable[HeldRow]) -> None:
        """Also says which providers must be locked and read beside those that are named."""
        mine = {provider.int: provider for provider in self.providers}
        held: dict[int, list[ResourceAmount]] = {}
        for consumer_id, uuid, class_id, amount in rows:
            provider = mine.setdefault(uuid.int, ProviderId(uuid))
            resource = self._classes.names[class_id]
            held.setdefault(consumer_id, []).append(
                ResourceAmount(provider=provider, resource=resource, amount=amount)
            )
        self.providers = list(mine.values())
        self._holding = set(held)
        consumers = {self.consumer_ids[consumer]: consumer for consumer in self._rows}
        self._held = {consumers[number]: tuple(amounts) for number, amounts in held.items()}

    def add_standing(self, asked: Sequence[ProviderId], rows: Iterable[StandingRow]) -> None:
        """What was found of those asked for, in their order."""
        names = self._classes.names
        last = -1
        stocks: dict[str, InventoryState] = {}
        for row in rows:
            if row[0] != last:
                last, number, _, root, cell, generation, shape = row[:7]
                provider = asked[last]
                stocks = {}
                self.add_provider(
                    number,
                    ProviderRow(provider, provider, cell, generation, shape, stocks)
                    if root is None
                    else ProviderRow(provider, ProviderId(root), cell, generation, None, stocks),
                )
            if row[7] is not None:
                class_id, total, reserved, min_unit, max_unit, step_size, allocation_ratio, used = row[7:]
                stocks[names[class_id]] = InventoryState(
                    total=total,
                    reserved=reserved,
                    min_unit=min_unit,
                    max_unit=max_unit,
                    step_size=step_size,
                    allocation_ratio=allocation_ratio,
                    used=used,
                )

    def add_provider(self, number: int, row: ProviderRow) -> None:
        self.provider_ids[row.id.int] = number
        self.standing[row.id.int] = row

    def ledger(self) -> Ledger:
        rows_of = self._rows
        return Ledger(
            consumers={
                (number := consumer.int): rows_of.get(number) or Consumer(consumer)
                for consumer in self.named.consumers
            },
            held=self._held,
            providers=self.standing,
        )

    # Back into rows

    def generations(self, changes: ClaimChanges) -> list[tuple[int, int]]:
        """Provider's id, generation."""
        ids = self.provider_ids
        return [(ids[provider.int], generation) for provider, generation in changes.generations]

    def used(self, changes: ClaimChanges) -> list[tuple[int, int, int]]:
        """Provider's id, class's id, what is used."""
        ids, class_ids = self.provider_ids, self._classes.ids
        return [(ids[provider.int], class_ids[name], used) for provider, name, used in changes.used]

    def emptied(self, changes: ClaimChanges) -> list[int]:
        """Consumers whose allocations are to go before they get others, or none."""
        ids = self.consumer_ids
        return [
            number
            for consumer, _ in changes.held
            if (number := ids.get(consumer.int)) is not None and number in self._holding
        ]

    def allocations(self, changes: ClaimChanges) -> list[AllocationRow]:
        consumer_ids, provider_ids, class_ids = self.consumer_ids, self.provider_ids, self._classes.ids
        return [
            (
                consumer_ids[consumer.int],
                provider_ids[amount.provider.int],
                class_ids[amount.resource],
                amount.amount,
            )
            for consumer, amounts in changes.held
            for amount in amounts
        ]

    def log_body(self, changes: ClaimChanges) -> bytes | None:
        ids = self.provider_ids
        entry = LogEntry(
            used=tuple([ids[provider.int] for provider, _ in changes.generations]),
            claimed=changes.claimed,
            ended=changes.ended,
        )
        return None if entry.is_empty else log.encode(entry)
