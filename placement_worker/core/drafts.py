"""The ledger while one batch is decided: a copy of consumers and usage that changes in memory; and whether a share fits in it.

To copy frozen values for each order would cost more than all decisions. So the orders of the batch change this draft in
place, one after another, and `LedgerDraft.changes` makes frozen values of it once. Providers and consumers are found by
the integers of their ids, as in the ledger.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Literal

from msgspec import structs

from bus.messages.placement import ClaimResources, SwapClaim
from engine.inventories import (
    SHARE_CELL,
    ConsumerId,
    Holder,
    ProviderId,
    ResourceAmount,
    Share,
)
from engine.refusals import DoesNotFit, GroupRefused, HostFull, NotAllowed, ShapeMoved, Shortfall
from placement_worker.core.ledger import ClaimChanges, Consumer, Ledger, ProviderRow, Touched
from placement_worker.core.limits import GroupsDraft, QuotasDraft

# Which limit was broken, and its value.
Rule = tuple[Literal["capacity", "min_unit", "max_unit", "step_size"], int]
CAPACITY: Rule = ("capacity", 0)


class UsageDraft:
    """One provider while a batch is decided: what is used of it, and how many consumers have it as their host.

    `touched`: the provider has changed and must be written. `generation` grows when a consumer gets allocations of it.
    """

    __slots__ = ("consumers", "generation", "row", "touched", "used")

    def __init__(self, row: ProviderRow) -> None:
        self.row = row
        self.generation = row.generation
        self.used = {**row.used}
        self.consumers = row.consumers
        self.touched = False


def shortfall_of(
    usage: UsageDraft, resource: str, asked: int, held: int, *, takes_reserved: bool = False
) -> Shortfall | None:
    """Why a consumer that gives back `held` of the class may not have this amount; None if it may. With `takes_reserved`, it may have
    what is reserved.

    Limits that can never be met are reported before lack of free capacity. A consumer that takes no more than it gives
    back is granted, even if more is used than there is: a shrunken inventory only refuses to give *more*. A class
    without an inventory is a shortfall, not an error.
    """
    limits = usage.row.limits.get(resource)
    if limits is None:
        return Shortfall(provider=usage.row.id, resource=resource, asked=asked, free=0, rule="no_inventory")
    free = limits.capacity - usage.used[resource] + held
    if takes_reserved:
        free += limits.reserved
    if asked < limits.min_unit:
        return _broken(usage, resource, asked, free, ("min_unit", limits.min_unit))
    if asked > limits.max_unit:
        return _broken(usage, resource, asked, free, ("max_unit", limits.max_unit))
    if asked % limits.step_size:
        return _broken(usage, resource, asked, free, ("step_size", limits.step_size))
    if asked > free and asked > held:
        return _broken(usage, resource, asked, free, CAPACITY)
    return None


def shortfalls_of(usage: UsageDraft, resource: str, each: Sequence[int], held: int) -> Iterator[Shortfall]:
    """Why several consumers that together give back `held` of a class may not have these amounts (`each`) of it at once."""
    short = [broken for asked in each if (broken := shortfall_of(usage, resource, asked, held))]
    if short:
        yield from short
        return
    asked = sum(each)
    free = usage.row.limits[resource].capacity - usage.used[resource] + held
    if asked > free and asked > held:
        yield _broken(usage, resource, asked, free, CAPACITY)


def _broken(usage: UsageDraft, resource: str, asked: int, free: int, broken: Rule) -> Shortfall:
    rule, bound = broken
    return Shortfall(provider=usage.row.id, resource=resource, asked=asked, free=free, rule=rule, bound=bound)


# How much of which classes of which providers, in the order in which they are named.
Amounts = dict[UsageDraft, dict[str, int]]


def amounts_in(amounts: Amounts) -> tuple[ResourceAmount, ...]:
    return tuple(
        ResourceAmount(provider=usage.row.id, resource=resource, amount=amount)
        for usage, of_provider in amounts.items()
        for resource, amount in of_provider.items()
    )


def summed(*parts: Amounts) -> Amounts:
    total: Amounts = {}
    for part in parts:
        for usage, of_provider in part.items():
            sums = total.setdefault(usage, {})
            for resource, amount in of_provider.items():
                sums[resource] = sums.get(resource, 0) + amount
    return total


def left_over(amounts: Amounts, taken: Amounts) -> Amounts:
    """Subtract `taken` from the amounts. Nothing becomes negative; amounts that become 0 are left out."""
    left: Amounts = {}
    for usage, of_provider in amounts.items():
        of_taken = taken.get(usage, {})
        rest = {
            resource: amount - of_taken.get(resource, 0)
            for resource, amount in of_provider.items()
            if amount > of_taken.get(resource, 0)
        }
        if rest:
            left[usage] = rest
    return left


class ConsumerDraft:
    """One consumer: its current row, and what it holds. As long as it holds something, its host counts it, and it is a
    member of its server group.
    """

    __slots__ = ("changed", "held", "host_number", "is_gone", "loaded", "row")

    def __init__(self, row: Consumer, held: tuple[ResourceAmount, ...]) -> None:
        # The integer of the id of the host that counts this consumer; -1, which no provider has, if none does.
        self.host_number = row.host.int if held and row.host is not None else -1
        self.row = row
        self.held = self.loaded = held
        self.changed = False
        self.is_gone = False

    @property
    def is_new(self) -> bool:
        """Is the consumer unknown so far? Then it holds nothing, and no order about it was seen."""
        return not self.row.attempt and not self.held

    @property
    def has_ended(self) -> bool:
        return self.row.ended_at is not None

    @property
    def is_deletable(self) -> bool:
        """Is the consumer's row to be deleted? It was inserted for this batch and not used, or nothing needs it any more."""
        return self.is_gone or not (self.changed or self.row.attempt or self.row.generation)


