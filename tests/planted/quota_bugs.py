"""Planted bugs in placement's judgement by the quotas of projects."""

from typing import Any

from placement_worker.core import swaps
from placement_worker.core.limits import QuotasDraft
from tests.planted.replacing import planted, planted_by

# Placement relies on the schedulers, of which none knows what the others claim.
planted_by("the quota of a project not judged", QuotasDraft, "judge_growth", world="quotas")(
    lambda _real: lambda _self, _project, _growth: None
)


# Each claim is judged by what was used before the lock, as if it were the only one.
@planted("each claim of a batch judged by the same quota", QuotasDraft, "judge_growth", world="quotas")
def judged_as_before_the_batch(real: Any, draft: Any, project: Any, growth: Any) -> Any:
    return real(QuotasDraft(draft._quotas), project, growth)  # noqa: SLF001


# Only claims are judged: an instance may grow by a resize.
planted_by("a larger instance not judged by its quota", swaps, "_over_quota", world="quotas")(
    lambda _real: lambda _draft, _consumer, _order: None
)


# An instance that becomes smaller counts its new size at once, so others take what its revert needs.
planted_by("a smaller instance counts its new size at once", swaps, "given_up", world="quotas")(
    lambda _real: lambda _before, _after: ()
)
