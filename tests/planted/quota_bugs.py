"""Planted bugs in placement's judgement by the quotas of projects."""

from contextlib import AbstractContextManager
from typing import Any

from placement_worker.core import swaps
from placement_worker.core.limits import QuotasDraft
from tests.planted.replacing import replaced


def quota_not_judged() -> AbstractContextManager[None]:
    """Placement relies on the schedulers, of which none knows what the others claim."""
    return replaced(QuotasDraft, "judge_growth", lambda _real: lambda _self, _project, _growth: None)


def judged_as_before_the_batch() -> AbstractContextManager[None]:
    """Each claim is judged by what was used before the lock, as if it were the only one."""

    def planted(real: Any) -> Any:
        def judge_growth(draft: Any, project: Any, growth: Any) -> Any:
            return real(QuotasDraft(draft._quotas), project, growth)  # noqa: SLF001

        return judge_growth

    return replaced(QuotasDraft, "judge_growth", planted)


def larger_by_a_swap() -> AbstractContextManager[None]:
    """Only claims are judged: an instance may grow by a resize."""
    return replaced(swaps, "_over_quota", lambda _real: lambda _draft, _consumer, _order: None)


def old_size_given_away() -> AbstractContextManager[None]:
    """An instance that becomes smaller counts its new size at once, so others take what its revert needs."""
    return replaced(swaps, "given_up", lambda _real: lambda _before, _after: ())
