"""Planted bugs in placement's rules for claims."""

from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

from msgspec import structs

from engine.inventories import INTEGER_MAX
from engine.refusals import Claimed, Released
from placement_worker import admin_writes, handlers
from placement_worker.core import claims, drafts, ledger
from tests.planted.replacing import ANY_CLOUD, planted, planted_as, planted_by, replaced, rewritten

NO_HORIZON = timedelta(days=36_500)


# A release leaves the amounts on the consumer's row, so a second release frees them again.
@planted("a second release frees the amounts again", claims, "_release", world=ANY_CLOUD)
def release_twice(real: Any, draft: Any, consumer: Any, *order: Any, **known: Any) -> Any:
    held = consumer.held
    verdict = real(draft, consumer, *order, **known)
    if held and isinstance(verdict, Released):
        draft.write(consumer, consumer.row, held)
    return verdict


# Every claim fits: placement relies on the scheduler's check.
@planted("claims granted without a capacity check", drafts, "shortfall_of", world=ANY_CLOUD)
def claim_without_capacity_check(real: Any, usage: Any, resource: Any, *amounts: Any) -> Any:
    return None if resource in usage.row.limits else real(usage, resource, *amounts)


# A release of an unknown consumer leaves no tombstone, so a claim that arrives after it is granted.
@planted("a claim granted after its own release", claims, "_release", world=ANY_CLOUD)
def claim_after_its_own_release(real: Any, draft: Any, consumer: Any, *order: Any, **known: Any) -> Any:
    return Released(freed=False) if consumer.is_new else real(draft, consumer, *order, **known)


@planted_as("the ratio applied to the reserve", world=ANY_CLOUD)
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
planted_by("the reserve not subtracted", ledger, "capacity_of", world=ANY_CLOUD)(
    lambda _real: lambda stock: int(stock.total * stock.allocation_ratio)
)


@planted_as("step_size not checked", world=ANY_CLOUD)
def step_not_checked() -> AbstractContextManager[None]:
    return _bound_not_checked("step_size", 1)


@planted_as("min_unit not checked", world=ANY_CLOUD)
def min_unit_not_checked() -> AbstractContextManager[None]:
    return _bound_not_checked("min_unit", 1)


@planted_as("max_unit not checked", world=ANY_CLOUD)
def max_unit_not_checked() -> AbstractContextManager[None]:
    return _bound_not_checked("max_unit", INTEGER_MAX)


def _bound_not_checked(bound: str, harmless: int) -> AbstractContextManager[None]:
    """Every amount passes this bound of its inventory."""

    def planted(real: Any) -> Any:
        return lambda stock: structs.replace(real(stock), **{bound: harmless})

    return replaced(ledger, "_limits_of", planted)


# A claim older than the horizon is judged as if no tombstone had been pruned.
@planted_by("a claim older than the horizon granted", handlers, "decide_claims", world=ANY_CLOUD)
def horizon_not_checked(real: Any) -> Any:
    return lambda ledger, asked, now, _horizon: real(ledger, asked, now, NO_HORIZON)


# A host accepts every claim that fits, however many instances it has.
planted_by("the limit of a host not checked", drafts, "_full", world=ANY_CLOUD)(
    lambda _real: lambda *_, **__: None
)


# A claim is granted if it fits, whatever shape its sender saw.
planted_by("a changed shape granted", drafts, "_moved", world=ANY_CLOUD)(lambda _real: lambda *_: [])


# A cell may release a consumer of another cell.
@planted("a consumer of another cell released", claims, "judge_order", world=ANY_CLOUD)
def foreign_consumer_released(real: Any, draft: Any, asked: Any, *others: Any) -> Any:
    consumer = draft.consumer(asked.order.consumer)
    consumer.row = structs.replace(consumer.row, cell=asked.order.cell)
    return real(draft, asked, *others)


@planted_as("a part of a claim committed", world=ANY_CLOUD)
def part_of_a_claim_committed() -> AbstractContextManager[None]:
    """A claim for many consumers that is refused for some keeps what the others were granted."""
    return rewritten(claims, "decide_together", "draft = _draft_with(ledger, granted, now, horizon)", "pass")


# Each reshape of a batch locks its rows in turn, after the trees of the earlier ones are locked.
@planted("trees locked before consumers", admin_writes, "lock_reshapes", world=ANY_CLOUD)
async def trees_locked_before_consumers(_real: Any, _tx: Any, _reshapes: Any) -> None:
    return


# A swap frees what the consumer held on the host that it leaves, and forgets what it held of a pool: usage and allocations agree, but the
# disk is held twice.
@planted("a swap keeps what was held of a pool", claims, "swap", world=ANY_CLOUD)
def pool_kept_by_a_swap(real: Any, draft: Any, consumer: Any, order: Any, *more: Any, **named: Any) -> Any:
    left, held = consumer.row.host, consumer.held
    verdict = real(draft, consumer, order, *more, **named)
    if verdict == Claimed() and order.heir is None:
        asked = {each.provider for each in order.share.amounts} - {left, order.share.host}
        kept = tuple(each for each in held if each.provider in asked)
        draft.take(draft.amounts_of(kept))
        draft.write(consumer, consumer.row, (*consumer.held, *kept))
    return verdict
