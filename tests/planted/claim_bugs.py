"""Planted bugs in placement's rules for claims."""

from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

from msgspec import structs

from engine.inventories import INTEGER_MAX
from engine.refusals import Claimed, Released
from placement_worker import admin_writes, handlers
from placement_worker.core import claims, drafts, ledger
from tests.planted.replacing import replaced, rewritten

NO_HORIZON = timedelta(days=36_500)


def release_twice() -> AbstractContextManager[None]:
    """A release leaves the amounts on the consumer's row, so a second release frees them again."""

    def planted(real: Any) -> Any:
        def release(draft: Any, consumer: Any, *order: Any, **known: Any) -> Any:
            held = consumer.held
            verdict = real(draft, consumer, *order, **known)
            if held and isinstance(verdict, Released):
                draft.write(consumer, consumer.row, held)
            return verdict

        return release

    return replaced(claims, "_release", planted)


def claim_without_capacity_check() -> AbstractContextManager[None]:
    """Every claim fits: placement relies on the scheduler's check."""

    def planted(real: Any) -> Any:
        def shortfall_of(usage: Any, resource: Any, *amounts: Any) -> Any:
            return None if resource in usage.row.limits else real(usage, resource, *amounts)

        return shortfall_of

    return replaced(drafts, "shortfall_of", planted)


def claim_after_its_own_release() -> AbstractContextManager[None]:
    """A release of an unknown consumer leaves no tombstone, so a claim that arrives after it is granted."""

    def planted(real: Any) -> Any:
        def release(draft: Any, consumer: Any, *order: Any, **known: Any) -> Any:
            return Released(freed=False) if consumer.is_new else real(draft, consumer, *order, **known)

        return release

    return replaced(claims, "_release", planted)


def ratio_applied_to_the_reserve() -> AbstractContextManager[None]:
    """The ratio multiplies the total, and the reserve is subtracted afterwards."""

    def capacity_of(stock: Any) -> int:
        return int(stock.total * stock.allocation_ratio) - int(stock.reserved)

    return replaced(ledger, "capacity_of", lambda _real: capacity_of)


def ratio_ignored() -> AbstractContextManager[None]:
    """The ratio is not applied."""
    return replaced(ledger, "capacity_of", lambda _real: lambda stock: max(0, stock.total - stock.reserved))


def reserve_not_subtracted() -> AbstractContextManager[None]:
    """The reserve is not subtracted."""
    return replaced(
        ledger, "capacity_of", lambda _real: lambda stock: int(stock.total * stock.allocation_ratio)
    )


def step_not_checked() -> AbstractContextManager[None]:
    return _bound_not_checked("step_size", 1)


def min_unit_not_checked() -> AbstractContextManager[None]:
    return _bound_not_checked("min_unit", 1)


def max_unit_not_checked() -> AbstractContextManager[None]:
    return _bound_not_checked("max_unit", INTEGER_MAX)


def _bound_not_checked(bound: str, harmless: int) -> AbstractContextManager[None]:
    """Every amount passes this bound of its inventory."""

    def planted(real: Any) -> Any:
        return lambda stock: structs.replace(real(stock), **{bound: harmless})

    return replaced(ledger, "_limits_of", planted)


def horizon_not_checked() -> AbstractContextManager[None]:
    """A claim older than the horizon is judged as if no tombstone had been pruned."""

    def planted(real: Any) -> Any:
        return lambda ledger, asked, now, _horizon: real(ledger, asked, now, NO_HORIZON)

    return replaced(handlers, "decide_claims", planted)


def limit_of_a_host_not_checked() -> AbstractContextManager[None]:
    """A host accepts every claim that fits, however many instances it has."""
    return replaced(drafts, "_full", lambda _real: lambda *_, **__: None)


def changed_shape_granted() -> AbstractContextManager[None]:
    """A claim is granted if it fits, whatever shape its sender saw."""
    return replaced(drafts, "_moved", lambda _real: lambda *_: [])


def foreign_consumer_released() -> AbstractContextManager[None]:
    """A cell may release a consumer of another cell."""

    def planted(real: Any) -> Any:
        def judge(draft: Any, asked: Any, *others: Any) -> Any:
            consumer = draft.consumer(asked.order.consumer)
            consumer.row = structs.replace(consumer.row, cell=asked.order.cell)
            return real(draft, asked, *others)

        return judge

    return replaced(claims, "judge_order", planted)


def part_of_a_claim_committed() -> AbstractContextManager[None]:
    """A claim for many consumers that is refused for some keeps what the others were granted."""
    return rewritten(claims, "decide_together", "draft = _draft_with(ledger, granted, now, horizon)", "pass")


def trees_locked_before_consumers() -> AbstractContextManager[None]:
    """Each reshape of a batch locks its rows in turn, after the trees of the earlier ones are locked."""

    def planted(_real: Any) -> Any:
        async def lock_nothing(_tx: Any, _reshapes: Any) -> None:
            return

        return lock_nothing

    return replaced(admin_writes, "lock_reshapes", planted)


def pool_kept_by_a_swap() -> AbstractContextManager[None]:
    """A swap frees what the consumer held on the host that it leaves, and forgets what it held of a pool: usage and
    allocations agree, but the disk is held twice.
    """

    def planted(real: Any) -> Any:
        def swap(draft: Any, consumer: Any, order: Any, *more: Any, **named: Any) -> Any:
            left, held = consumer.row.host, consumer.held
            verdict = real(draft, consumer, order, *more, **named)
            if verdict == Claimed() and order.heir is None:
                asked = {each.provider for each in order.share.amounts} - {left, order.share.host}
                kept = tuple(each for each in held if each.provider in asked)
                draft.take(draft.amounts_of(kept))
                draft.write(consumer, consumer.row, (*consumer.held, *kept))
            return verdict

        return swap

    return replaced(claims, "swap", planted)
