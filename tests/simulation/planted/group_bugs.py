"""Planted bugs in placement's judgement by server groups, and in moves of members that leave together."""

from contextlib import AbstractContextManager
from typing import Any

from msgspec import structs

from cell_conductor.core import moving_together
from placement_worker.core import claims, swaps
from placement_worker.core.drafts import GroupsDraft
from tests.simulation.replacing import replaced


def policy_not_judged() -> AbstractContextManager[None]:
    """Placement relies on the schedulers, of which each sees the members a little late."""
    return replaced(GroupsDraft, "judge", lambda _real: lambda *_, **__: None)


def swap_not_judged() -> AbstractContextManager[None]:
    """Only claims are judged; a swap takes any alternate."""

    def planted(real: Any) -> Any:
        def judge(draft: Any, order: Any, *rest: Any, **named: Any) -> Any:
            if hasattr(order, "held_attempt"):
                order = structs.replace(order, group=None)
            return real(draft, order, *rest, **named)

        return judge

    return replaced(swaps, "judge_place", planted)


def others_not_called_back() -> AbstractContextManager[None]:
    """If the destination fails for one of several that move together, the others stay there."""
    return replaced(moving_together, "_call_back", lambda _real: lambda _inside: None)


def only_the_first_swap_judged() -> AbstractContextManager[None]:
    """Placement answers a question about several by its first swap."""

    def planted(real: Any) -> Any:
        def swap(draft: Any, asked: Any, first: Any, now: Any) -> Any:
            return real(draft, asked, structs.replace(first, together=()), now)

        return swap

    return replaced(claims, "_swap_together", planted)
