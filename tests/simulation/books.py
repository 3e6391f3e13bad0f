"""Placement's books, kept a second time by whoever checks: from what each transaction wrote, and by other means.

After each commit: nothing is over capacity that was added to, what is written as used is what is held, who holds lives
and holds on one host, no host has more consumers than the claims' limit, and what was claimed was claimed in the shape
that the claimer saw.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct, structs

from bus.message import AggregateId, ConsumerId, ProviderId
from bus.messages.build import InstanceId
from bus.messages.placement import (
    ClaimResources,
    InventoryState,
    ReleaseClaim,
    ResourceAmount,
    ShapeSeen,
    SwapClaim,
)
from placement_worker.core.ledger import ClaimChanges, ClaimOrder, TreeChanges
from tests.simulation.estate import SHARES
from tests.simulation.findings import Findings
from tests.simulation.hosts_seen import PLACES, HostsSeen, short
from tests.simulation.physical import Physical

Amounts = tuple[ResourceAmount, ...]
Stock = tuple[ProviderId, str]


class Heir(Struct, frozen=True):
    """Of whom a cleanup consumer inherited, and which attempt's share."""

    instance: InstanceId
    attempt: int


class Books:
    def __init__(
        self, findings: Findings, hosts: HostsSeen, physical: Physical, instances_max: int = 0
    ) -> None:
        self._findings = findings
        self._hosts = hosts
        self._physical = physical
        # How many consumers may live on a host, as all claims and swaps say; 0: any number.
        self._instances_max = instances_max
        # Where those live that came by claims and swaps: on the host of their share.
        self._lives_on: dict[ConsumerId, ProviderId] = {}
        self.held: dict[ConsumerId, Amounts] = {}
        self.heirs: dict[ConsumerId, Heir] = {}
        self._living: dict[ConsumerId, int] = {}
        self._sums: dict[Stock, int] = {}
        self._inventories: dict[ProviderId, dict[str, InventoryState]] = {}
        self._shapes: dict[ProviderId, int] = {}
        self._roots: dict[ProviderId, ProviderId] = {}
        self._aggregates: dict[ProviderId, frozenset[AggregateId]] = {}
        # Those providers whose inventory is also that of other trees in one of their aggregates.
        self._sharing: set[ProviderId] = set()
        # Of each consumer: the providers that it holds of and that rightly stand in another tree than its host. They
        # share, or were moved there by name, with what is held of them.
        self._apart: dict[ConsumerId, set[ProviderId]] = {}

    # What is told

    def written(self, orders: Sequence[ClaimOrder], written: Sequence[TreeChanges | ClaimChanges]) -> None:
        """All that one transaction wrote, in its order; looked at when all of it stands."""
        claims = [changes for changes in written if isinstance(changes, ClaimChanges)]
        before = {
            consumer: (held, self._host_of(consumer))
            for each in claims
            for consumer, _ in each.held
            if (held := self.held.get(consumer))
        }
        self._note_heirs(orders)
        self._note_written_by_name(orders, claims)
        touched: set[ProviderId] = set()
        gained: set[Stock] = set()
        for changes in written:
            if isinstance(changes, TreeChanges):
                touched |= self._grow(changes)
            else:
                gained |= self._move(changes)
                touched |= self._count(changes)
        self._note_shared(claims)
        self._note_lives(orders, claims)
        standing = [provider for provider in touched if provider in self._inventories]
        self._check_used(standing)
        self._check_gone(touched - self._inventories.keys())
        self._check_capacity(gained)
        for each in claims:
            self._check_holders(each)
            self._check_shapes(orders, each)
            self._check_limit(each)
        self._check_freed(before, orders)
        for provider in touched:
            self._note_free(provider)

    def consumers_of(self, instance: InstanceId) -> list[ConsumerId]:
        """The instance, and who inherited of it, as far as they hold something."""
        heirs = [id_ for id_, heir in self.heirs.items() if heir.instance == instance]
        return [each for each in (instance, *heirs) if each in self.held]

    def free(self, provider: ProviderId, resource: str) -> int | None:
        inventory = self._inventories.get(provider, {}).get(resource)
        return None if inventory is None else _capacity(inventory) - self._sums.get((provider, resource), 0)

    def offered(self, provider: ProviderId) -> dict[str, int] | None:
        """How much of each class there is, held or not; None if there is no such provider."""
        inventories = self._inventories.get(provider)
        return None if inventories is None else {name: _capacity(each) for name, each in inventories.items()}

    # How it is kept

    def _root(self, provider: ProviderId) -> ProviderId:
        """The host, of which it may be a part."""
        return self._roots.get(provider, provider)

    def _host_of(self, consumer: ConsumerId) -> ProviderId:
        """The root of what it holds; what stands apart from it only where there is nothing else."""
        apart, held = self._apart.get(consumer, ()), self.held[consumer]
        own = next((each for each in held if each.provider not in apart), held[0])
        return self._root(own.provider)

    def _note_heirs(self, orders: Sequence[ClaimOrder]) -> None:
        for order in orders:
            if isinstance(order, SwapClaim) and order.cleanup is not None:
                self.heirs[order.cleanup] = Heir(order.consumer, order.held_attempt)
                self._apart.setdefault(order.cleanup, set()).update(self._apart.get(order.consumer, ()))

    def _note_written_by_name(self, orders: Sequence[ClaimOrder], claims: Iterable[ClaimChanges]) -> None:
        """A reshape may put a share into whatever tree its provider stands in by then; a claim begins anew, and a cleanup
        consumer inherits what was held, wherever that stands.
        """
        heirs = {order.cleanup for order in orders if isinstance(order, SwapClaim) and order.cleanup}
        ordered = {order.consumer for order in orders} | heirs
        for changes in claims:
            for holder in changes.claimed:
                if holder.consumer not in heirs:
                    self._apart.pop(holder.consumer, None)
            for consumer, amounts in changes.held:
                if not amounts:
                    self._apart.pop(consumer, None)
                elif consumer not in ordered:
                    before = {each.provider for each in self.held.get(consumer, ())}
                    moved = {each.provider for each in amounts} - before
                    self._apart.setdefault(consumer, set()).update(moved)

    def _note_lives(self, orders: Sequence[ClaimOrder], claims: Iterable[ClaimChanges]) -> None:
        """Who inherits lives where the instance lived; whoever holds nothing lives nowhere."""
        granted = {(holder.consumer, holder.attempt) for changes in claims for holder in changes.claimed}
        for order in orders:
            if isinstance(order, ReleaseClaim) or (order.consumer, order.attempt) not in granted:
                continue
            # Asked again in the same batch, it may have named another host: what is held tells which was granted.
            if self.held.get(order.consumer) != order.share.amounts:
                continue
            left = self._lives_on.get(order.consumer)
            if isinstance(order, SwapClaim) and order.cleanup is not None and left is not None:
                self._lives_on.setdefault(order.cleanup, left)
            self._lives_on[order.consumer] = order.share.host
        for consumer in [each for each in self._lives_on if each not in self.held]:
            del self._lives_on[consumer]

    def _places_left(self, host: ProviderId) -> int:
        return self._instances_max - sum(each == host for each in self._lives_on.values())

    def _note_shared(self, claims: Iterable[ClaimChanges]) -> None:
        """What was claimed of a provider that shares, beside a tree that it shares with."""
        for changes in claims:
            for holder in changes.claimed:
                held = self.held.get(holder.consumer, ())
                roots = {self._root(each.provider) for each in held}
                shared = {each.provider for each in held if self._is_shared(each.provider, roots)}
                if shared:
                    self._apart.setdefault(holder.consumer, set()).update(shared)

    def _is_shared(self, provider: ProviderId, roots: set[ProviderId]) -> bool:
        if provider not in self._sharing:
            return False
        others = roots - {self._root(provider)}
        return any(
            self._aggregates[member] & self._aggregates[provider]
            for member, root in self._roots.items()
            if root in others
        )

    def _grow(self, changes: TreeChanges) -> set[ProviderId]:
        """Which providers were written."""
        for removed in changes.removed:
            self._inventories.pop(removed, None)
            self._roots.pop(removed, None)
            self._aggregates.pop(removed, None)
            self._sharing.discard(removed)
        for tree in changes.trees:
            self._shapes[tree.root] = tree.shape
            for book in tree.providers.values():
                if self._roots.get(book.id, tree.root) != tree.root:
                    for consumer in self._holders(book.id):
                        self._apart.setdefault(consumer, set()).add(book.id)
                self._inventories[book.id] = dict(book.inventories)
                self._roots[book.id] = tree.root
                self._aggregates[book.id] = book.aggregates
                if SHARES in book.traits | book.operator_traits:
                    self._sharing.add(book.id)
                else:
                    self._sharing.discard(book.id)
            root = tree.providers.get(tree.root)
            if root is not None:
                self._hosts.planted(tree.root, root.name, tree.cell, root.traits | root.operator_traits)
        return {*changes.changed, *changes.removed, *(tree.root for tree in changes.trees)}

    def _count(self, changes: ClaimChanges) -> set[ProviderId]:
        """What is told to be used, and of which providers."""
        for touched in changes.touched:
            standing = self._inventories.get(touched.provider, {})
            for resource, used in touched.used.items():
                if resource in standing:
                    standing[resource] = structs.replace(standing[resource], used=used)
        return {touched.provider for touched in changes.touched}

    def _move(self, changes: ClaimChanges) -> set[Stock]:
        """Which stocks were added to."""
        for row in changes.consumers:
            if row.ended_at is None:
                self._living[row.id] = row.attempt
            else:
                self._living.pop(row.id, None)
        for forgotten in changes.forgotten:
            self._living.pop(forgotten, None)
        sums_before: dict[Stock, int] = {}
        for consumer, amounts in changes.held:
            for sign, some in ((-1, self.held.get(consumer, ())), (1, amounts)):
                for each in some:
                    key = (each.provider, each.resource)
                    sums_before.setdefault(key, self._sums.get(key, 0))
                    self._sums[key] = self._sums.get(key, 0) + sign * each.amount
            if amounts:
                self.held[consumer] = amounts
            else:
                self.held.pop(consumer, None)
        return {key for key, sum_ in sums_before.items() if self._sums[key] > sum_}

    def _holders(self, provider: ProviderId) -> list[ConsumerId]:
        return [who for who, held in self.held.items() if any(each.provider == provider for each in held)]

    def _note_free(self, provider: ProviderId) -> None:
        inventories = self._inventories.get(provider, {})
        places = {PLACES: self._places_left(provider)} if self._instances_max else {}
        self._hosts.has_free(
            provider,
            {
                resource: _capacity(inventory) - self._sums.get((provider, resource), 0)
                for resource, inventory in inventories.items()
            }
            | places,
        )

    # What must hold

    def _check_used(self, touched: Iterable[ProviderId]) -> None:
        for provider in touched:
            for resource, inventory in self._inventories[provider].items():
                held = self._sums.get((provider, resource), 0)
                if inventory.used != held:
                    self._findings.breaks(
                        "capacity is law",
                        f"{resource} of {self._hosts.name(provider)}: used is {inventory.used}, and {held} is held",
                    )

    def _check_gone(self, gone: set[ProviderId]) -> None:
        for (provider, resource), held in self._sums.items() if gone else ():
            if held and provider in gone:
                self._findings.breaks(
                    "what is held stays", f"{held} {resource} is held of {short(provider)}, which is no more"
                )

    def _check_capacity(self, gained: Iterable[Stock]) -> None:
        for provider, resource in gained:
            inventory = self._inventories.get(provider, {}).get(resource)
            capacity = 0 if inventory is None else _capacity(inventory)
            if (held := self._sums[provider, resource]) > capacity:
                self._findings.breaks(
                    "capacity is law",
                    f"{resource} of {self._hosts.name(provider)}: {held} is held of {capacity}, and was added to",
                )

    def _check_holders(self, changes: ClaimChanges) -> None:
        for consumer, amounts in changes.held:
            if amounts and consumer not in self._living:
                self._findings.breaks(
                    "no allocation without a living consumer", f"{consumer} holds {amounts}"
                )
            apart = self._apart.get(consumer, ())
            claimed = [each.provider for each in amounts if each.provider not in apart]
            hosts = {self._hosts.name(self._root(provider)) for provider in claimed}
            # Who is written by name may hold wherever it likes.
            if len(hosts) > 1 and self._living.get(consumer):
                self._findings.breaks(
                    "no consumer on two hosts", f"{consumer} holds shares of {sorted(hosts)}"
                )

    def _check_limit(self, changes: ClaimChanges) -> None:
        """The limit travels in claims and swaps, so that several schedulers which choose at once keep it."""
        if not self._instances_max:
            return
        joined = [
            self._lives_on[each.consumer] for each in changes.claimed if each.consumer in self._lives_on
        ]
        for host in dict.fromkeys(joined):
            if (left := self._places_left(host)) < 0:
                self._findings.breaks(
                    "no host has more instances than the limit",
                    f"{self._hosts.name(host)} has {self._instances_max - left} of {self._instances_max}, and one was added",
                )
            elif left == 0:
                self._findings.see("limit", "reached")

    def _check_shapes(self, orders: Sequence[ClaimOrder], changes: ClaimChanges) -> None:
        """One batch may hold the same claim several times, as it was first asked and as it was asked again."""
        asked: dict[ConsumerId, list[ClaimResources | SwapClaim]] = {}
        claimed = {(holder.consumer, holder.attempt) for holder in changes.claimed}
        for order in orders:
            if isinstance(order, ReleaseClaim) or (order.consumer, order.attempt) not in claimed:
                continue
            if self.held.get(order.consumer) == order.share.amounts:
                asked.setdefault(order.consumer, []).append(order)
        for consumer, alike in asked.items():
            self._findings.tell("books", "{} claims {}", consumer, self._hosts.name(alike[0].share.host))
            if all(map(self._saw_another, alike)):
                seen = [order.share.shapes for order in alike]
                self._findings.breaks(
                    "qualities are law",
                    f"{short(consumer)} was granted a share of what it saw as {seen}, and which has moved since",
                )

    def _saw_another(self, order: ClaimResources | SwapClaim) -> bool:
        return any(self._has_moved(seen) for seen in order.share.shapes)

    def _has_moved(self, seen: ShapeSeen) -> bool:
        return self._shapes.get(seen.root) != seen.shape

    def _check_freed(
        self, before: dict[ConsumerId, tuple[Amounts, ProviderId]], orders: Sequence[ClaimOrder]
    ) -> None:
        """What a host may still have of an attempt stays held until the host has confirmed that it has not."""
        for consumer, (amounts, host) in before.items():
            if self.held.get(consumer) == amounts:
                continue
            heir = self.heirs.get(consumer)
            instance = InstanceId(consumer) if heir is None else heir.instance
            if any(self._host_of(other) == host for other in self.consumers_of(instance)):
                continue
            self._findings.tell("books", "{} let go of {}", consumer, self._hosts.name(host))
            running = self._physical.still_there(instance, host)
            if running:
                self._findings.breaks(
                    "silence is not failure",
                    f"the share of {short(instance)} on {self._hosts.name(host)} was freed, which still has its "
                    f"attempt {running}; asked by {[type(order).__name__ for order in orders if order.consumer == consumer]}",
                )


def _capacity(inventory: InventoryState) -> int:
    return int((inventory.total - inventory.reserved) * inventory.allocation_ratio)