class LedgerDraft:
    """A copy of the ledger that the orders of one batch change in memory. `changes` returns what to write."""

    def __init__(self, ledger: Ledger, room: Mapping[str, int] | None = None) -> None:
        self._ledger = ledger
        self._usages = {number: UsageDraft(row) for number, row in ledger.providers.items()}
        self._consumers = {
            number: ConsumerDraft(row, ledger.held.get(number, ()))
            for number, row in ledger.consumers.items()
        }
        # Made when an order first concerns a server group; most do not.
        self._groups: GroupsDraft | None = None
        # None in most batches: no project of theirs has a limit.
        self.quotas = QuotasDraft(ledger.quotas) if ledger.quotas else None
        # How many tombstones each cell may still leave; without a bound for cells that are not in it.
        self._room = dict(room or {})
        self._claimed: list[Holder] = []
        self._ended: list[Holder] = []

    @property
    def groups(self) -> GroupsDraft:
        if self._groups is None:
            self._groups = GroupsDraft(self._ledger)
        return self._groups

    def usage(self, provider: ProviderId) -> UsageDraft | None:
        return self._usages.get(provider.int)

    def existing_usage(self, provider: ProviderId) -> UsageDraft:
        """The draft of a provider that must be in the ledger, since a consumer holds something of it."""
        usage = self.usage(provider)
        if usage is None:
            raise AssertionError(
                f"the ledger lacks provider {provider}, although a consumer holds something of it"
            )
        return usage

    def takes_room(self, cell: str) -> bool:
        """Count one more tombstone of this cell, unless it has as many as it may."""
        room = self._room.get(cell)
        if room is None:
            return True
        self._room[cell] = max(0, room - 1)
        return room > 0

    def consumer(self, consumer: ConsumerId) -> ConsumerDraft:
        return self._consumers[consumer.int]

    def amounts_of(self, held: Iterable[ResourceAmount]) -> Amounts:
        amounts: Amounts = {}
        for amount in held:
            of_provider = amounts.setdefault(self.existing_usage(amount.provider), {})
            of_provider[amount.resource] = of_provider.get(amount.resource, 0) + amount.amount
        return amounts

    def take(self, amounts: Amounts) -> None:
        for usage, of_provider in amounts.items():
            used = usage.used
            for resource, amount in of_provider.items():
                used[resource] += amount

    def free(self, amounts: Amounts) -> None:
        for usage, of_provider in amounts.items():
            used = usage.used
            for resource, amount in of_provider.items():
                # Amounts held without an inventory are for the audit to report.
                if resource in used:
                    used[resource] -= amount
            usage.touched = True

    def gain(self, gaining: Iterable[UsageDraft]) -> None:
        """Raise the generation of each of these providers by one: consumers get allocations of them by one claim or write."""
        for usage in dict.fromkeys(gaining):
            usage.generation += 1
            usage.touched = True

    def write(self, consumer: ConsumerDraft, row: Consumer, held: tuple[ResourceAmount, ...]) -> None:
        """Let the consumer have this row and hold these amounts from now on."""
        host = row.host.int if held and row.host is not None else -1
        if host != consumer.host_number:
            self._count(consumer.host_number, -1)
            self._count(host, 1)
            consumer.host_number = host
        if row.group is not None or consumer.row.group is not None:
            self.groups.changed(consumer.row, row, is_alive=bool(held))
        if self.quotas is not None:
            self.quotas.changed(consumer.row, consumer.held, row, held)
        consumer.row = row
        consumer.held = held
        consumer.changed = True
        consumer.is_gone = False

    def _count(self, host: int, one: int) -> None:
        # A host whose provider is gone has no count.
        if (usage := self._usages.get(host)) is not None:
            usage.consumers += one
            usage.touched = True

    def claimed(self, consumer: ConsumerId, attempt: int) -> None:
        self._claimed.append(Holder(consumer=consumer, attempt=attempt))

    def ended(self, consumer: ConsumerId, attempt: int) -> None:
        self._ended.append(Holder(consumer=consumer, attempt=attempt))

    def end(self, consumer: ConsumerDraft, now: datetime) -> None:
        """Note that the consumer holds nothing any more, so its attempt has ended. The caller also frees the amounts."""
        row = consumer.row
        if not row.attempt:
            # Without an attempt no message refers to the consumer, so its row is deleted.
            self.write(consumer, Consumer(id=row.id), ())
            consumer.is_gone = True
            return
        self.ended(row.id, row.attempt)
        self.write(consumer, ended_row(row, row.attempt, now), ())

    def changes(self) -> ClaimChanges:
        changed = [consumer for consumer in self._consumers.values() if consumer.changed]
        groups = self._groups
        return ClaimChanges(
            consumers=tuple([consumer.row for consumer in changed if not consumer.is_gone]),
            forgotten=tuple(
                [consumer.row.id for consumer in self._consumers.values() if consumer.is_deletable]
            ),
            held=tuple(
                [
                    (consumer.row.id, consumer.held)
                    for consumer in changed
                    if consumer.held is not consumer.loaded
                ]
            ),
            touched=tuple(
                [
                    Touched(usage.row.id, usage.generation, usage.used, usage.consumers)
                    for usage in self._usages.values()
                    if usage.touched
                ]
            ),
            claimed=tuple(self._claimed),
            ended=tuple(self._ended),
            groups=tuple(groups.written.values()) if groups else (),
            quotas=self.quotas.changes() if self.quotas else (),
            joined=tuple(groups.joined) if groups else (),
            left=tuple(groups.left) if groups else (),
        )


