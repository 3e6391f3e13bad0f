"""Planted bugs in placement's rules: claims, quotas, owners, server groups, administrators' writes, reshapes."""

from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

from msgspec import structs

from bus.messages.audit import MendedClaim
from bus.messages.books import Done
from cell_conductor.core import decide
from cell_conductor.core.transition import Transition
from engine.inventories import INTEGER_MAX
from engine.picture.columns import KnownProviders
from engine.picture.picture import Picture
from engine.refusals import Claimed, Released
from moor.client.books.auditing import Audit
from placement_worker import admin_writes, handlers
from placement_worker.core import (
    allocation_writes,
    claims,
    drafts,
    forest,
    ledger,
    provider_writes,
    reports,
    reshapes,
    swaps,
)
from placement_worker.core.forest import ForestDraft
from placement_worker.core.ledger import ClaimChanges
from placement_worker.core.limits import GroupsDraft, QuotasDraft
from placement_worker.view import ProviderReplica
from scheduler_worker.core.instances import lifecycle
from tests.planted.replacing import (
    ANY_CLOUD,
    BARE_METAL,
    planted,
    planted_as,
    planted_by,
    replaced,
    rewritten,
)

NO_HORIZON = timedelta(days=36_500)


# A release leaves the amounts on the consumer's row, so a second release frees them again.
@planted("a second release frees the amounts again", claims, "_release", world=ANY_CLOUD, harm="overbooked")
def release_twice(real: Any, draft: Any, consumer: Any, *order: Any, **known: Any) -> Any:
    held = consumer.held
    verdict = real(draft, consumer, *order, **known)
    if held and isinstance(verdict, Released):
        draft.write(consumer, consumer.row, held)
    return verdict


# Every claim fits: placement relies on the scheduler's check.
@planted(
    "claims granted without a capacity check", drafts, "shortfall_of", world=ANY_CLOUD, harm="overbooked"
)
def claim_without_capacity_check(real: Any, usage: Any, resource: Any, *amounts: Any, **how: Any) -> Any:
    return None if resource in usage.row.limits else real(usage, resource, *amounts, **how)


# A release of an unknown consumer leaves no tombstone, so a claim that arrives after it is granted.
@planted("a claim granted after its own release", claims, "_release", world=ANY_CLOUD, harm="doubled")
def claim_after_its_own_release(real: Any, draft: Any, consumer: Any, *order: Any, **known: Any) -> Any:
    return Released(freed=False) if consumer.is_new else real(draft, consumer, *order, **known)


# Beyond the bound of its cell, a release is told as done and leaves no tombstone.
planted_by("a release done without its tombstone", claims, "crowded", harm="doubled")(
    lambda _real: lambda _cell: Released(freed=False)
)


@planted_as("the ratio applied to the reserve", world=ANY_CLOUD, harm="overbooked")
def ratio_applied_to_the_reserve() -> AbstractContextManager[None]:
    """The ratio multiplies the total, and the reserve is subtracted afterwards."""

    def capacity_of(stock: Any) -> int:
        return int(stock.total * stock.allocation_ratio) - int(stock.reserved)

    return replaced(ledger, "capacity_of", lambda _real: capacity_of)


# The ratio is not applied.
planted_by("the ratio ignored", ledger, "capacity_of", world=ANY_CLOUD)(
    lambda _real: lambda stock: max(0, stock.total - stock.reserved)
)


# The reserve is not subtracted.
planted_by("the reserve not subtracted", ledger, "capacity_of", world=ANY_CLOUD, harm="overbooked")(
    lambda _real: lambda stock: int(stock.total * stock.allocation_ratio)
)


planted_as("step_size not checked", world=ANY_CLOUD)(lambda: _bound_not_checked("step_size", 1))


planted_as("min_unit not checked", world=ANY_CLOUD)(lambda: _bound_not_checked("min_unit", 1))


planted_as("max_unit not checked", world=ANY_CLOUD, harm="overbooked")(
    lambda: _bound_not_checked("max_unit", INTEGER_MAX)
)


def _bound_not_checked(bound: str, harmless: int) -> AbstractContextManager[None]:
    """Every amount passes this bound of its inventory."""

    def planted(real: Any) -> Any:
        return lambda stock: structs.replace(real(stock), **{bound: harmless})

    return replaced(ledger, "_limits_of", planted)


# A claim older than the horizon is judged as if no tombstone had been pruned.
planted_by(
    "a claim older than the horizon granted", handlers, "decide_claims", world=ANY_CLOUD, harm="overbooked"
)(lambda real: lambda ledger, asked, now, _horizon: real(ledger, asked, now, NO_HORIZON))


