"""Planted bugs in placement's judgement by server groups, and in moves of members that leave together."""

from contextlib import AbstractContextManager
from typing import Any

from msgspec import structs

from moor.books.auditing import Audit
from placement_worker.core import swaps
from placement_worker.core.limits import GroupsDraft
from tests.planted.replacing import ANY_CLOUD, planted, planted_as, planted_by, rewritten

# Placement relies on the schedulers, of which each sees the members a little late.
planted_by("the policy of a group not judged", GroupsDraft, "judge", world=ANY_CLOUD)(
    lambda _real: lambda *_, **__: None
)


# Only claims are judged; a swap takes any alternate.
@planted("a swap not judged by its group", swaps, "judge_place", world=ANY_CLOUD)
def swap_not_judged(real: Any, draft: Any, order: Any, *rest: Any, **named: Any) -> Any:
    if hasattr(order, "held_attempt"):
        order = structs.replace(order, group=None)
    return real(draft, order, *rest, **named)


@planted_as("members that leave their host still bind", world="moves of groups")
def members_that_leave_still_bind() -> AbstractContextManager[None]:
    """Placement judges members on the hosts that all of them leave like any other: so none can leave first."""
    return rewritten(GroupsDraft, "judge", "(host, *leaves)", "(host,)")


@planted_as("a member that leaves goes anywhere", world="moves of groups")
def member_that_leaves_not_bound() -> AbstractContextManager[None]:
    """A member that leaves its host may go to any other, wherever the first ones went."""
    return rewritten(
        GroupsDraft, "judge", "(host, *leaves)", "(host, *(there for _, there in others if leaves))"
    )


# The audit does not say that the members of an affinity group are on several hosts.
planted_by("a split group not told", Audit, "_compare_groups", world="moves of groups")(
    lambda _real: lambda _audit: none_found()
)


async def none_found() -> None:
    pass
