"""Asks placement for the quota of a project, for plans."""

from collections.abc import Awaitable, Callable

from bus.errors import WrongAnswer
from bus.message import Message
from bus.messages.quotas import AskQuotas, QuotasFound, QuotaState

Ask = Callable[[Message], Awaitable[Message]]


async def quota_of(ask: Ask, project: str) -> QuotaState | None:
    """The project's quota; None if it has no limits, or if no project is named."""
    if not project:
        return None
    answer = await ask(AskQuotas(project=project))
    if not isinstance(answer, QuotasFound):
        raise WrongAnswer(f"placement answered a question for a quota by {answer!r}")
    return next(iter(answer.quotas), None)
