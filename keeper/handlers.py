"""The keeper's queues: which message goes to which handler.

queue              handlers
keeper.requests    `Orders`: campaigns are begun and set, questions are answered, budgets are written
                   `PolicyOrders` (policies.py): policies are written
keeper.questions   `Questions`: campaigns, movements, questions to persons, budgets, plans, policies
keeper.events      `Orders`: persons are asked about nodes without power

An order asks schedulers first, and writes in one transaction then; a repeated one finds what it has written, and is answered as before.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import structs

from bus.message import Message
from bus.messages.build import BuildRejected
from bus.messages.cell import NodePower
from bus.messages.keeping import (
    CAMPAIGN_HOSTS_MAX,
    PLANNED_MAX,
    AskBudgets,
    AskCampaignPlan,
    AskCampaigns,
    AskKeepingWeeks,
    AskMovements,
    BudgetsFound,
    BudgetState,
    CampaignHost,
    CampaignLife,
    CampaignPlanned,
    CampaignsFound,
    CampaignState,
    CampaignWork,
    DeleteBudget,
    KeepingWeeksFound,
    Movement,
    MovementsFound,
    PlannedMovement,
    SetBudget,
    SetCampaign,
    StartCampaign,
)
from bus.messages.policies import AskPolicies, DeletePolicy, SetPolicy
from bus.messages.questions import AnswerQuestion, AskQuestions, QuestionsFound
from bus.unreadable import Unreadable
from bus.workers.handlers import Answer, Bury, Handlers, ReadOnly, Received, Said, answering
from keeper import store_sql as rows
from keeper.asking import Schedulers, named
from keeper.balancing import Balancing, begun_by, why_no_steps
from keeper.beginning import CampaignHosts, begin_campaign
from keeper.core.campaigns import HELD, rejected, wrong_work
from keeper.core.fencing import (
    after_answer_of,
    after_answer_to_all,
    closed,
    question_about,
    question_about_power,
)
from keeper.core.grants import HOUR, Use, told_use, wrong_budget
from keeper.core.weeks import weeks_of
from keeper.hooks import Hooks
from keeper.policies import PolicyBook
from keeper.store_sql import KeeperStore, counted
from kit.sql import Transaction

LIVES: Mapping[str, CampaignLife] = {"pause": "paused", "resume": "running", "cancel": "cancelled"}
# The rate of movements is that of the last minutes.
RATE_OVER = timedelta(minutes=15)


class Orders:
    def __init__(
        self,
        schedulers: Schedulers,
        store: KeeperStore,
        hooks: Hooks,
        policies: PolicyBook,
        balancing: Balancing,
        *,
        clock: Callable[[], datetime],
        wake: Callable[[], None],
    ) -> None:
        self._schedulers = schedulers
        self._store = store
        self._hooks = hooks
        self._policies = policies
        self._balancing = balancing
        self._hosts = CampaignHosts(schedulers)
        self._clock = clock
        self._wake = wake

    def handlers(self) -> Handlers:
        return {
            StartCampaign: _each(self._start),
            SetCampaign: _each(self._set),
            AnswerQuestion: _each(self._answer),
            SetBudget: _each(self._set_budget),
            DeleteBudget: _each(self._delete_budget),
            SetPolicy: _each(self._policies.set),
            DeletePolicy: _each(self._policies.delete),
            Unreadable: ReadOnly(_on_unreadable),
        }

    def event_handlers(self) -> Handlers:
        return {NodePower: ReadOnly(self._on_power)}

    async def _start(self, ask: Received[StartCampaign]) -> Message:
        order = ask.message
        # The end of the id is random. The beginning is the time, which campaigns of one minute have in common.
        name = order.name or f"{order.work.kind}-{str(order.id)[-8:]}"
        wanted = CampaignState(
            id=order.id,
            name=name,
            work=order.work,
            by=ask.by,
            asked_at=self._clock(),
        )
        if known := await self._store.read(rows.campaigns_called, str(order.id)):
            return await self._same(known[0], wanted)
        begun = self._why_wrong(order.work) or await self._begun(wanted)
        if isinstance(begun, BuildRejected):
            return begun
        campaign = await begin_campaign(self._store, *begun, join=order.join)
        if isinstance(campaign, BuildRejected):
            return campaign
        self._wake()
        return await self._same(campaign, wanted)

    async def _begun(
        self, wanted: CampaignState
    ) -> tuple[CampaignState, Sequence[CampaignHost], Sequence[Movement]] | BuildRejected:
        """A campaign as it begins, with its hosts, and the movements that are planned already."""
        if wanted.work.kind != "balance":
            hosts = await self._hosts.of(wanted.work)
            return hosts if isinstance(hosts, BuildRejected) else (wanted, hosts, ())
        plan = await self._balancing.plan(wanted.work)
        if isinstance(plan, BuildRejected):
            return plan
        if not plan.steps:
            return rejected("work.goal", wanted.work.goal, why_no_steps(plan))
        return begun_by(wanted, plan, self._clock())

    def _why_wrong(self, work: CampaignWork) -> BuildRejected | None:
        if wrong := wrong_work(work):
            return rejected(*wrong)
        for field, name in (("work.hook", work.hook), ("work.fence", work.fence)):
            if name and (why := self._hooks.why_unknown(name)):
                return rejected(field, name, why)
        return None

    async def _same(self, known: CampaignState, wanted: CampaignState) -> Message:
        """The answer to an order with an id that is known."""
        is_same = (known.name, known.work) == (wanted.name, wanted.work)
        other = rejected("id", wanted.id, "duplicate id: it belongs to another campaign")
        return await self._told(known) if is_same else other

    async def _set(self, ask: Received[SetCampaign]) -> Message:
        order = ask.message
        called = await self._store.read(rows.campaigns_called, order.campaign)
        if not called:
            return CampaignsFound(campaigns=())
        async with self._store.transaction() as transaction:
            known = await transaction.run(rows.lock_campaign, called[0].id)
            if known is None:
                return CampaignsFound(campaigns=())
            life = LIVES[order.to]
            if known.life not in ("running", "paused", life):
                return rejected("campaign", order.campaign, f"it is {known.life}: begin another one")
            if known.life != life:
                known = structs.replace(known, life=life, reason=f"by {ask.by}" if ask.by else "")
                await transaction.run(rows.save_campaign, known)
        self._wake()
        return await self._told(known)

    async def _told(self, campaign: CampaignState) -> CampaignsFound:
        return CampaignsFound(campaigns=await with_counts(self._store, (campaign,)))

    async def _answer(self, ask: Received[AnswerQuestion]) -> Message:
        order = ask.message
        (known,) = await self._store.read(rows.question_page, AskQuestions(id=order.question), 1) or (None,)
        if known is None:
            return QuestionsFound(questions=())
        async with self._store.transaction() as transaction:
            # The locks' order: campaigns, hosts, then questions.
            campaign: CampaignState | None = None
            found: Mapping[Any, CampaignHost] = {}
            if known.campaign is not None:
                campaign = await transaction.run(rows.lock_campaign, known.campaign)
                held = await transaction.run(rows.hosts_at, known.campaign, HELD, CAMPAIGN_HOSTS_MAX)
                about = [each.id for each in held] if known.host_id is None else [known.host_id]
                found = await transaction.run(rows.lock_hosts, known.campaign, about)
            known = await transaction.run(rows.lock_question, order.question) or known
            if known.life == "answered" and known.answer == order.answer:
                return QuestionsFound(questions=(known,))
            if known.life != "open":
                why = f"it is {known.life}: {known.reason or f'{known.answer} by {known.by}'}"
                return rejected("question", order.question, why)
            if order.answer not in (known_answers := [each.answer for each in known.choices]):
                return rejected("answer", order.answer, f"answer {' or '.join(known_answers)}")
            if known.campaign is not None:
                stage = "asked" if known.host_id is not None else "held"
                hosts = [each for each in found.values() if each.stage == stage]
                if not hosts or campaign is None:
                    now_at = ", ".join(sorted({each.stage for each in found.values()})) or "gone"
                    return rejected("question", order.question, f"host {known.host} is {now_at}")
                await self._go_on(transaction, campaign, hosts, order.answer, ask.by)
            known = closed(known, "answered", self._clock(), answer=order.answer, by=ask.by)
            await transaction.run(rows.save_question, known)
        self._wake()
        return QuestionsFound(questions=(known,))

    async def _go_on(
        self,
        transaction: Transaction,
        campaign: CampaignState,
        hosts: Sequence[CampaignHost],
        answer: str,
        by: str,
    ) -> None:
        """What becomes of these hosts after this answer of this person."""
        now = self._clock()
        after = [
            after_answer_of(each, answer, by, now)
            if each.stage == "asked"
            else after_answer_to_all(each, campaign.work, answer, by, now)
            for each in hosts
        ]
        await transaction.run(rows.save_hosts, campaign.id, after)
        asked = [question_about(campaign, each) for each in after if each.stage == "asked"]
        await transaction.run(rows.ask, asked)

    async def _on_power(self, said: Sequence[Received[NodePower]]) -> list[Said]:
        """Ask about nodes that have lost their power; what is asked about those that have it again does not matter any more."""
        news = [each.message for each in said]
        told = await self._schedulers.instances(sorted({each.instance for each in news if each.instance}))
        now = self._clock()
        asked = [
            question_about_power(each, told.get(each.instance) if each.instance else None, now)
            for each in news
        ]
        # All keepers lock questions in the order of ids.
        asked.sort(key=lambda each: each.id)
        async with self._store.transaction() as transaction:
            await transaction.run(rows.ask, asked)
            for void in (each for each in asked if each.life == "void"):
                known = await transaction.run(rows.lock_question, void.id)
                if known is not None and known.life == "open":
                    await transaction.run(rows.save_question, closed(known, "void", now, reason=void.reason))
        self._wake()
        return []

    async def _set_budget(self, ask: Received[SetBudget]) -> Message:
        budget = ask.message.budget
        if wrong := wrong_budget(budget):
            return rejected(*wrong)
        state = BudgetState(budget=budget, by=ask.by, set_at=self._clock())
        async with self._store.transaction() as transaction:
            await transaction.run(rows.lock_ledger)
            await transaction.run(rows.save_budget, state)
        self._wake()
        return BudgetsFound(budgets=(state,))

    async def _delete_budget(self, ask: Received[DeleteBudget]) -> Message:
        async with self._store.transaction() as transaction:
            await transaction.run(rows.lock_ledger)
            gone = await transaction.run(rows.delete_budget, ask.message.name)
        self._wake()
        return BudgetsFound(budgets=(gone,) if gone else ())


def _each(answer: Callable[[Received[Any]], Awaitable[Message]]) -> ReadOnly:
    """A handler of orders that carries out each of them by itself, in transactions of its own."""

    async def on_orders(asks: Sequence[Received[Message]]) -> list[Said]:
        return [Answer(ask, await answer(ask)) for ask in asks]

    return ReadOnly(on_orders)


async def with_counts(store: KeeperStore, some: Sequence[CampaignState]) -> tuple[CampaignState, ...]:
    ids = [each.id for each in some]
    stages, lives = await store.read(rows.count_stages, ids), await store.read(rows.count_lives, ids)
    return tuple([counted(each, stages, lives) for each in some])


class Questions:
    def __init__(
        self,
        schedulers: Schedulers,
        store: KeeperStore,
        policies: PolicyBook,
        balancing: Balancing,
        clock: Callable[[], datetime],
    ) -> None:
        self._schedulers = schedulers
        self._policies = policies
        self._balancing = balancing
        self._hosts = CampaignHosts(schedulers)
        self._store = store
        self._clock = clock

    def handlers(self) -> Handlers:
        return {
            AskCampaigns: answering(self._campaigns),
            AskMovements: answering(self._movements),
            AskQuestions: answering(self._questions),
            AskBudgets: answering(self._budgets),
            AskPolicies: answering(self._policies.found),
            AskCampaignPlan: answering(self._plan),
            AskKeepingWeeks: answering(self._weeks),
            Unreadable: ReadOnly(_on_unreadable),
        }

    async def _campaigns(self, question: AskCampaigns) -> Message:
        if question.campaign:
            called = await self._store.read(rows.campaigns_called, question.campaign)
            if not called:
                return CampaignsFound(campaigns=())
            hosts = await self._store.read(
                rows.host_page, called[0].id, question.after_host, question.limit + 1
            )
            page = tuple(hosts[: question.limit])
            return CampaignsFound(
                campaigns=await with_counts(self._store, called),
                hosts=page,
                next_host=page[-1].id if len(hosts) > question.limit else None,
            )
        found = await self._store.read(
            rows.campaign_page, question.after, question.limit + 1, ended=question.ended
        )
        some = found[: question.limit]
        return CampaignsFound(
            campaigns=await with_counts(self._store, some),
            next=some[-1].id if len(found) > question.limit else None,
        )

    async def _movements(self, question: AskMovements) -> Message:
        campaign = None
        if question.campaign:
            called = await self._store.read(rows.campaigns_called, question.campaign)
            if not called:
                return MovementsFound(movements=())
            campaign = called[0].id
        found = await self._store.read(rows.movement_page, question, campaign, question.limit + 1)
        page = tuple(found[: question.limit])
        return MovementsFound(movements=page, next=page[-1].id if len(found) > question.limit else None)

    async def _questions(self, question: AskQuestions) -> Message:
        found = await self._store.read(rows.question_page, question, question.limit + 1)
        page = tuple(found[: question.limit])
        return QuestionsFound(questions=page, next=page[-1].id if len(found) > question.limit else None)

    async def _budgets(self, question: AskBudgets) -> Message:
        known = [
            each
            for each in await self._store.read(rows.all_budgets)
            if each.budget.name > question.after and question.name in ("", each.budget.name)
        ]
        page = known[: question.limit]
        going, recent = (
            await self._store.read(rows.going),
            await self._store.read(rows.granted_since, self._clock() - HOUR),
        )
        used = [structs.replace(each, use=told_use(Use(each.budget, going, recent))) for each in page]
        return BudgetsFound(budgets=tuple(used), next=page[-1].budget.name if len(known) > len(page) else "")

    async def _plan(self, question: AskCampaignPlan) -> Message:
        work = question.work
        if wrong := wrong_work(work):
            return rejected(*wrong)
        if work.kind == "balance":
            return await self._plan_of_balance(work)
        hosts = await self._hosts.of(work)
        if isinstance(hosts, BuildRejected):
            return hosts
        names = {(each.cell, each.host): named(each) for each in hosts}
        on = await self._schedulers.guests_on([*names.values()], enough=PLANNED_MAX + 1)
        found = [each for guests in on.values() for each, _ in guests]
        guests = found[:PLANNED_MAX]
        away = () if work.kind == "restart" else hosts
        plans = await self._schedulers.plan([each.id for each in guests], work, away)
        planned = tuple(
            [
                PlannedMovement(
                    instance=each.id,
                    name=each.name,
                    project=each.project,
                    host=names.get((each.cell, each.host), each.host),
                    to=plans[each.id].to if each.id in plans else "",
                    reason=plans[each.id].reason if each.id in plans else "no scheduler knows it",
                )
                for each in guests
            ]
        )
        fits, stays = Counter[str](), Counter[str]()
        for one in planned:
            (fits if one.to else stays)[one.host] += 1
        return CampaignPlanned(
            hosts=tuple(
                [
                    structs.replace(each, left=fits[name], stay=stays[name])
                    for each, name in zip(hosts, names.values(), strict=True)
                ]
            ),
            guests=len(guests),
            fit=sum(bool(each.to) for each in planned),
            movements=planned,
            more=len(found) > PLANNED_MAX,
            seconds=await self._seconds_for(len(guests)),
            limit=await self._tightest(work),
        )

    async def _weeks(self, question: AskKeepingWeeks) -> Message:
        since = self._clock() - timedelta(weeks=question.weeks)
        campaigns = await with_counts(self._store, await self._store.read(rows.campaigns_since, since))
        losses = [host for host, is_late in await self._store.read(rows.losses_since, since, ()) if is_late]
        return KeepingWeeksFound(weeks=weeks_of(campaigns, losses, since))

    async def _plan_of_balance(self, work: CampaignWork) -> Message:
        plan = await self._balancing.plan(work)
        if isinstance(plan, BuildRejected):
            return plan
        gives = Counter(each.guest.host for each in plan.steps)
        return CampaignPlanned(
            hosts=tuple(
                [structs.replace(each, stage="giving", left=gives[named(each)]) for each in plan.hosts_of()]
            ),
            guests=len(plan.guests),
            fit=len(plan.steps),
            movements=plan.movements(),
            seconds=await self._seconds_for(len(plan.steps)),
            limit=await self._tightest(work),
            before=plan.before,
            after=plan.after,
        )

    async def _seconds_for(self, moves: int) -> int | None:
        """How long so many moves would take at the rate of the latest ones."""
        count, first = await self._store.read(rows.ended_since, self._clock() - RATE_OVER)
        took = (self._clock() - first).total_seconds() if first else 0.0
        return round(moves * took / count) if count else None

    async def _tightest(self, work: CampaignWork) -> str:
        """What lets the fewest guests move at once."""
        budgets = [each.budget for each in await self._store.read(rows.all_budgets)]
        limits = [(each.at_once, f"budget {each.name}") for each in budgets if each.at_once is not None]
        return min([*limits, (work.guests_at_once, "guests_at_once")])[1]


async def _on_unreadable(asks: Sequence[Received[Unreadable]]) -> list[Said]:
    wrong = [(ask, ask.message) for ask in asks]
    said = [Answer(ask, rejected(each.field or "message", each.value, each.reason)) for ask, each in wrong]
    return [*said, *(Bury(ask, each.reason) for ask, each in wrong)]
