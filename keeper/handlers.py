"""The keeper's queues: which message goes to which handler.

queue              handlers
keeper.requests    `Orders`: campaigns are begun and set, questions are answered, budgets are written
                   `PolicyOrders` (policies.py): policies are written
keeper.questions   `Questions`: campaigns, movements, questions to persons, budgets, plans, policies

An order asks schedulers first, and writes in one transaction then; a repeated one finds what it has written, and is answered as before.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import structs

from bus.message import Message
from bus.messages.build import BuildRejected
from bus.messages.keeping import (
    CAMPAIGN_HOSTS_MAX,
    PLANNED_MAX,
    AskBudgets,
    AskCampaignPlan,
    AskCampaigns,
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
from engine.hosts import HostState, host_in_cell, names_clash
from keeper import store_sql as rows
from keeper.asking import Schedulers, forgotten, named
from keeper.core.campaigns import HELD, rejected, wrong_work
from keeper.core.fencing import after_answer_of, after_answer_to_all, closed, question_about
from keeper.core.grants import HOUR, Use, told_use, wrong_budget
from keeper.hooks import Hooks
from keeper.policies import PolicyBook
from keeper.store_sql import KeeperStore, counted

LIVES: Mapping[str, CampaignLife] = {"pause": "paused", "resume": "running", "cancel": "cancelled"}
# The rate of movements is that of the last minutes.
RATE_OVER = timedelta(minutes=15)


class CampaignHosts:
    """Finds the hosts that a campaign is over."""

    def __init__(self, schedulers: Schedulers) -> None:
        self._schedulers = schedulers

    async def of(self, work: CampaignWork) -> list[CampaignHost] | BuildRejected:
        """The hosts in the order of their turns: those with the fewest guests first, so that their room takes the guests of the others."""
        found = await (self._named(work) if work.hosts else self._schedulers.hosts_for(work))
        if isinstance(found, BuildRejected):
            return found
        if not found:
            asked_for = f"cell {work.cell or 'any'}, place {work.place or 'any'}, mode {work.mode or 'any'}"
            return rejected("work.hosts", "", f"no host has this: {asked_for}")
        if len(found) > CAMPAIGN_HOSTS_MAX:
            return rejected(
                "work.hosts", len(found), f"a campaign is over at most {CAMPAIGN_HOSTS_MAX} hosts"
            )
        wrong = next((each for each in found if each.up is (work.kind == "evacuate")), None)
        if wrong is not None:
            why = "is up, so nothing is evacuated: set it down first" if wrong.up else "is down: evacuate it"
            return rejected("work.hosts", host_in_cell(wrong.cell, wrong.name), f"host {wrong.name} {why}")
        found.sort(key=lambda each: (each.instances, each.cell, each.name))
        return [
            CampaignHost(id=each.id, host=each.name, cell=each.cell, place=each.place, fence=work.fence)
            for each in found
        ]

    async def _named(self, work: CampaignWork) -> list[HostState] | BuildRejected:
        found: dict[object, HostState] = {}
        called = await self._schedulers.hosts_called(dict.fromkeys(work.hosts))
        for name, known in called.items():
            hosts = known or await self._forgotten(name, work)
            if len(hosts) != 1:
                cells = sorted({each.cell for each in hosts})
                return rejected("work.hosts", name, names_clash(name, cells) if hosts else "no such host")
            found[hosts[0].id] = hosts[0]
        return [*found.values()]

    async def _forgotten(self, name: str, work: CampaignWork) -> Sequence[HostState]:
        """A host that schedulers have forgotten may still have guests to evacuate."""
        if work.kind != "evacuate":
            return ()
        guests = (await self._schedulers.guests_on((name,)))[name]
        cells = sorted({(each.cell, each.host) for each, _ in guests})
        return [forgotten(cell, host) for cell, host in cells]


class Orders:
    def __init__(
        self,
        schedulers: Schedulers,
        store: KeeperStore,
        hooks: Hooks,
        policies: PolicyBook,
        *,
        clock: Callable[[], datetime],
        wake: Callable[[], None],
    ) -> None:
        self._store = store
        self._hooks = hooks
        self._policies = policies
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
        hosts = self._why_wrong(order.work) or await self._hosts.of(order.work)
        if isinstance(hosts, BuildRejected):
            return hosts
        async with self._store.transaction() as transaction:
            await transaction.run(rows.lock_ledger)
            # It may have come twice at the same time.
            if (same := await transaction.run(rows.lock_campaign, order.id)) is not None:
                return await self._same(same, wanted)
            for other in await transaction.run(rows.campaigns_called, wanted.name):
                if other.ended_at is None:
                    why = f"campaign {other.id} of this name goes on: choose another name"
                    return rejected("name", wanted.name, why)
            taken = await transaction.run(rows.others_with, [each.id for each in hosts])
            free = [each for each in hosts if each.id not in taken]
            if taken and not (order.join and free):
                host = next(each for each in hosts if each.id in taken)
                why = f"campaign {taken[host.id].name} has it: wait for its end, or join to take only the hosts that no campaign has"
                return rejected("work.hosts", host_in_cell(host.cell, host.host), why)
            await transaction.run(rows.add_campaign, wanted)
            await transaction.run(rows.add_hosts, order.id, free)
        self._wake()
        return await self._told(wanted)

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
            stage = "asked" if known.host_id is not None else "held"
            hosts = [each for each in found.values() if each.stage == stage]
            if not hosts or campaign is None:
                now_at = ", ".join(sorted({each.stage for each in found.values()})) or "gone"
                return rejected("question", order.question, f"host {known.host} is {now_at}")
            now = self._clock()
            after = [
                after_answer_of(each, order.answer, ask.by, now)
                if each.stage == "asked"
                else after_answer_to_all(each, campaign.work, order.answer, ask.by, now)
                for each in hosts
            ]
            await transaction.run(rows.save_hosts, known.campaign, after)
            asked = [question_about(campaign, each) for each in after if each.stage == "asked"]
            await transaction.run(rows.ask, asked)
            known = closed(known, "answered", self._clock(), answer=order.answer, by=ask.by)
            await transaction.run(rows.save_question, known)
        self._wake()
        return QuestionsFound(questions=(known,))

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
        clock: Callable[[], datetime],
    ) -> None:
        self._schedulers = schedulers
        self._policies = policies
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
        count, first = await self._store.read(rows.ended_since, self._clock() - RATE_OVER)
        took = (self._clock() - first).total_seconds() if first else 0.0
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
            seconds=round(len(guests) * took / count) if count else None,
            limit=await self._tightest(work),
        )

    async def _tightest(self, work: CampaignWork) -> str:
        """What lets the fewest guests move at once."""
        budgets = [each.budget for each in await self._store.read(rows.all_budgets)]
        limits = [(each.at_once, f"budget {each.name}") for each in budgets if each.at_once is not None]
        return min([*limits, (work.guests_at_once, "guests_at_once")])[1]


async def _on_unreadable(asks: Sequence[Received[Unreadable]]) -> list[Said]:
    wrong = [(ask, ask.message) for ask in asks]
    said = [Answer(ask, rejected(each.field or "message", each.value, each.reason)) for ask, each in wrong]
    return [*said, *(Bury(ask, each.reason) for ask, each in wrong)]
