"""Placement's rules for claims, planted."""

from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

from msgspec import structs

from bus.messages.placement import INTEGER_MAX, Released
from placement_worker import administering, handlers
from placement_worker.core import capacity, claims, shares
from tests.simulation.replacing import replaced

EVER = timedelta(days=36_500)


def release_twice() -> AbstractContextManager[None]:
    """What was freed stays on its consumer's row: released again, it is freed again."""

    def by(real: Any) -> Any:
        def release(draft: Any, life: Any, *order: Any) -> Any:
            held = life.held
            verdict = real(draft, life, *order)
            if held and isinstance(verdict, Released):
                life.become(life.row, held)
            return verdict

        return release

    return replaced(claims, "_release", by)


def claim_without_guard() -> AbstractContextManager[None]:
    """Whatever is asked fits: the scheduler has seen to that, has it not?"""
    return replaced(shares, "shortfall_of", lambda _real: lambda _stock, _asked, _held: None)


def claim_after_its_own_release() -> AbstractContextManager[None]:
    """A release that finds nobody leaves nothing behind, so the claim that it overtook is granted."""

    def by(real: Any) -> Any:
        def release(draft: Any, life: Any, *order: Any) -> Any:
            return Released(freed=False) if life.is_new else real(draft, life, *order)

        return release

    return replaced(claims, "_release", by)


def ratio_over_the_reserve() -> AbstractContextManager[None]:
    """The ratio multiplies all there is, and the reserve is taken off afterwards."""

    def capacity_of(stock: Any) -> int:
        return int(stock.total * stock.allocation_ratio) - int(stock.reserved)

    return replaced(capacity, "capacity_of", lambda _real: capacity_of)


def ratio_ignored() -> AbstractContextManager[None]:
    """As much may be held as there really is."""
    return replaced(capacity, "capacity_of", lambda _real: lambda stock: max(0, stock.total - stock.reserved))


def reserve_handed_out() -> AbstractContextManager[None]:
    """What is reserved may be held, too."""
    return replaced(
        capacity, "capacity_of", lambda _real: lambda stock: int(stock.total * stock.allocation_ratio)
    )


def step_not_looked_at() -> AbstractContextManager[None]:
    return _bound_not_looked_at("step_size", 1)


def min_unit_not_looked_at() -> AbstractContextManager[None]:
    return _bound_not_looked_at("min_unit", 1)


def max_unit_not_looked_at() -> AbstractContextManager[None]:
    return _bound_not_looked_at("max_unit", INTEGER_MAX)


def _bound_not_looked_at(bound: str, harmless: int) -> AbstractContextManager[None]:
    """Every amount keeps this bound of its inventory."""

    def by(real: Any) -> Any:
        return lambda stock: structs.replace(real(stock), **{bound: harmless})

    return replaced(capacity, "_terms_of", by)


def horizon_not_looked_at() -> AbstractContextManager[None]:
    """A claim that is older than what is remembered is judged as if nothing were forgotten."""

    def by(real: Any) -> Any:
        return lambda ledger, asked, now, _horizon: real(ledger, asked, now, EVER)

    return replaced(handlers, "decide_claims", by)


def limit_of_a_host_not_looked_at() -> AbstractContextManager[None]:
    """A host takes whoever fits, however many live on it."""
    return replaced(shares, "_full", lambda _real: lambda *_: None)


def moved_shape_granted() -> AbstractContextManager[None]:
    """Whatever the asker saw of a tree, it is granted what fits."""
    return replaced(shares, "_moved", lambda _real: lambda *_: [])


def foreign_consumer_released() -> AbstractContextManager[None]:
    """A cell may end what another cell's consumer holds."""

    def by(real: Any) -> Any:
        def judge(draft: Any, asked: Any, *others: Any) -> Any:
            life = draft.life(asked.order.consumer)
            life.row = structs.replace(life.row, cell=asked.order.cell)
            return real(draft, asked, *others)

        return judge

    return replaced(claims, "_judge", by)


def trees_locked_before_consumers() -> AbstractContextManager[None]:
    """Each reshape of a batch takes its locks when its turn comes, after the trees of those before it are locked."""

    def by(_real: Any) -> Any:
        async def lock_nothing(_tx: Any, _reshapes: Any) -> None:
            return

        return lock_nothing

    return replaced(administering, "lock_reshapes", by)
