"""A second copy of placement's books, built from the rows that each transaction wrote, by other code than placement's.

After each commit it checks: no inventory that gained usage is over its capacity; `used` equals what consumers hold; each holder is a
living consumer, on one host; no host exceeds the limit of instances that claims carry; and each granted claim named the shape
that the tree has.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct, structs

from bus.messages.placement import ClaimResources, SwapClaim
from engine.flavors import InstanceId
from engine.inventories import (
    AggregateId,
    ConsumerId,
    InventoryState,
    ProviderId,
    ResourceAmount,
    ServerGroup,
    ShapeSeen,
)
from placement_worker.core.ledger import ClaimChanges, ClaimOrder, TreeChanges
from tests.simulation.boots_checkers import WholeChecker
from tests.simulation.demands import ProviderNow
from tests.simulation.findings import Findings
from tests.simulation.host_history import INSTANCE_SLOTS, HostHistories, short_id
from tests.simulation.moves_checker import MovesChecker, granted_of, of_classes
from tests.simulation.plan import PROJECT, SHARES
from tests.simulation.real_instances import RealInstances
from tests.simulation.shares_checkers import GroupsChecker, QuotasChecker
from tests.simulation.write_rules import summed

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
        instances_max: int,
        groups: Iterable[ServerGroup],
        *,
        whole: WholeChecker,
    ) -> None:
        self._whole = whole
        self.groups = GroupsChecker(findings, hosts, groups)
        self.quotas = QuotasChecker(findings)
        self._moves = MovesChecker(findings)
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
        self._parents: dict[ProviderId, ProviderId | None] = {}
        self._traits: dict[ProviderId, frozenset[str]] = {}
        self._aggregates: dict[ProviderId, frozenset[AggregateId]] = {}
        # The cells of trees, by their roots.
        self._cells: dict[ProviderId, str] = {}
        # Providers that share their inventory with other trees by a common aggregate.
        self._sharing: set[ProviderId] = set()
        # The hosts that could take from each of these, when it was last looked at.
        self._members: dict[ProviderId, list[ProviderId]] = {}
        # Per consumer: providers that it may hold although they are in another tree than its host. They share their
        # inventory, or an administrator moved them there together with what is held of them.
        self._outside_host: dict[ConsumerId, set[ProviderId]] = {}
        # How many transactions have changed what consumers hold.
        self.commits = 0

    # Called after each commit

    def written(self, orders: Sequence[ClaimOrder], written: Sequence[TreeChanges | ClaimChanges]) -> None:
        """Take in all rows that one transaction wrote, in order; check only when all of them are in."""
        self.commits += any(isinstance(each, ClaimChanges) and bool(each.held) for each in written)
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
        granted = {(holder.consumer, holder.attempt) for each in claims for holder in each.claimed}
        self._note_placed(orders, granted)
        held_before = {who: amounts for who, (amounts, _) in before.items()}
        self._moves.committed(orders, granted, held_before, self.held)
        self.quotas.committed(orders, granted, held_before, self.held)
        existing = [provider for provider in touched if provider in self._inventories]
        self._check_used(existing)
        self._check_gone(touched - self._inventories.keys())
        self._check_capacity(gained)
        for each in claims:
            self._check_granted(orders, each)
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

    def is_torn(self, consumer: ConsumerId) -> bool:
        """Whether it holds, in another tree than its host, a provider that an administrator has moved there."""
        host = self._host_of(consumer) if consumer in self.held else None
        return host is not None and any(
            self.root_of(each.provider) != host and not self.shares_with(each.provider, host)
            for each in self.held[consumer]
        )

    def root_of(self, provider: ProviderId) -> ProviderId:
        """The root of this provider's tree: the host."""
        return self._roots.get(provider, provider)

    def aggregates_of(self, provider: ProviderId) -> frozenset[AggregateId]:
        return self._aggregates.get(provider, frozenset())

    def shares_with(self, provider: ProviderId, host: ProviderId) -> bool:
        """Does this provider share its inventory with the tree of the host?"""
        return self._is_shared(provider, {host, self.root_of(provider)})

    def tree_of(self, root: ProviderId) -> dict[ProviderId, ProviderNow]:
        """All providers of a tree, as they are now."""
        return {
            provider: ProviderNow(
                self._parents[provider],
                self._traits[provider],
                self._free_at(provider),
            )
            for provider, of in self._roots.items()
            if of == root
        }

    def free(self, provider: ProviderId, resource: str) -> int | None:
        return self._free_at(provider).get(resource)

    def offered(self, provider: ProviderId) -> dict[str, int] | None:
        """The capacity per resource class, whether in use or not; None if there is no such provider."""
        inventories = self._inventories.get(provider)
        return None if inventories is None else {name: _capacity(each) for name, each in inventories.items()}

    # How the copy is updated

    def _host_of(self, consumer: ConsumerId) -> ProviderId:
        """The host on which a consumer counts. It is the one where it was placed, while the consumer holds anything
        there; otherwise the root of a provider that it holds. A provider outside its host counts only if it holds no
        other.
        """
        apart, held = self._outside_host.get(consumer, ()), self.held[consumer]
        placed_on = self._placed_on.get(consumer)
        if placed_on is not None and any(self.root_of(each.provider) == placed_on for each in held):
            return placed_on
        own = next((each for each in held if each.provider not in apart), held[0])
        return self.root_of(own.provider)

    def _note_cleanups(self, orders: Sequence[ClaimOrder]) -> None:
        for order in orders:
            # The id of a consumer that holds something is taken: it is not the heir's.
            if isinstance(order, SwapClaim) and order.heir is not None and order.heir.id not in self.held:
                self.cleanup_consumers[order.heir.id] = CleanupOf(order.consumer, order.held_attempt)
                self._outside_host.setdefault(order.heir.id, set()).update(
                    self._outside_host.get(order.consumer, ())
                )

    def _note_written_by_name(self, orders: Sequence[ClaimOrder], claims: Iterable[ClaimChanges]) -> None:
        """Note which providers a consumer holds outside its host. A reshape may move allocations into any tree. After
        a new claim there are none; a cleanup consumer takes over those of the instance, and an instance that returns
        from a move those of its migration.
        """
        cleanup_consumers = {order.heir.id for order in orders if isinstance(order, SwapClaim) and order.heir}
        ordered = {order.consumer for order in orders} | cleanup_consumers
        returns = {
            order.consumer: order.returns
            for order in orders
            if isinstance(order, SwapClaim) and order.returns
        }
        for changes in claims:
            for holder in changes.claimed:
                if holder.consumer in cleanup_consumers:
                    continue
                before_move = self._outside_host.get(returns.get(holder.consumer, holder.consumer), set())
                own = self._outside_host.pop(holder.consumer, set())
                if holder.consumer in returns:
                    self._outside_host[holder.consumer] = own | before_move
            for consumer, amounts in changes.held:
                if not amounts:
                    self._outside_host.pop(consumer, None)
                elif consumer not in ordered:
                    before = {each.provider for each in self.held.get(consumer, ())}
                    moved = {each.provider for each in amounts} - before
                    self._outside_host.setdefault(consumer, set()).update(moved)

    def _note_placed(self, orders: Sequence[ClaimOrder], granted: set[tuple[ConsumerId, int]]) -> None:
        """Note the host on which each granted consumer counts. A heir that cleans up counts on the host that the
        instance left, any other only if the instance is on another host now. A consumer that holds nothing counts on
        no host.
        """
        for order in granted_of(orders, granted):
            # A claim repeated in one batch may name another host each time: the amounts held tell which of them was
            # granted.
            if not self._is_granted(order):
                continue
            left = self._placed_on.get(order.consumer)
            if isinstance(order, SwapClaim) and order.heir is not None and left is not None:
                takes_all = order.heir.type == "CLEANUP" and order.returns is None
                if takes_all or left != order.share.host:
                    # A batch may contain the order several times.
                    self._placed_on.setdefault(order.heir.id, left)
            self._placed_on[order.consumer] = order.share.host
        for consumer in [each for each in self._placed_on if each not in self.held]:
            del self._placed_on[consumer]
        self.groups.committed(orders, granted, self._placed_on)
        # A request of another project may be about the same id. Its claim is given back once its row is read.
        foreign = {
            (order.consumer, order.attempt)
            for order in orders
            if isinstance(order, ClaimResources) and order.project != PROJECT
        }
        self._whole.claimed(granted - foreign)

    def _slots_left(self, host: ProviderId) -> int:
        return self._instances_max - sum(each == host for each in self._placed_on.values())

    def _note_shared(self, claims: Iterable[ClaimChanges]) -> None:
        """Remember claimed providers that share their inventory with the claimed host's tree."""
        for changes in claims:
            for holder in changes.claimed:
                held = self.held.get(holder.consumer, ())
                roots = {self.root_of(each.provider) for each in held}
                shared = {each.provider for each in held if self._is_shared(each.provider, roots)}
                if shared:
                    self._outside_host.setdefault(holder.consumer, set()).update(shared)

    def _is_shared(self, provider: ProviderId, roots: set[ProviderId]) -> bool:
        if provider not in self._sharing:
            return False
        others = roots - {self.root_of(provider)}
        return any(
            self._aggregates[member] & self._aggregates[provider]
            for member, root in self._roots.items()
            if root in others
        )

    def _write_trees(self, changes: TreeChanges) -> set[ProviderId]:
        """Copy the trees that a transaction wrote. Returns the providers that were written."""
        for removed in changes.removed:
            self._inventories.pop(removed, None)
            self._roots.pop(removed, None)
            self._parents.pop(removed, None)
            self._traits.pop(removed, None)
            self._aggregates.pop(removed, None)
            self._sharing.discard(removed)
        for tree in changes.trees:
            self._shapes[tree.root] = tree.shape
            self._cells[tree.root] = tree.cell
            for book in tree.providers.values():
                if self._roots.get(book.id, tree.root) != tree.root:
                    for consumer in self._holders(book.id):
                        self._outside_host.setdefault(consumer, set()).add(book.id)
                self._inventories[book.id] = dict(book.inventories)
                self._roots[book.id] = tree.root
                self._parents[book.id] = book.parent
                self._traits[book.id] = book.traits | book.operator_traits
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
        """Copy the usage that a transaction wrote. Returns the providers whose `used` was written."""
        for touched in changes.touched:
            existing = self._inventories.get(touched.provider, {})
            for resource, used in touched.used.items():
                if resource in existing:
                    existing[resource] = structs.replace(existing[resource], used=used)
        return {touched.provider for touched in changes.touched}

    def _write_claims(self, changes: ClaimChanges) -> set[InventoryKey]:
        """Copy the consumers and holdings that a transaction wrote. Returns the inventories of which more is held now."""
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
        before = self._members.get(provider, [])
        if provider in self._sharing or before:
            now = self._members[provider] = self._members_of(provider)
            for member in dict.fromkeys((*before, *now)):
                self._note_free(member)
        places = {INSTANCE_SLOTS: self._slots_left(provider)} if self._instances_max else {}
        self._hosts.free_changed(provider, self._free_of_pools(provider) | self._free_at(provider) | places)

    def _free_at(self, provider: ProviderId) -> dict[str, int]:
        return {
            resource: _capacity(inventory) - self._held_sums.get((provider, resource), 0)
            for resource, inventory in self._inventories.get(provider, {}).items()
        }

    def _free_of_pools(self, host: ProviderId) -> dict[str, int]:
        """For each resource class, the most that one sharing provider has free for this host."""
        most: dict[str, int] = {}
        for pool in self._sharing if self._aggregates.get(host) else ():
            if pool != host and self._may_use(host, pool):
                for resource, free in self._free_at(pool).items():
                    most[resource] = max(free, most.get(resource, 0))
        return most

    def _members_of(self, pool: ProviderId) -> list[ProviderId]:
        """The hosts that may take from this sharing provider."""
        if pool not in self._sharing:
            return []
        roots = [provider for provider, root in self._roots.items() if provider == root]
        return [root for root in roots if root not in self._sharing and self._may_use(root, pool)]

    def _may_use(self, host: ProviderId, pool: ProviderId) -> bool:
        shared = self._aggregates.get(host, frozenset()) & self._aggregates[pool]
        return bool(shared) and self._cells.get(pool, "") in ("", self._cells.get(host))

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

    def _check_granted(self, orders: Sequence[ClaimOrder], changes: ClaimChanges) -> None:
        """A consumer holds the share that it was granted, all of it and nothing beside it."""
        granted = {(holder.consumer, holder.attempt) for holder in changes.claimed}
        asked: dict[ConsumerId, list[ClaimResources | SwapClaim]] = {}
        for order in granted_of(orders, granted):
            asked.setdefault(order.consumer, []).append(order)
        for consumer, alike in asked.items():
            held = self.held.get(consumer)
            if held is None:
                continue
            if not any(self._is_granted(order) for order in alike):
                self._findings.breaks(
                    "a claim grants its share",
                    f"{short_id(consumer)} holds {held}, and was granted {alike[0].share.amounts}",
                )
            if any(each.provider in self._sharing for each in held):
                self._findings.count("pool", "swapped" if isinstance(alike[0], SwapClaim) else "claimed")

    def _is_granted(self, order: ClaimResources | SwapClaim) -> bool:
        """Does the consumer hold this share? On the way back of a move, a reshape may have moved parts of it meanwhile."""
        held = self.held.get(order.consumer, ())
        if isinstance(order, SwapClaim) and order.returns is not None:
            # A copy of the way back may come in one batch with the swap to another host, which then was granted.
            is_there = any(self.root_of(each.provider) == order.share.host for each in held)
            return is_there and of_classes(held) == of_classes(order.share.amounts)
        return summed(held) == summed(order.share.amounts)

    def _check_holders(self, changes: ClaimChanges) -> None:
        for consumer, amounts in changes.held:
            if amounts and consumer not in self._live_attempts:
                self._findings.breaks(
                    "no allocation without a living consumer", f"{consumer} holds {amounts}"
                )
            apart = self._outside_host.get(consumer, ())
            claimed = [each.provider for each in amounts if each.provider not in apart]
            hosts = {self._hosts.name(self.root_of(provider)) for provider in claimed}
            # An administrator may write allocations on any hosts.
            if len(hosts) > 1 and self._live_attempts.get(consumer):
                self._findings.breaks(
                    "no consumer on two hosts", f"{consumer} holds shares of {sorted(hosts)}"
                )

    def _check_limit(self, changes: ClaimChanges) -> None:
        """Check that no host that gained a consumer has more than the limit. Placement judges by the limit in the
        claim or swap itself, so that several schedulers that choose at the same time cannot exceed it.
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
        """Check that each granted claim named the shape that the tree has. A batch may contain one claim several
        times, as it was first sent and as it was repeated: one of them must have named it.
        """
        asked: dict[ConsumerId, list[ClaimResources | SwapClaim]] = {}
        claimed = {(holder.consumer, holder.attempt) for holder in changes.claimed}
        # An instance gets back its share from before the move, whatever its host is like now. The way there has the same attempt.
        claimed -= {
            (each.consumer, each.attempt)
            for each in orders
            if isinstance(each, SwapClaim) and each.returns is not None
        }
        for order in granted_of(orders, claimed):
            if self._is_granted(order):
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
            if running and not self._hosts.was_dead(host):
                self._findings.breaks(
                    "silence is not failure",
                    f"the share of {short_id(instance)} on {self._hosts.name(host)} was released, but the host still has its "
                    f"attempt {running}; released by {[type(order).__name__ for order in orders if order.consumer == consumer]}",
                )


def _capacity(inventory: InventoryState) -> int:
    return int((inventory.total - inventory.reserved) * inventory.allocation_ratio)
