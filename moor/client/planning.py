"""Asks what would fit where, why a host was chosen, and why none was. Nothing is claimed or written."""

from collections.abc import AsyncGenerator
from typing import Unpack
from uuid import UUID

from msgspec import structs

from bus.messages.build import Flavor, InstanceId, RequestId
from bus.messages.planning import (
    AskDrain,
    AskExplanation,
    AskPlan,
    AskReasons,
    DrainFound,
    ExplanationsFound,
    HostVerdict,
    PlanFound,
    ReasonsFound,
)
from moor.client.errors import NotFound
from moor.client.fields import BuildFields, build_of
from moor.client.session import ClientSession

VERDICTS_PAGE = 200
EXPLANATIONS_PAGE = 100


class PlanCalls(ClientSession):
    """The client's questions about choices of hosts: before a request, and after it."""

    async def plan(self, flavor: Flavor, **fields: Unpack[BuildFields]) -> PlanFound:
        """How many instances of this request would fit now, in which cells, and what would make more hosts qualify."""
        request = build_of(flavor, self.project, fields)
        return await self._ask(AskPlan(request=request, project=request.project), PlanFound)

    async def verdicts(
        self, flavor: Flavor, *, step: str = "", **fields: Unpack[BuildFields]
    ) -> AsyncGenerator[HostVerdict, None]:
        """The verdict on each host for this request: how many would fit there, or the first filter that removes it. For admins.

        With `step`, only on the hosts that this step removes; `qualify` stands for those that no step removes.
        """
        request = build_of(flavor, self.project, fields)
        question = AskReasons(request=request, step=step, limit=VERDICTS_PAGE)
        async for each in self._items(question, ReasonsFound, lambda page: page.hosts):
            yield each

    async def plan_drain(self, host: str) -> DrainFound:
        """Whether the instances of this host would fit on other hosts of its cell, all together. For admins."""
        return await self._ask(AskDrain(host=host), DrainFound)

    async def explain(self, instance_or_request: UUID, *, plan_now: bool = False) -> ExplanationsFound:
        """How the host of an instance was chosen, or those of all instances of a request; or why there was none.

        With `plan_now`, also a plan for the same needs. Raises `NotFound`.
        """
        about = AskExplanation(project=self.project, plan_now=plan_now, limit=EXPLANATIONS_PAGE)
        for question in (
            structs.replace(about, instance=InstanceId(instance_or_request)),
            structs.replace(about, request_id=RequestId(instance_or_request)),
        ):
            pages = self._items(question, ExplanationsFound, lambda page: (page,))
            found = [page async for page in pages]
            if found[0].explanations:
                explanations = tuple(each for page in found for each in page.explanations)
                return structs.replace(found[0], explanations=explanations, next=None)
        raise NotFound("instance or request", instance_or_request)
