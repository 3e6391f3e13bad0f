"""Campaigns, movements, budgets, questions and policies: what moves instances that nobody has named. Keepers carry it out; `drain` and `evacuate_host` are
campaigns of one host.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal
from uuid import UUID

from msgspec import Struct, structs

from bus.messages.build import InstanceState
from bus.messages.keeping import (
    AskBudgets,
    AskCampaignPlan,
    AskCampaigns,
    AskKeepingWeeks,
    AskMovements,
    BudgetsFound,
    BudgetState,
    CampaignHost,
    CampaignId,
    CampaignPlanned,
    CampaignsFound,
    CampaignState,
    CampaignWork,
    DeleteBudget,
    KeepingWeek,
    KeepingWeeksFound,
    MoveBudget,
    Movement,
    MovementLife,
    MovementsFound,
    SetBudget,
    SetCampaign,
    StartCampaign,
)
from bus.messages.policies import (
    AskPolicies,
    DeletePolicy,
    KeepingPolicy,
    PoliciesFound,
    PolicyScope,
    PolicyState,
    PolicyValue,
    SetPolicy,
)
from bus.messages.questions import AnswerQuestion, AskQuestions, Question, QuestionId, QuestionsFound
from engine.flavors import InstanceId
from engine.hosts import host_in_cell
from moor.client.bus_client import LOOK_AGAIN_S
from moor.client.errors import NotFound, NotInTime, Rejected
from moor.client.finding import QUESTIONS, Named, id_in, instance_ids, prefix_in, the_one
from moor.client.hosts import HostCalls
from moor.client.requests import Listing, order_id

HOSTS_PAGE = 500
MOVEMENTS_PAGE = 200
# Between looks at a campaign at first; later a tenth of the time that it has taken so far.
FIRST_LOOK_S = 0.1
# As schedulers let evacuations wait that say nothing else.
EVACUATION_WAIT_S = 86400


class CampaignDetails(Struct, frozen=True):
    """A campaign, and its hosts in the order of their turns."""

    campaign: CampaignState
    hosts: tuple[CampaignHost, ...]


def goes_on(campaign: CampaignState) -> bool:
    return campaign.life in ("running", "paused")


class Stayed(Struct, frozen=True):
    instance: InstanceId
    name: str
    reason: str


class Emptied(Struct, frozen=True):
    """The result of emptying a host: which instances moved, and which stayed."""

    host: str
    moved: tuple[InstanceState, ...]
    stayed: tuple[Stayed, ...]
    seconds: float


def _why_there(movement: Movement, state: InstanceState) -> str:
    if movement.life not in ("granted", "moving"):
        return movement.reason or "its turn did not come"
    if state.waiting is not None:
        until = f"{state.waiting.until:%Y-%m-%d %H:%M:%S %Z}"
        return f"its move waits for room until {until}: {state.waiting.reason}"
    return "its move goes on"


class KeepingCalls(HostCalls):
    """The client's methods about campaigns, movements, budgets, questions and policies."""

    # Campaigns

    async def start_campaign(
        self,
        work: CampaignWork,
        *,
        name: str = "",
        join: bool = False,
        campaign_id: UUID | None = None,
        for_user: str = "",
    ) -> CampaignState:
        """Begin a campaign, which goes on without its client. To repeat it with its `campaign_id` is harmless. For operators.

        Raises `Rejected` if another campaign has one of its hosts; with `join`, it is over the other hosts alone. The program acts
        for the person `for_user`, and answers for that name.
        """
        id_ = CampaignId(order_id(campaign_id))
        order = StartCampaign(id=id_, work=work, name=name, join=join, for_user=for_user)
        return (await self._ask(order, CampaignsFound)).campaigns[0]

    async def plan_campaign(self, work: CampaignWork) -> CampaignPlanned:
        """Plan a campaign of this work, as it would be now: its hosts, where each guest would go, and which would stay and why. For admins."""
        return await self._ask(AskCampaignPlan(work=work), CampaignPlanned)

    def list_campaigns(self, *, ended: bool = False) -> Listing[CampaignState, CampaignsFound]:
        """The campaigns that go on, the newest first; with `ended` also those that are over. For admins."""
        return Listing(self, AskCampaigns(ended=ended), CampaignsFound, lambda page: page.campaigns)

    async def show_campaign(self, campaign: Named) -> CampaignDetails:
        """A campaign with its hosts, by its name or id. Raises `NotFound`. For admins."""
        question = AskCampaigns(campaign=str(campaign), ended=True, limit=HOSTS_PAGE)
        hosts: list[CampaignHost] = []
        while True:
            page = await self._ask(question, CampaignsFound)
            # Without a name the question is for all of them.
            if not (campaign and page.campaigns):
                raise NotFound("campaign", str(campaign))
            hosts += page.hosts
            if page.next_host is None:
                return CampaignDetails(page.campaigns[0], tuple(hosts))
            question = structs.replace(question, after_host=page.next_host)

    async def pause_campaign(self, campaign: Named, *, for_user: str = "") -> CampaignState:
        """Have a campaign begin nothing more until it is resumed. What moves goes on. For operators."""
        return await self._set_campaign(campaign, "pause", for_user)

    async def resume_campaign(self, campaign: Named, *, for_user: str = "") -> CampaignState:
        """Have a paused campaign go on. For operators."""
        return await self._set_campaign(campaign, "resume", for_user)

    async def cancel_campaign(self, campaign: Named, *, for_user: str = "") -> CampaignState:
        """End a campaign. What moves goes on, and the hosts stay as they are. For operators."""
        return await self._set_campaign(campaign, "cancel", for_user)

    async def _set_campaign(
        self, campaign: Named, to: Literal["pause", "resume", "cancel"], for_user: str
    ) -> CampaignState:
        order = SetCampaign(campaign=str(campaign), to=to, for_user=for_user)
        return await self._one(order, CampaignsFound, lambda page: page.campaigns, "campaign", campaign)

    async def follow_campaign(
        self,
        campaign: Named,
        *,
        timeout_s: float | None = None,
        tell: Callable[[CampaignDetails], None] = lambda _: None,
        stop: asyncio.Event | None = None,
    ) -> CampaignDetails:
        """Wait until a campaign has ended, or until `stop` is set, and return it as it is then. For admins.

        `tell` is called with it at each change. Raises `NotInTime` after `timeout_s`. The campaign goes on in any case.
        """
        loop, stop = asyncio.get_running_loop(), stop or asyncio.Event()
        began_s, told = loop.time(), None
        while True:
            found = await self.show_campaign(campaign)
            if found != told:
                tell(found)
                told = found
            if not goes_on(found.campaign) or stop.is_set():
                return found
            passed_s = loop.time() - began_s
            if timeout_s is not None and passed_s >= timeout_s:
                raise NotInTime(f"campaign {found.campaign.name} has not ended", timeout_s)
            pause_s = min(LOOK_AGAIN_S, FIRST_LOOK_S + passed_s / 10)
            with suppress(TimeoutError):
                async with asyncio.timeout(
                    pause_s if timeout_s is None else min(pause_s, timeout_s - passed_s)
                ):
                    await stop.wait()

    # One host

    async def drain(
        self,
        name: str,
        *,
        reason: str = "",
        hosts: Sequence[str] = (),
        wait: int = 0,
        at_once: int = 10,
        timeout_s: float = 3600.0,
        for_user: str = "",
        tell: Callable[[CampaignHost], None] = lambda _: None,
        stop: asyncio.Event | None = None,
    ) -> Emptied:
        """Set a host draining and move its instances away, by a campaign: live, or else stopped meanwhile. For operators.

        At most `at_once` move at the same time, to one of `hosts` if these are named. One for which no host has room waits `wait` seconds
        for it. After `timeout_s`, or when `stop` is set, the campaign is cancelled; what moves goes on. The result says which instances
        have moved, and why each other one is still there; `tell` is called with the host as it is so far. The host stays draining.
        """
        host = await self.show_host(name)
        work = CampaignWork(
            hosts=(host_in_cell(host.cell, host.name),),
            to=tuple(hosts),
            wait_s=wait,
            guests_at_once=at_once,
            reason=reason,
        )
        return await self._emptied(work, timeout_s, for_user, tell, stop)

    async def evacuate_host(
        self,
        name: str,
        *,
        reason: str = "",
        hosts: Sequence[str] = (),
        fence: str = "",
        wait: int = EVACUATION_WAIT_S,
        at_once: int = 50,
        timeout_s: float = 3600.0,
        for_user: str = "",
        tell: Callable[[CampaignHost], None] = lambda _: None,
        stop: asyncio.Event | None = None,
    ) -> Emptied:
        """Build all instances of a host that is down anew on other hosts of its cell, by a campaign. For operators.

        `fence` is a program of the keepers that makes sure that the host is off; without it, make sure yourself. Instances for which no
        host has room wait for it, a day unless `wait` says else. The other arguments are those of `drain`.
        """
        work = CampaignWork(
            kind="evacuate",
            hosts=(name,),
            fence=fence,
            to=tuple(hosts),
            wait_s=wait,
            guests_at_once=at_once,
            reason=reason,
        )
        return await self._emptied(work, timeout_s, for_user, tell, stop)

    async def _emptied(
        self,
        work: CampaignWork,
        timeout_s: float,
        for_user: str,
        tell: Callable[[CampaignHost], None],
        stop: asyncio.Event | None,
    ) -> Emptied:
        began_s = time.monotonic()
        campaign = (await self.start_campaign(work, for_user=for_user)).id
        told: list[CampaignHost] = []

        def tell_host(found: CampaignDetails) -> None:
            if found.hosts != tuple(told[-1:]):
                told.extend(found.hosts)
                tell(told[-1])

        with suppress(NotInTime):
            await self.follow_campaign(campaign, timeout_s=timeout_s, tell=tell_host, stop=stop)
        found = await self.show_campaign(campaign)
        if goes_on(found.campaign):
            await self.cancel_campaign(campaign, for_user=for_user)
        movements = await self.list_movements(campaign=str(campaign), ended=True)
        (host,) = found.hosts
        if not movements and host.stage in ("failed", "skipped"):
            raise Rejected("host", work.hosts[0], host.reason)
        stays = {each.instance: each for each in movements if each.life != "done"}
        with self._raising():
            states = await self._bus.instances([each.instance for each in movements])
        # One that was deleted, or that another order has moved, is not there any more either.
        there = {
            each.id
            for each in states
            if each.id in stays
            and each.state != "deleted"
            and (each.cell, each.host) == (host.cell, host.host)
        }
        return Emptied(
            host_in_cell(host.cell, host.host),
            tuple(each for each in states if each.id not in there),
            tuple(
                Stayed(each.id, each.name, _why_there(stays[each.id], each))
                for each in states
                if each.id in there
            ),
            time.monotonic() - began_s,
        )

    # Movements

    def list_movements(
        self,
        *,
        campaign: str = "",
        instance: Named = "",
        host: str = "",
        life: MovementLife | None = None,
        ended: bool = False,
    ) -> Listing[Movement, MovementsFound]:
        """The movements that go on, or with `ended` all; of a campaign (its name or id), an instance or a host. For admins."""

        async def question() -> AskMovements:
            with self._raising():
                found = await instance_ids(self._bus, [instance]) if instance else []
            return AskMovements(
                campaign=campaign,
                instance=found[0] if found else None,
                host=host,
                life=life or "",
                ended=ended or life in ("done", "given_up", "withdrawn"),
                limit=MOVEMENTS_PAGE,
            )

        return Listing(self, question, MovementsFound, lambda page: page.movements)

    # Questions

    def list_questions(self, *, ended: bool = False) -> Listing[Question, QuestionsFound]:
        """What keepers ask persons, the newest first: what is open, or with `ended` all. For admins."""
        return Listing(self, AskQuestions(ended=ended), QuestionsFound, lambda page: page.questions)

    async def show_question(self, question: Named) -> Question:
        """A question by its id. Raises `NotFound`. For admins."""
        asked = AskQuestions(id=await self._question_id(question))
        return await self._one(asked, QuestionsFound, lambda page: page.questions, "question", question)

    async def _question_id(self, named: Named) -> QuestionId:
        """The id of the question with this id, or of the open one whose id begins like this."""
        if (id_ := id_in(named)) is None:
            prefix = prefix_in(str(named))
            begins = [
                each async for each in self.list_questions() if prefix and each.id.hex.startswith(prefix)
            ]
            found = the_one(QUESTIONS, str(named), begins)
            if found is None:
                raise NotFound("question", str(named))
            id_ = found.id
        return QuestionId(id_)

    async def answer_question(self, question: Named, answer: str, *, for_user: str = "") -> Question:
        """Answer a question: keepers then do what its answer says. Raises `NotFound`, or `Rejected` if it does not matter any
        more. For operators.
        """
        order = AnswerQuestion(question=await self._question_id(question), answer=answer, for_user=for_user)
        return await self._one(order, QuestionsFound, lambda page: page.questions, "question", question)

    # Policies

    async def set_policy(self, policy: KeepingPolicy, *, for_user: str = "") -> PolicyState:
        """Create a policy, or replace the one of its scope and `of`. It counts from the next host on that is lost. For operators."""
        return (await self._ask(SetPolicy(policy=policy, for_user=for_user), PoliciesFound)).policies[0]

    async def list_policies(self) -> Sequence[PolicyState]:
        """All policies, the widest first. For admins."""
        return (await self._ask(AskPolicies(), PoliciesFound)).policies

    async def policy_of(self, instance: Named) -> Sequence[PolicyValue]:
        """What counts for this instance, and which policy says it. Raises `NotFound`. For admins."""
        (id_,) = await instance_ids(self._bus, [instance])
        found = await self._ask(AskPolicies(instance=id_), PoliciesFound)
        if not found.counts:
            raise NotFound("instance", str(instance))
        return found.counts

    async def delete_policy(self, scope: PolicyScope, of: str = "", *, for_user: str = "") -> PolicyState:
        """Delete the policy of this scope and `of`; returns it as it was. Raises `NotFound`. For operators."""
        order = DeletePolicy(scope=scope, of=of, for_user=for_user)
        named = f"{scope} {of}".rstrip()
        return await self._one(order, PoliciesFound, lambda page: page.policies, "policy", named)

    # Budgets

    async def set_budget(self, budget: MoveBudget, *, for_user: str = "") -> BudgetState:
        """Create a budget, or replace the one of its name. It counts from the next grant on. For operators."""
        return (await self._ask(SetBudget(budget=budget, for_user=for_user), BudgetsFound)).budgets[0]

    def list_budgets(self) -> Listing[BudgetState, BudgetsFound]:
        """All budgets in the order of their names, with their use. For admins."""
        return Listing(self, AskBudgets(), BudgetsFound, lambda page: page.budgets)

    async def keeping_weeks(self, weeks: int = 12) -> tuple[KeepingWeek, ...]:
        """What keepers have done by themselves in each of the last weeks, the latest first: hosts recovered, and balances. For admins."""
        return (await self._ask(AskKeepingWeeks(weeks=weeks), KeepingWeeksFound)).weeks

    async def show_budget(self, name: str) -> BudgetState:
        """A budget with its use. Raises `NotFound`. For admins."""
        return await self._one(AskBudgets(name=name), BudgetsFound, lambda page: page.budgets, "budget", name)

    async def delete_budget(self, name: str, *, for_user: str = "") -> BudgetState:
        """Delete a budget; returns it as it was. Raises `NotFound`. For operators."""
        order = DeleteBudget(name=name, for_user=for_user)
        return await self._one(order, BudgetsFound, lambda page: page.budgets, "budget", name)
