"""Placement's rules, planted."""

from contextlib import AbstractContextManager
from typing import Any

from bus.messages.placement import Released
from placement_worker.core import claims, shares
from tests.simulation.replacing import replaced


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