# A host accepts every claim that fits, however many instances it has.
planted_by("the limit of a host not checked", drafts, "_full", world=ANY_CLOUD, harm="overbooked")(
    lambda _real: lambda *_, **__: None
)


# A claim is granted if it fits, whatever shape its sender saw.
planted_by("a changed shape granted", drafts, "_moved", world=ANY_CLOUD, harm="overbooked")(
    lambda _real: lambda *_: []
)


# A cell may release a consumer of another cell.
@planted("a consumer of another cell released", claims, "judge_order", world=ANY_CLOUD, harm="unauthorised")
def foreign_consumer_released(real: Any, draft: Any, asked: Any, *others: Any) -> Any:
    consumer = draft.consumer(asked.order.consumer)
    consumer.row = structs.replace(consumer.row, cell=asked.order.cell)
    return real(draft, asked, *others)


# A claim for many consumers that is refused for some keeps what the others were granted.
planted_as("a part of a claim committed", world=ANY_CLOUD, harm="overbooked")(
    lambda: rewritten(claims, "decide_together", "draft = _draft_with(ledger, granted, now, horizon)", "pass")
)


# A reshape locks its consumers after its trees.
@planted("trees locked before consumers", (admin_writes, handlers), "reshape_by", world=ANY_CLOUD)
async def trees_locked_before_consumers(real: Any, tx: Any, keys: Any, decide: Any) -> Any:
    await tx.lock_trees(keys[1])
    return await real(tx, keys, decide)


# A swap frees what the consumer held on the host that it leaves, and forgets what it held of a pool: usage and allocations agree, but the
# disk is held twice.
@planted("a swap keeps what was held of a pool", claims, "swap", world=ANY_CLOUD, harm="lost")
def pool_kept_by_a_swap(real: Any, draft: Any, consumer: Any, order: Any, *more: Any, **named: Any) -> Any:
    left, held = consumer.row.host, consumer.held
    verdict = real(draft, consumer, order, *more, **named)
    if verdict == Claimed() and order.heir is None:
        asked = {each.provider for each in order.share.amounts} - {left, order.share.host}
        kept = tuple(each for each in held if each.provider in asked)
        draft.take(draft.amounts_of(kept))
        draft.write(consumer, consumer.row, (*consumer.held, *kept))
    return verdict


# Placement relies on the schedulers, of which none knows what the others claim.
planted_by(
    "the quota of a project not judged", QuotasDraft, "judge_growth", world="quotas", harm="overbooked"
)(lambda _real: lambda _self, _project, _growth: None)


# Each claim is judged by what was used before the lock, as if it were the only one.
@planted(
    "each claim of a batch judged by the same quota",
    QuotasDraft,
    "judge_growth",
    world="quotas",
    harm="overbooked",
)
def judged_as_before_the_batch(real: Any, draft: Any, project: Any, growth: Any) -> Any:
    return real(QuotasDraft(draft._quotas), project, growth)  # noqa: SLF001


# A mend gives a project what no lock of its quota was taken for, so the quota does not count it.
@planted(
    "what an audit gives to a project not counted by its quota",
    ledger.ClaimKeys,
    "projects",
    harm="overbooked",
)
def mended_not_counted(real: Any, keys: Any) -> Any:
    return real(structs.replace(keys, owned=[one for one in keys.owned if not isinstance(one, MendedClaim)]))


# Only claims are judged: an instance may grow by a resize.
planted_by(
    "a larger instance not judged by its quota", swaps, "_over_quota", world="quotas", harm="overbooked"
)(lambda _real: lambda _draft, _consumer, _order: None)


# An instance that becomes smaller counts its new size at once, so others take what its revert needs.
planted_by(
    "a smaller instance counts its new size at once", swaps, "given_up", world="quotas", harm="overbooked"
)(lambda _real: lambda _before, _after: ())


# A swap may name any consumer as its heir, also one that has a share of its own.
planted_as("a foreign heir accepted", world="moves of groups", harm="unauthorised")(
    lambda: rewritten(swaps, "_heir_of", "if not (is_own and heir.has_ended):", "if False:")
)


# A release that came before its claim binds the claims of every owner.
planted_by(
    "a tombstone of another owner binds", claims, "binds", world="moves of groups", harm="unauthorised"
)(lambda _real: lambda *_: True)


# A cell's claim may join the server group of another project.
planted_by(
    "the group of another project joined",
    GroupsDraft,
    "judge_joining",
    world="moves of groups",
    harm="unauthorised",
)(lambda _real: lambda *_, **__: None)


