"""Planted bugs in placement's judgement by server groups."""

from contextlib import AbstractContextManager
from typing import Any

from msgspec import structs

from placement_worker.core import swaps
from placement_worker.core.drafts.group_draft import GroupsDraft
from tests.simulation.replacing import replaced


def policy_not_judged() -> AbstractContextManager[None]:
    """Placement relies on the schedulers, of which each sees the members a little late."""
    return replaced(GroupsDraft, "judge", lambda _real: lambda *_, **__: None)


def swap_not_judged() -> AbstractContextManager[None]:
    """Only claims are judged; a swap takes any alternate."""

    def planted(real: Any) -> Any:
        def judge(draft: Any, order: Any, *rest: Any) -> Any:
            if hasattr(order, "held_attempt"):
                order = structs.replace(order, group=None)
            return real(draft, order, *rest)

        return judge

    return replaced(swaps, "judge_place", planted)
