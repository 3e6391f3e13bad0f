"""Checks the providers and hosts that demanding requests get. At the moment of its claim each instance has providers that
serve all parts of its request, on a host where it may be. No request is refused that could have been served all the time.

It goes by the rows that were committed alone: the trees in placement's books, the hosts and aggregates of the registry.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from bus.messages.placement import ClaimResources, ReleaseClaim, SwapClaim
from engine.flavors import InstanceId, RequestId, instance_id_of
from engine.inventories import AggregateId, ProviderId, ResourceAmount, Share
from laboratory.computes.driver import root_of
from placement_worker.core.ledger import ClaimChanges, ClaimOrder, TreeChanges
from scheduler_worker.core.aggregates import KeptAggregate
from tests.narrowing import present
from tests.simulation.books_checker import BooksChecker
from tests.simulation.demands import Demand, ProviderNow, Tree, has_room, ways
from tests.simulation.drawing_demands import FEATURES, WATTS
from tests.simulation.findings import Findings
from tests.simulation.host_history import short_id, states_since
from tests.simulation.plan import SHARES, Boot, Plan
from tests.simulation.write_rules import summed

# A scheduler reads all aggregates this often, so its metadata may be as old as this when it chooses.
METADATA_LATE_S = 6.0
WAYS = "ways"


def _of_guest(demand: Demand, share: Share) -> tuple[tuple[object, str], ...]:
    classes = {each.resource for each in share.amounts}
    cells = sum(part.kind == "cell" for part in demand.parts)
    return (
        (cells == 1, "with a cell"),
        (cells > 1, "with two cells"),
        (cells and "PCPU" in classes, "with dedicated processors"),
        (cells and any("_PAGES_" in each for each in classes), "in huge pages"),
        ("SRIOV_NET_VF" in classes, "with a virtual function"),
        (any(each.startswith("CUSTOM_PCI_") for each in classes), "with a physical function"),
        ("VGPU" in classes, "with a type of a GPU"),
        *(
            (any(part.nearness == near for part in demand.parts), f"with a device: {near}")
            for near in ("required", "legacy", "preferred")
        ),
    )


class _Moment(Struct, frozen=True):
    """A host's tree and aggregates from `at_s` on."""

    at_s: float
    tree: Tree
    aggregates: frozenset[AggregateId]