# Two cells may have hosts of one name, and nobody hears of it.
planted_by("a name in two cells not told", Picture, "clashes", world="moves of groups")(
    lambda _real: lambda _self: {}
)


# Placement relies on the schedulers, of which each sees the members a little late.
planted_by("the policy of a group not judged", GroupsDraft, "judge", world=ANY_CLOUD, harm="overbooked")(
    lambda _real: lambda *_, **__: None
)


# Only claims are judged; a swap takes any alternate.
@planted("a swap not judged by its group", swaps, "judge_place", world=ANY_CLOUD, harm="overbooked")
def swap_not_judged(real: Any, draft: Any, order: Any, *rest: Any, **named: Any) -> Any:
    if hasattr(order, "held_attempt"):
        order = structs.replace(order, group=None)
    return real(draft, order, *rest, **named)


# Placement judges members on the hosts that all of them leave like any other: so none can leave first.
planted_as("members that leave their host still bind", world="moves of groups")(
    lambda: rewritten(GroupsDraft, "judge", "(host, *leaves)", "(host,)")
)


# A member that leaves its host may go to any other, wherever the first ones went.
planted_as("a member that leaves goes anywhere", world="moves of groups", harm="overbooked")(
    lambda: rewritten(
        GroupsDraft, "judge", "(host, *leaves)", "(host, *(there for _, there in others if leaves))"
    )
)


# The audit does not say that the members of an affinity group are on several hosts.
planted_by("a split group not told", Audit, "_compare_groups", world="moves of groups")(
    lambda _real: lambda _audit: none_found()
)


async def none_found() -> None:
    pass


# The way back of a move is judged like any swap, so it may be refused.
planted_as("the way back judged like any swap", world="moves", harm="lost")(
    lambda: rewritten(swaps, "_judge", "if order.returns is not None else None", "if False else None")
)


# An instance that has become smaller cannot come back, if its project has meanwhile less than it had.
planted_as("the way back of a move is judged by the quota", harm="lost")(
    lambda: rewritten(swaps, "swap", "if returned is None and (over :=", "if (over :=")
)


# A repeated claim of an attempt that has ended is granted.
planted_as("an ended attempt claims again", world=ANY_CLOUD, harm="doubled")(
    lambda: rewritten(claims, "_claim", "elif order.attempt == consumer.row.attempt:", "elif False:")
)


# A report is accepted whatever number the last one of its epoch had.
planted_as("a repeated report accepted", world=BARE_METAL, harm="destroyed")(
    lambda: rewritten(
        reports,
        "_outdated",
        "is_repeated = report.epoch == tree.epoch and 0 < report.sequence <= tree.sequence",
        "is_repeated = False",
    )
)


# An order that was answered stays on the row, and is sent again.
planted_as("an answered order kept", world=ANY_CLOUD, harm="doubled")(
    lambda: rewritten(
        Transition,
        "outbox_without",
        "if not (isinstance(each.message, orders) and each.message.attempt == attempt)",
        "if True",
    )
)


# A host that has not cleaned up is not told again.
planted_as("the cleanups of a silent host ordered once", world=ANY_CLOUD, harm="lost")(
    lambda: rewritten(
        decide, "_on_due", "if row.remind_at is not None and row.remind_at <= now:", "if False:"
    )
)


# A request whose instance was deleted before it came builds the instance.
planted_as("a delete forgotten by its request", world=ANY_CLOUD, harm="lost")(
    lambda: rewritten(lifecycle, "adopted", "if unseen.told.project not in", "if unseen.told.project in")
)


# The last write of inventories, traits or aggregates wins, whatever generation its writer had seen.
planted_by(
    "a provider's generation not checked",
    provider_writes,
    "moved_generation",
    world=ANY_CLOUD,
    harm="destroyed",
)(lambda _real: lambda _book, _seen: None)


# The last write of a consumer's allocations wins, whatever generation its writer had seen.
planted_by(
    "a consumer's generation not checked", allocation_writes, "_moved", world=ANY_CLOUD, harm="destroyed"
)(lambda _real: lambda _draft, _consumers: iter(()))


# The first of several consumers is refused, but the others are written.
@planted(
    "the second consumer written although the first is refused",
    allocation_writes,
    "allocate",
    world=ANY_CLOUD,
    harm="overbooked",
)
def second_consumer_written(real: Any, draft: Any, consumers: Any, *others: Any) -> Any:
    verdict = real(draft, consumers, *others)
    if not isinstance(verdict, Done) and len(consumers) > 1:
        real(draft, consumers[1:], *others)
    return verdict


