"""A second copy of placement's books, built from the rows that each transaction wrote, by other code than placement's.

After each commit it checks: no inventory that gained usage is over its capacity; `used` equals what consumers hold;
each holder is a living consumer, on one host; no host exceeds the limit of instances that claims carry; and each
granted claim named the shape that the tree has.
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
    ServerGroup,
    ShapeSeen,
    SwapClaim,
)
from placement_worker.core.ledger import ClaimChanges, ClaimOrder, TreeChanges
from tests.simulation.findings import Findings
from tests.simulation.fixtures import SHARES
from tests.simulation.groups_checker import GroupsChecker
from tests.simulation.host_history import INSTANCE_SLOTS, HostHistories, short_id
from tests.simulation.real_instances import RealInstances

Amounts = tuple[ResourceAmount, ...]
InventoryKey = tuple[ProviderId, str]


class CleanupOf(Struct, frozen=True):
    """A cleanup consumer holds the share of this attempt of this instance."""

    instance: InstanceId
    attempt: int


class BooksChecker:
    def __init__(
        self,
        findings: Findings,
        hosts: HostHistories,
        real_instances: RealInstances,
        instances_max: int = 0,
        groups: Iterable[ServerGroup] = (),
    ) -> None:
        self.groups = GroupsChecker(findings, hosts, groups)
        self._findings = findings
        self._hosts = hosts
        self._real_instances = real_instances
        # The limit of consumers on one host that all claims and swaps carry; 0 means no limit.
        self._instances_max = instances_max
        # The host of each consumer that came by a claim or a swap, as its share named it.
        self._placed_on: dict[ConsumerId, ProviderId] = {}
        self.held: dict[ConsumerId, Amounts] = {}
        self.cleanup_consumers: dict[ConsumerId, CleanupOf] = {}
        self._live_attempts: dict[ConsumerId, int] = {}
        self._held_sums: dict[InventoryKey, int] = {}
        self._inventories: dict[ProviderId, dict[str, InventoryState]] = {}
        self._shapes: dict[ProviderId, int] = {}
        self._roots: dict[ProviderId, ProviderId] = {}
        self._aggregates: dict[ProviderId, frozenset[AggregateId]] = {}
        # Providers that share their inventory with other trees by a common aggregate.
        self._sharing: set[ProviderId] = set()
        # Per consumer: providers that it may hold although they are in another tree than its host. They share their
        # inventory, or an administrator moved them there together with what is held of them.
        self._outside_host: dict[ConsumerId, set[ProviderId]] = {}

    # Called after each commit

    def written(self, orders: Sequence[ClaimOrder], written: Sequence[TreeChanges | ClaimChanges]) -> None:
        """Take in all rows that one transaction wrote, in order; check only when all of them are in."""
        claims = [changes for changes in written if isinstance(changes, ClaimChanges)]
        before = {
            consumer: (held, self._host_of(consumer))
            for each in claims
            for consumer, _ in each.held
            if (held := self.held.get(consumer))
        }
        self._note_cleanups(orders)
        self._note_written_by_name(orders, claims)
        touched: set[ProviderId] = set()
        gained: set[InventoryKey] = set()
        for changes in written:
            if isinstance(changes, TreeChanges):
                touched |= self._write_trees(changes)
            else:
                gained |= self._write_claims(changes)
                touched |= self._write_used(changes)
        self._note_shared(claims)
        self._note_placed(orders, claims)
        existing = [provider for provider in touched if provider in self._inventories]
        self._check_used(existing)
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
        """The instance and its cleanup consumers, as far as they hold anything."""
        cleanup_consumers = [
            id_ for id_, cleanup in self.cleanup_consumers.items() if cleanup.instance == instance
        ]
        return [each for each in (instance, *cleanup_consumers) if each in self.held]

    def free(self, provider: ProviderId, resource: str) -> int | None:
        inventory = self._inventories.get(provider, {}).get(resource)
        return (
            None if inventory is None else _capacity(inventory) - self._held_sums.get((provider, resource), 0)
        )

    def offered(self, provider: ProviderId) -> dict[str, int] | None:
        """The capacity per resource class, whether in use or not; None if there is no such provider."""
        inventories = self._inventories.get(provider)
        return None if inventories is None else {name: _capacity(each) for name, each in inventories.items()}

    # How the copy is updated

    def _root(self, provider: ProviderId) -> ProviderId:
        """The root of this provider's tree: the host."""
        return self._roots.get(provider, provider)

    def _host_of(self, consumer: ConsumerId) -> ProviderId:
        """The root of the providers that it holds; one outside its host counts only if it holds no other."""
        apart, held = self._outside_host.get(consumer, ()), self.held[consumer]
        own = next((each for each in held if each.provider not in apart), held[0])
        return self._root(own.provider)

    def _note_cleanups(self, orders: Sequence[ClaimOrder]) -> None:
        for order in orders:
            if isinstance(order, SwapClaim) and order.cleanup is not None:
                self.cleanup_consumers[order.cleanup] = CleanupOf(order.consumer, order.held_attempt)
                self._outside_host.setdefault(order.cleanup, set()).update(
                    self._outside_host.get(order.consumer, ())
                )

    def _note_written_by_name(self, orders: Sequence[ClaimOrder], claims: Iterable[ClaimChanges]) -> None:
        """A reshape may move allocations into any tree. A new claim starts with no providers outside its host; a
        cleanup consumer takes over those of the instance.
        """
        cleanup_consumers = {
            order.cleanup for order in orders if isinstance(order, SwapClaim) and order.cleanup
        }
        ordered = {order.consumer for order in orders} | cleanup_consumers
        for changes in claims:
            for holder in changes.claimed:
                if holder.consumer not in cleanup_consumers:
                    self._outside_host.pop(holder.consumer, None)
            for consumer, amounts in changes.held:
                if not amounts:
                    self._outside_host.pop(consumer, None)
                elif consumer not in ordered:
                    before = {each.provider for each in self.held.get(consumer, ())}
                    moved = {each.provider for each in amounts} - before
                    self._outside_host.setdefault(consumer, set()).update(moved)

    def _note_placed(self, orders: Sequence[ClaimOrder], claims: Iterable[ClaimChanges]) -> None:
        """A cleanup consumer counts on the host that the instance left. A consumer that holds nothing counts on no
        host.
        """
        granted = {(holder.consumer, holder.attempt) for changes in claims for holder in changes.claimed}
        for order in orders:
            if isinstance(order, ReleaseClaim) or (order.consumer, order.attempt) not in granted:
                continue
            # A claim repeated in one batch may name another host each time: the amounts held tell which of them was
            # granted.
            if self.held.get(order.consumer) != order.share.amounts:
                continue
            left = self._placed_on.get(order.consumer)
            if isinstance(order, SwapClaim) and order.cleanup is not None and left is not None:
                self._placed_on.setdefault(order.cleanup, left)
            self._placed_on[order.consumer] = order.share.host
        for consumer in [each for each in self._placed_on if each not in self.held]:
            del self._placed_on[consumer]
        self.groups.committed(orders, granted, self._placed_on)

    def _slots_left(self, host: ProviderId) -> int:
        return self._instances_max - sum(each == host for each in self._placed_on.values())

    def _note_shared(self, claims: Iterable[ClaimChanges]) -> None:
        """Remember claimed providers that share their inventory with the claimed host's tree."""
        for changes in claims:
            for holder in changes.claimed:
                held = self.held.get(holder.consumer, ())
                roots = {self._root(each.provider) for each in held}
                shared = {each.provider for each in held if self._is_shared(each.provider, roots)}
                if shared:
                    self._outside_host.setdefault(holder.consumer, set()).update(shared)

    def _is_shared(self, provider: ProviderId, roots: set[ProviderId]) -> bool:
        if provider not in self._sharing:
            return False
        others = roots - {self._root(provider)}
        return any(
            self._aggregates[member] & self._aggregates[provider]
            for member, root in self._roots.items()
            if root in others
        )

    def _write_trees(self, changes: TreeChanges) -> set[ProviderId]:
        """Returns the providers that were written."""
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
                        self._outside_host.setdefault(consumer, set()).add(book.id)
                self._inventories[book.id] = dict(book.inventories)
                self._roots[book.id] = tree.root
                self._aggregates[book.id] = book.aggregates
                if SHARES in book.traits | book.operator_traits:
                    self._sharing.add(book.id)
                else:
                    self._sharing.discard(book.id)
            root = tree.providers.get(tree.root)
            if root is not None:
                self._hosts.tree_written(tree.root, root.name, tree.cell, root.traits | root.operator_traits)
        return {*changes.changed, *changes.removed, *(tree.root for tree in changes.trees)}

    def _write_used(self, changes: ClaimChanges) -> set[ProviderId]:
        """Returns the providers whose `used` was written."""
        for touched in changes.touched:
            existing = self._inventories.get(touched.provider, {})
            for resource, used in touched.used.items():
                if resource in existing:
                    existing[resource] = structs.replace(existing[resource], used=used)
        return {touched.provider for touched in changes.touched}

    def _write_claims(self, changes: ClaimChanges) -> set[InventoryKey]:
        """Returns the inventories whose usage grew."""
        for row in changes.consumers:
            if row.ended_at is None:
                self._live_attempts[row.id] = row.attempt
            else:
                self._live_attempts.pop(row.id, None)
        for forgotten in changes.forgotten:
            self._live_attempts.pop(forgotten, None)
        sums_before: dict[InventoryKey, int] = {}
        for consumer, amounts in changes.held:
            for sign, some in ((-1, self.held.get(consumer, ())), (1, amounts)):
                for each in some:
                    key = (each.provider, each.resource)
                    sums_before.setdefault(key, self._held_sums.get(key, 0))
                    self._held_sums[key] = self._held_sums.get(key, 0) + sign * each.amount
            if amounts:
                self.held[consumer] = amounts
            else:
                self.held.pop(consumer, None)
        return {key for key, sum_ in sums_before.items() if self._held_sums[key] > sum_}

    def _holders(self, provider: ProviderId) -> list[ConsumerId]:
        return [who for who, held in self.held.items() if any(each.provider == provider for each in held)]

    def _note_free(self, provider: ProviderId) -> None:
        inventories = self._inventories.get(provider, {})
        places = {INSTANCE_SLOTS: self._slots_left(provider)} if self._instances_max else {}
        self._hosts.free_changed(
            provider,
            {
                resource: _capacity(inventory) - self._held_sums.get((provider, resource), 0)
                for resource, inventory in inventories.items()
            }
            | places,
        )

    # Invariants

    def _check_used(self, touched: Iterable[ProviderId]) -> None:
        for provider in touched:
            for resource, inventory in self._inventories[provider].items():
                held = self._held_sums.get((provider, resource), 0)
                if inventory.used != held:
                    self._findings.breaks(
                        "capacity is law",
                        f"{resource} of {self._hosts.name(provider)}: used is {inventory.used}, and {held} is held",
                    )

    def _check_gone(self, gone: set[ProviderId]) -> None:
        for (provider, resource), held in self._held_sums.items() if gone else ():
            if held and provider in gone:
                self._findings.breaks(
                    "what is held stays",
                    f"{held} {resource} is held of {short_id(provider)}, which was deleted",
                )

    def _check_capacity(self, gained: Iterable[InventoryKey]) -> None:
        for provider, resource in gained:
            inventory = self._inventories.get(provider, {}).get(resource)
            capacity = 0 if inventory is None else _capacity(inventory)
            if (held := self._held_sums[provider, resource]) > capacity:
                self._findings.breaks(
                    "capacity is law",
                    f"{resource} of {self._hosts.name(provider)}: {held} is held of {capacity}, and this commit added to it",
                )

    def _check_holders(self, changes: ClaimChanges) -> None:
        for consumer, amounts in changes.held:
            if amounts and consumer not in self._live_attempts:
                self._findings.breaks(
                    "no allocation without a living consumer", f"{consumer} holds {amounts}"
                )
            apart = self._outside_host.get(consumer, ())
            claimed = [each.provider for each in amounts if each.provider not in apart]
            hosts = {self._hosts.name(self._root(provider)) for provider in claimed}
            # An administrator may write allocations on any hosts.
            if len(hosts) > 1 and self._live_attempts.get(consumer):
                self._findings.breaks(
                    "no consumer on two hosts", f"{consumer} holds shares of {sorted(hosts)}"
                )

    def _check_limit(self, changes: ClaimChanges) -> None:
        """The limit is in the claim or swap itself, so that several schedulers that choose at the same time cannot
        exceed it.
        """
        if not self._instances_max:
            return
        joined = [
            self._placed_on[each.consumer] for each in changes.claimed if each.consumer in self._placed_on
        ]
        for host in dict.fromkeys(joined):
            if (left := self._slots_left(host)) < 0:
                self._findings.breaks(
                    "no host has more instances than the limit",
                    f"{self._hosts.name(host)} has {self._instances_max - left} of {self._instances_max}, and one was added",
                )
            elif left == 0:
                self._findings.count("limit", "reached")

    def _check_shapes(self, orders: Sequence[ClaimOrder], changes: ClaimChanges) -> None:
        """A batch may contain one claim several times: as it was first sent, and as it was repeated."""
        asked: dict[ConsumerId, list[ClaimResources | SwapClaim]] = {}
        claimed = {(holder.consumer, holder.attempt) for holder in changes.claimed}
        for order in orders:
            if isinstance(order, ReleaseClaim) or (order.consumer, order.attempt) not in claimed:
                continue
            if self.held.get(order.consumer) == order.share.amounts:
                asked.setdefault(order.consumer, []).append(order)
        for consumer, alike in asked.items():
            self._findings.log("books", "{} claims {}", consumer, self._hosts.name(alike[0].share.host))
            if all(map(self._saw_another, alike)):
                seen = [order.share.shapes for order in alike]
                self._findings.breaks(
                    "qualities are law",
                    f"{short_id(consumer)} was granted a share in the shapes {seen}, which have changed since",
                )

    def _saw_another(self, order: ClaimResources | SwapClaim) -> bool:
        return any(self._has_moved(seen) for seen in order.share.shapes)

    def _has_moved(self, seen: ShapeSeen) -> bool:
        return self._shapes.get(seen.root) != seen.shape

    def _check_freed(
        self, before: dict[ConsumerId, tuple[Amounts, ProviderId]], orders: Sequence[ClaimOrder]
    ) -> None:
        """A share stays held until its host has confirmed that the attempt is gone."""
        for consumer, (amounts, host) in before.items():
            if self.held.get(consumer) == amounts:
                continue
            cleanup = self.cleanup_consumers.get(consumer)
            instance = InstanceId(consumer) if cleanup is None else cleanup.instance
            if any(self._host_of(other) == host for other in self.consumers_of(instance)):
                continue
            self._findings.log("books", "{} released its share of {}", consumer, self._hosts.name(host))
            running = self._real_instances.still_there(instance, host)
            if running:
                self._findings.breaks(
                    "silence is not failure",
                    f"the share of {short_id(instance)} on {self._hosts.name(host)} was released, but the host still has its "
                    f"attempt {running}; released by {[type(order).__name__ for order in orders if order.consumer == consumer]}",
                )


def _capacity(inventory: InventoryState) -> int:
    return int((inventory.total - inventory.reserved) * inventory.allocation_ratio)
