"""Planted bugs in placement's judgement by server groups, and in moves of members that leave together."""

from contextlib import AbstractContextManager
from typing import Any

from msgspec import structs

from moor.books.auditing import Audit
from placement_worker.core import swaps
from placement_worker.core.limits import GroupsDraft
from tests.planted.replacing import replaced, rewritten


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


def members_that_leave_still_bind() -> AbstractContextManager[None]:
    """Placement judges members on the hosts that all of them leave like any other: so none can leave first."""
    return rewritten(GroupsDraft, "judge", "(host, *leaves)", "(host,)")


def member_that_leaves_not_bound() -> AbstractContextManager[None]:
    """A member that leaves its host may go to any other, wherever the first ones went."""
    return rewritten(
        GroupsDraft, "judge", "(host, *leaves)", "(host, *(there for _, there in others if leaves))"
    )


def split_not_told() -> AbstractContextManager[None]:
    """The audit does not say that the members of an affinity group are on several hosts."""
    return replaced(Audit, "_compare_groups", lambda _real: lambda _audit: none_found())


async def none_found() -> None:
    pass