def ended_row(row: Consumer, attempt: int, now: datetime) -> Consumer:
    """The row of a consumer whose attempt has ended: it has no host, and is in no group."""
    return structs.replace(row, attempt=attempt, ended_at=now, host=None, group=None, kept=())


# May a consumer have this share?
#
# The cells are judged first: an order for one cell learns nothing about a provider of another cell. Then the shapes: if a
# tree has changed since the sender read it, the amounts may be wrong, and are not judged. Then all amounts are judged.


# `ShapeMoved` names only roots here: the handler adds the trees.
ShareRefused = DoesNotFit | ShapeMoved | NotAllowed


def judge_place(
    draft: LedgerDraft,
    order: ClaimResources | SwapClaim,
    held: Amounts,
    leaving: Sequence[Consumer] = (),
    *,
    joins: str | None,
    by_cell: bool,
) -> Amounts | ShareRefused | GroupRefused:
    """Judge the share of a claim or swap (`judge_share`), then the policy of its server group.

    The consumers in `leaving` give up their hosts, and `held` is the sum of the amounts that they give up. Members of
    an affinity group on the hosts that the order names in `leaves` do not count.

    `joins` is the project of a consumer that would join the server group, None if it is a member already. `by_cell`: a cell's
    sender gives the order. If all agree, the group's row says so.
    """
    host = order.share.host
    # The usual claim leaves no place, and asks nothing.
    has_place = bool(leaving) and any(lives_on(one, host) for one in leaving)
    takes_reserved = isinstance(order, ClaimResources) and order.takes_reserved and not by_cell
    wanted = judge_share(
        draft, order.cell, order.share, held, has_place=has_place, takes_reserved=takes_reserved
    )
    group = order.group
    if group is None or not isinstance(wanted, dict):
        return wanted
    if joins is not None and (foreign := draft.groups.judge_joining(group, joins, by_cell=by_cell)):
        return foreign
    leaves = order.leaves if isinstance(order, SwapClaim) else ()
    going = [one.id for one in leaving]
    against = draft.groups.judge(group, host, going, leaves) or draft.groups.judge_rules(
        group, host, (order.consumer, *going), leaves
    )
    if against is not None:
        return against
    if joins is not None:
        draft.groups.joined_by(group, joins, by_cell=by_cell)
    return wanted