# Allocations are written without a check of the capacity.
planted_by(
    "allocations written that do not fit",
    allocation_writes,
    "shortfalls_of",
    world=ANY_CLOUD,
    harm="overbooked",
)(lambda _real: lambda *_: iter(()))


# Allocations are written, but not the providers' `used`.
@planted(
    "used not updated by an administrator's write",
    admin_writes,
    "decide_allocations",
    world=ANY_CLOUD,
    harm="overbooked",
)
def used_not_updated(real: Any, ledger: Any, *writes: Any) -> Any:
    decision = real(ledger, *writes)
    touched = tuple(
        structs.replace(each, used=ledger.providers[each.provider.int].used)
        for each in decision.changes.touched
    )
    return structs.replace(decision, changes=structs.replace(decision.changes, touched=touched))


# The inventories move, but their allocations do not.
planted_by(
    "a reshape without its allocations", admin_writes, "decide_reshape", world=ANY_CLOUD, harm="overbooked"
)(lambda real: lambda *ledger: structs.replace(real(*ledger), claims=ClaimChanges()))


# The inventories move, even if the allocations are refused.
@planted(
    "a reshape applied though its allocations are refused",
    (allocation_writes, reshapes),
    "allocate",
    world=ANY_CLOUD,
    harm="overbooked",
)
def reshape_goes_on_when_refused(real: Any, *draft: Any) -> Any:
    real(*draft)
    return Done()


# A claim committed between the reads of a reshape and its write loses its inventory.
planted_by(
    "an inventory in use removed by a reshape", reshapes, "lost_inventory", world=ANY_CLOUD, harm="overbooked"
)(lambda _real: lambda *_: None)


# A provider moves to another tree; its descendants are written only if something else of them changed.
@planted("descendants keep their old root", ForestDraft, "_changed_in", world=ANY_CLOUD, harm="lost")
def descendants_keep_their_root(real: Any, self: Any, tree: Any) -> Any:
    stored = {
        id_: book for standing in self.stored.trees.values() for id_, book in standing.providers.items()
    }
    return [
        each
        for each in real(self, tree)
        # The root's row holds its tree's shape.
        if each == tree.root or tree.providers[each] is not stored.get(each)
    ]


# A provider without allocations can be deleted although it has children.
@planted(
    "a provider deleted above its children", provider_writes, "_delete", world=ANY_CLOUD, harm="destroyed"
)
def deleted_above_its_children(_real: Any, draft: Any, book: Any) -> Any:
    lost = forest.lost_inventory(book, ())
    if lost is None:
        draft.remove_provider(book.id)
    return lost or Done()


# A provider without children can be deleted although it has allocations.
planted_by(
    "a provider deleted in use", provider_writes, "lost_inventory", world=ANY_CLOUD, harm="overbooked"
)(lambda _real: lambda *_: None)


# A write of traits leaves the tree's shape unchanged, so claims that require the old traits pass.
@planted("traits do not change the shape", forest, "is_same_to_claims", world=ANY_CLOUD)
def traits_do_not_change_the_shape(real: Any, one: Any, other: Any) -> Any:
    return real(one, structs.replace(other, traits=one.traits, operator_traits=one.operator_traits))


# The view is told that a provider was deleted, and continues to find it.
@planted("a view keeps deleted providers", KnownProviders, "delete", world=ANY_CLOUD)
def view_keeps_deleted_providers(real: Any, self: KnownProviders, internals: Any) -> None:
    if not isinstance(self, ProviderReplica):
        real(self, internals)


# Two providers may have the same name.
planted_by("duplicate provider names accepted", provider_writes, "_name_taken")(lambda _real: lambda *_: None)


# Those that no seed can show: placement's database refuses a name that another provider has, and the write is tried again.


# One consumer's row keeps the amounts of the old shape, although they are counted at the new providers.
@planted(
    "an allocation left behind by a reshape",
    handlers,
    "decide_host_reshape",
    world="shapes",
    harm="overbooked",
)
def allocation_left_behind(real: Any, *ledger: Any) -> Any:
    decision = real(*ledger)
    claims = decision.claims
    return structs.replace(
        decision,
        claims=structs.replace(claims, held=claims.held[1:], consumers=claims.consumers[1:]),
    )


# A node that Ironic has an instance on is claimed by any boot: its unit is reserved, and that is not looked at.
@planted("what is reserved claimed by anyone", drafts, "shortfall_of", harm="overbooked")
def reserved_claimed_by_anyone(real: Any, *values: Any, **_: Any) -> Any:
    return real(*values, takes_reserved=True)
