"""Quotas: how much a project may have of each resource class, and how many instances."""

from collections.abc import AsyncGenerator, Mapping

from bus.messages.administration import UnknownClass, WriteAnswered
from bus.messages.quotas import AskQuotas, QuotasFound, QuotaState, SetQuota
from moor.client.errors import NotFound, Rejected
from moor.client.session import ClientSession

QUOTAS_PAGE = 100


class QuotaCalls(ClientSession):
    """The client's methods about quotas."""

    async def set_quota(self, project: str, limits: Mapping[str, int | None]) -> QuotaState:
        """Set limits of a project, on `instances` or on resource classes such as `VCPU`; None removes one, and others stay. For operators.

        Returns all limits of the project, and what it uses. Nothing is taken from a project that has more than a limit. Raises
        `Rejected`, and sets none of these limits, if one names an unknown class.
        """
        verdict = (await self._ask(SetQuota(project=project, limits=dict(limits)), WriteAnswered)).verdict
        if isinstance(verdict, UnknownClass):
            raise Rejected("limits", ", ".join(verdict.names), "there is no resource class of this name")
        found = await self._quotas_of(project)
        return found[0] if found else QuotaState(project=project, limits={})

    async def show_quota(self, project: str = "") -> QuotaState:
        """The limits of a project (the client's, if none is named), and what it uses. Raises `NotFound` if it has no limits."""
        named = project or self.project
        if not named:
            raise Rejected(
                "project", "", "the client has no project, so name the one whose quota is asked for"
            )
        found = await self._quotas_of(named)
        if not found:
            raise NotFound("quota of project", named)
        return found[0]

    async def list_quotas(self) -> AsyncGenerator[QuotaState, None]:
        """The quotas of all projects that have limits, in the order of projects; or of the client's project alone."""
        question = AskQuotas(project=self.project, limit=QUOTAS_PAGE)
        async for each in self._items(question, QuotasFound, lambda page: page.quotas):
            yield each

    async def _quotas_of(self, project: str) -> tuple[QuotaState, ...]:
        return (await self._ask(AskQuotas(project=project), QuotasFound)).quotas