def lives_on(consumer: Consumer, host: ProviderId) -> bool:
    return consumer.host is not None and consumer.host.int == host.int


def judge_share(
    draft: LedgerDraft,
    cell: str,
    share: Share,
    held: Amounts,
    *,
    has_place: bool = False,
    takes_reserved: bool = False,
) -> Amounts | ShareRefused:
    """The amounts that the share takes from each provider, if the consumer may have all of it; otherwise the refusal.

    `held` are the amounts that consumers give back in the same step. `has_place`: the share's host already counts a
    consumer that gives up its place for this one, so a limit on the number of consumers does not matter.
    """
    host = draft.usage(share.host)
    if host and host.row.cell not in ("", cell):
        return _foreign(host, cell)
    gone: list[ProviderId] = [] if host else [share.host]
    wanted = _wanted(draft, cell, share, gone)
    if not isinstance(wanted, dict):
        return wanted
    moved = _moved(draft, cell, share, gone)
    if not isinstance(moved, list):
        return moved
    if share.shapes:
        moved += _unseen(share, wanted)
    if moved or gone:
        return ShapeMoved(roots=tuple(dict.fromkeys(moved)), gone=tuple(dict.fromkeys(gone)))
    if host and (misplaced := _misplaced(host, wanted)):
        return misplaced
    short = _shortfalls(wanted, held, takes_reserved=takes_reserved)
    full = _full(host, share, has_place=has_place) if host and share.instances_max else None
    return DoesNotFit(shortfalls=_as_asked(short, share), full=full) if short or full else wanted


def merged_amounts(share: Share, wanted: Amounts) -> tuple[ResourceAmount, ...]:
    """A share's amounts as they are stored: if it names a class of a provider several times, their sum is one amount."""
    if sum(map(len, wanted.values())) == len(share.amounts):
        return share.amounts
    return amounts_in(wanted)