class DemandsChecker:
    def __init__(self, findings: Findings, plan: Plan, books: BooksChecker) -> None:
        self._findings = findings
        self._books = books
        self._boot_of = {
            instance_id_of(RequestId(boot.id), index): boot
            for boot in plan.boots
            if boot.demand is not None
            for index in range(boot.count)
        }
        self._hosts = {root_of(host.name): host for of_cell in plan.hosts.values() for host in of_cell}
        self._moments: dict[ProviderId, list[_Moment]] = {}
        # All states of the aggregates' metadata, since when.
        self._metadata: list[tuple[float, Mapping[AggregateId, Mapping[str, str]]]] = [(0.0, {})]
        # The amounts that an instance has asked for on one host, and not got.
        self._asked: dict[tuple[InstanceId, ProviderId], list[tuple[ResourceAmount, ...]]] = {}
        # The hosts on which an instance has had a share, and since which attempt.
        self._was_on: dict[InstanceId, dict[ProviderId, int]] = {}

    # Called after each commit

    def aggregates_written(self, written: Sequence[KeptAggregate]) -> None:
        now = {**self._metadata[-1][1]}
        for each in written:
            now[each.id] = {} if each.deleted_us else each.metadata
        self._metadata.append((self._findings.now_s, now))

    def written(self, orders: Sequence[ClaimOrder], written: Sequence[TreeChanges | ClaimChanges]) -> None:
        granted = {
            (holder.consumer, holder.attempt)
            for changes in written
            if isinstance(changes, ClaimChanges)
            for holder in changes.claimed
        }
        touched = [
            each
            for changes in written
            for each in (
                [tree.root for tree in changes.trees]
                if isinstance(changes, TreeChanges)
                else [touched.provider for touched in changes.touched]
            )
        ]
        for root in dict.fromkeys(map(self._books.root_of, touched)):
            if root in self._hosts:
                self._note(root)
        for order in orders:
            if isinstance(order, ReleaseClaim) or order.consumer not in self._boot_of:
                continue
            if (order.consumer, order.attempt) not in granted:
                self._asked.setdefault((order.consumer, order.share.host), []).append(order.share.amounts)
            elif self._books.held.get(order.consumer) == order.share.amounts:
                self._check_granted(order, self._boot_of[order.consumer])

    def knows(self, host: ProviderId) -> bool:
        """Whether this is a host of the plan, and not a bare-metal node or a host that an intruder reported."""
        return host in self._hosts

    def zone_of(self, host: ProviderId) -> str:
        """The zone in which the host is now."""
        return self._zone(host, self._books.aggregates_of(host), self._metadata[-1][1])

    # Refusals

    def could_serve(self, boot: Boot, host: ProviderId, since_s: float) -> bool:
        """Whether this host could have served the boot during the whole time since `since_s`. Pools that share with
        the host are not considered. No host counts as able to serve a demand that a plugin judges, since its metrics
        may be read late.
        """
        demand = present(boot.demand)
        if demand.watts or host not in self._moments:
            return False
        moments = states_since(self._moments[host], since_s, lambda moment: moment.at_s)
        return (
            all(has_room(demand, moment.tree) for moment in moments)
            and self._tells(demand, host)
            and all(
                self._why_not(demand, host, moment.aggregates, metadata) == ""
                for moment in moments
                for metadata in self._metadata_since(since_s - METADATA_LATE_S)
            )
        )

    # Invariants

    def _check_granted(self, order: ClaimResources | SwapClaim, boot: Boot) -> None:
        demand = present(boot.demand)
        share = order.share
        tree = self._tree_for(share)
        taken = summed(share.amounts)
        if not any(way == taken for way in ways(demand, tree)):
            said = ", ".join(
                f"{each.amount} {each.resource} of {short_id(each.provider)}" for each in share.amounts
            )
            self._findings.breaks(
                "an instance gets providers that serve its request",
                f"{boot.name} ({short_id(order.consumer)}) got {said}; it asked for {demand!r}, and the tree is {dict(tree)!r}",
            )
        aggregates = self._books.aggregates_of(share.host)
        # A swap's host was chosen when the instance was placed; only its aggregates are as they were then.
        reasons = [
            self._why_not(demand, share.host, aggregates, metadata)
            for metadata in self._metadata_since(boot.at_s - METADATA_LATE_S)
        ]
        if all(reasons) or not self._tells(demand, share.host):
            self._findings.breaks(
                "an instance is where its request allows",
                f"{boot.name} ({short_id(order.consumer)}) is on {self._hosts[share.host].name}: {reasons}",
            )
        # A batch may contain one order several times.
        if self._was_on.setdefault(order.consumer, {}).setdefault(share.host, order.attempt) < order.attempt:
            self._findings.breaks(
                "a host that has failed is not tried again",
                f"{boot.name} ({short_id(order.consumer)}) is on {self._hosts[share.host].name} again",
            )
        self._count(order, demand, tree)

    def _count(self, order: ClaimResources | SwapClaim, demand: Demand, tree: Tree) -> None:
        see, share = self._findings.count, order.share
        see(WAYS, "from groups" if len(demand.parts) > 1 else "from a plain request")
        before = self._asked.get((order.consumer, share.host), ())
        if any(set(amounts) != set(share.amounts) for amounts in before):
            see(WAYS, "another way of one host")
        for is_seen, what in (
            (demand.isolates, "isolated"),
            (demand.same_subtree, "in one subtree"),
            (demand.zone, "in a zone"),
            (demand.member_of, "in an aggregate"),
            (demand.forbidden_aggregates, "outside an aggregate"),
            (demand.capability, "with a capability"),
            (demand.watts, "by another package"),
            (any(part.kind == "port" for part in demand.parts), "with a port"),
            (any(part.kind == "volume" for part in demand.parts), "with a volume"),
            *_of_guest(demand, share),
            (len(tree) == 1, "on a flat host"),
            (isinstance(order, SwapClaim), "by a swap"),
        ):
            if is_seen:
                see(WAYS, what)

    def _tells(self, demand: Demand, host: ProviderId) -> bool:
        """Whether the host reports the capability and the metric of the demand. Neither changes during a run."""
        told = self._hosts[host]
        if demand.capability is not None and demand.capability[1] not in told.capabilities[FEATURES].split():
            return False
        return told.metrics[WATTS] >= demand.watts

    def _why_not(
        self,
        demand: Demand,
        host: ProviderId,
        aggregates: frozenset[AggregateId],
        metadata: Mapping[AggregateId, Mapping[str, str]],
    ) -> str:
        """Why an instance with this demand may not be on this host, by the host's zone and aggregates; empty if it may."""
        zone = self._zone(host, aggregates, metadata)
        if demand.zone and zone != demand.zone:
            return f"it is in {zone}, and {demand.zone} was asked for"
        if any("filter_tenant_id" in metadata.get(each, ()) for each in aggregates):
            return "it is kept for another project"
        if demand.member_of and aggregates.isdisjoint(demand.member_of):
            return "it is in none of the aggregates"
        if not aggregates.isdisjoint(demand.forbidden_aggregates):
            return "it is in a forbidden aggregate"
        return ""

    def _zone(
        self,
        host: ProviderId,
        aggregates: frozenset[AggregateId],
        metadata: Mapping[AggregateId, Mapping[str, str]],
    ) -> str:
        own = [metadata[each] for each in aggregates if each in metadata]
        zones = [each["availability_zone"] for each in own if "availability_zone" in each]
        return zones[0] if zones else self._hosts[host].availability_zone

    # The books at this moment

    def _note(self, root: ProviderId) -> None:
        moment = _Moment(self._findings.now_s, self._books.tree_of(root), self._books.aggregates_of(root))
        self._moments.setdefault(root, []).append(moment)

    def _tree_for(self, share: Share) -> Tree:
        """The host's tree, and the providers that share with it and are claimed."""
        tree: dict[ProviderId, ProviderNow] = dict(self._books.tree_of(share.host))
        for each in share.amounts:
            if each.provider not in tree and self._books.shares_with(each.provider, share.host):
                others = self._books.tree_of(self._books.root_of(each.provider))
                if SHARES in others[each.provider].traits:
                    tree[each.provider] = others[each.provider]
        return tree

    def _metadata_since(self, since_s: float) -> list[Mapping[AggregateId, Mapping[str, str]]]:
        return [metadata for _, metadata in states_since(self._metadata, since_s, lambda state: state[0])]