def _wanted(draft: LedgerDraft, cell: str, share: Share, gone: list[ProviderId]) -> Amounts | NotAllowed:
    wanted: Amounts = {}
    of_provider: dict[str, int] = {}
    last = -1
    for amount in share.amounts:
        # Amounts of one provider usually come one after another.
        if amount.provider.int != last:
            last = amount.provider.int
            usage = draft.usage(amount.provider)
            if usage is None:
                gone.append(amount.provider)
                of_provider = {}
                continue
            if usage.row.cell not in ("", cell):
                return _foreign(usage, cell)
            of_provider = wanted.setdefault(usage, {})
        resource = amount.resource
        of_provider[resource] = of_provider.get(resource, 0) + amount.amount
    return wanted


def _moved(
    draft: LedgerDraft, cell: str, share: Share, gone: list[ProviderId]
) -> list[ProviderId] | NotAllowed:
    moved: list[ProviderId] = []
    for seen in share.shapes:
        usage = draft.usage(seen.root)
        if usage is None:
            gone.append(seen.root)
        elif usage.row.cell not in ("", cell):
            return _foreign(usage, cell)
        elif usage.row.shape != seen.shape:
            # If a root became a part of another tree, the caller must see that tree.
            moved.append(usage.row.root)
    return moved


def _unseen(share: Share, wanted: Amounts) -> list[ProviderId]:
    """Roots of trees that the share takes from although its `shapes` do not name them: a provider has changed its tree since
    the sender read it.
    """
    if len(share.shapes) == 1:
        # The usual case; to build a set of one costs more than to compare.
        seen_root = share.shapes[0].root.int
        return [usage.row.root for usage in wanted if usage.row.root.int != seen_root]
    seen = {each.root.int for each in share.shapes}
    return [usage.row.root for usage in wanted if usage.row.root.int not in seen]


def _misplaced(host: UsageDraft, wanted: Amounts) -> NotAllowed | None:
    """The refusal of a share whose host is no root, or that takes nothing from its host's tree; None otherwise. A consumer
    without an amount in the tree would not keep the host from being removed.
    """
    root = host.row.root.int
    if root != host.row.id.int:
        return NotAllowed(
            field="share.host",
            reason=f"provider {host.row.id} is not a root: it is in the tree of {host.row.root}",
        )
    for usage in wanted:
        if usage.row.root.int == root:
            return None
    return NotAllowed(
        field="share.amounts", reason=f"the share takes nothing from the tree of its host, {host.row.id}"
    )


def _full(host: UsageDraft, share: Share, *, has_place: bool) -> HostFull | None:
    """The refusal if the host already counts as many consumers as the share allows (`instances_max`), or more; None
    otherwise. A consumer that already lives there may stay (`has_place`).
    """
    if host.consumers < share.instances_max or has_place:
        return None
    return HostFull(host=share.host, instances=host.consumers, instances_max=share.instances_max)


def _shortfalls(wanted: Amounts, held: Amounts, *, takes_reserved: bool) -> list[Shortfall]:
    """Why some of the wanted amounts cannot be given. An amount that the consumer already holds is not judged again: an
    instance can leave its host although a pool from which it keeps an amount has shrunk.
    """
    short: list[Shortfall] = []
    for usage, of_provider in wanted.items():
        given_back = held.get(usage, {})
        for resource, asked in of_provider.items():
            held_of_it = given_back.get(resource, 0)
            if asked != held_of_it and (
                shortfall := shortfall_of(usage, resource, asked, held_of_it, takes_reserved=takes_reserved)
            ):
                short.append(shortfall)
    return short


def _as_asked(short: Sequence[Shortfall], share: Share) -> tuple[Shortfall, ...]:
    """Sort the shortfalls by the order in which the share first names their providers and classes."""
    places = list(dict.fromkeys((amount.provider, amount.resource) for amount in share.amounts))
    return tuple(sorted(short, key=lambda each: places.index((each.provider, each.resource))))


def _foreign(usage: UsageDraft, cell: str) -> NotAllowed:
    reason = f"provider {usage.row.id} is of cell {usage.row.cell!r}, not of {cell!r}"
    return NotAllowed(field=SHARE_CELL, reason=reason)
