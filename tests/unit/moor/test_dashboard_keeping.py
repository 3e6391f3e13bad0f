"""The pages of keeping: what they say of questions, campaigns, movements, budgets and domains, and the orders that lead there."""

import re
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from msgspec import structs

from bus.message import Message
from bus.messages.build import BuildRejected
from bus.messages.hosts import AskHosts, ClassAmounts, HostsFound, HostUse
from bus.messages.keeping import (
    AskBudgets,
    AskCampaigns,
    AskKeepingWeeks,
    AskMovements,
    BudgetsFound,
    BudgetState,
    BudgetUse,
    CampaignHost,
    CampaignId,
    CampaignsFound,
    CampaignState,
    CampaignWork,
    HostStage,
    KeepingWeek,
    KeepingWeeksFound,
    MoveBudget,
    Movement,
    MovementId,
    MovementsFound,
    SetCampaign,
    StartCampaign,
)
from bus.messages.questions import (
    AnswerQuestion,
    AskQuestions,
    PossibleAnswer,
    Question,
    QuestionId,
    QuestionsFound,
)
from engine.hosts import HostSetting, HostState
from engine.inventories import ProviderId
from tests.unit.moor.dashboard_visits import GARDENS, SCRIPT, SHOPS, FakeCloud, Visit

CAMPAIGN = CampaignId(UUID(int=3))
KERNEL = CampaignState(
    id=CAMPAIGN,
    name="kernel",
    work=CampaignWork(place="dc1/hall2", reason=SCRIPT),
    hosts={"emptying": 1, "waiting": 1, "done": 2},
    movements={"done": 1, "moving": 1, "given_up": 1},
)


QUESTION = Question(
    id=QuestionId(UUID(int=5)),
    campaign=CAMPAIGN,
    host_id=ProviderId(UUID(int=4)),
    cell="c1",
    host="h4",
    text=f"Is host h4 off? {SCRIPT}",
    choices=(
        PossibleAnswer(answer="off", does="it is set dead"),
        PossibleAnswer(answer="leave", does="nothing is done with it"),
    ),
    asked_at=datetime(2026, 12, 1, 12, tzinfo=UTC),
)


def a_host(number: int, place: str = "", used: int = 0, **changes: Any) -> tuple[HostState, int]:
    host = HostState(id=ProviderId(UUID(int=number)), name=f"h{number}", cell="c1", up=True, place=place)
    return structs.replace(host, **changes), used


HOSTS = (
    a_host(1, "dc1/hall2/rack1", 100),
    a_host(2, "dc1/hall2/rack1", 55),
    a_host(3, "dc1/hall2/rack2", setting=HostSetting(mode="draining")),
    a_host(4, "dc1/hall2"),
    a_host(5, up=False, silent_since=datetime(2026, 12, 1, 11, tzinfo=UTC)),
    a_host(6, setting=HostSetting(mode="down")),
    a_host(7, must_clean=True),
    a_host(8, setting=HostSetting(mode="dead"), up=False),
)


class KeptCloud(FakeCloud):
    """A cloud of these hosts, with a campaign that goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.life = "running"
        self.question = QUESTION

    async def ask(self, question: Message) -> Message:  # noqa: PLR0911 - one for each question
        match question:
            case AskHosts(name=""):
                uses = [
                    HostUse(host=host.id, classes={"VCPU": ClassAmounts(used=used, capacity=100)})
                    for host, used in HOSTS
                ]
                return HostsFound(hosts=tuple(host for host, _ in HOSTS), uses=tuple(uses))
            case AskCampaigns():
                emptying = CampaignHost(
                    id=HOSTS[2][0].id, host="h3", cell="c1", stage="emptying", left=1, moved=3, stay=1
                )
                waits = CampaignHost(id=HOSTS[3][0].id, host="h4", cell="c1")
                state = structs.replace(KERNEL, life=self.life)
                return CampaignsFound(
                    campaigns=(state,), hosts=(emptying, waits) if question.campaign else ()
                )
            case AskKeepingWeeks():
                week = KeepingWeek(week="2026-W49", lost=3, recovered=2, seconds=75, balances=1, steps=17)
                return KeepingWeeksFound(weeks=(week,))
            case AskMovements(life=life):
                moves, stays = a_movement(1, "moving"), a_movement(2, "given_up", reason="no host has room")
                return MovementsFound(movements=(stays,) if life == "given_up" else (moves,))
            case AskQuestions():
                return QuestionsFound(questions=(self.question,))
            case AnswerQuestion(answer=answer):
                self.ordered.append(question)
                self.question = structs.replace(QUESTION, life="answered", answer=answer)
                return QuestionsFound(questions=(self.question,))
            case AskBudgets():
                use = BudgetUse(of="dc1/hall2", at_once=4)
                budget = MoveBudget(name="halls", scope="domain", level=2, at_once=5, quiet=("22:00-06:00",))
                return BudgetsFound(budgets=(BudgetState(budget=budget, use=use),))
            case StartCampaign():
                self.ordered.append(question)
                return CampaignsFound(
                    campaigns=(structs.replace(KERNEL, id=question.id, work=question.work),)
                )
            case SetCampaign():
                self.ordered.append(question)
                self.life = {"pause": "paused", "resume": "running", "cancel": "cancelled"}[question.to]
                return CampaignsFound(campaigns=(structs.replace(KERNEL, life=self.life),))
        return await super().ask(question)


def a_movement(number: int, life: Any, reason: str = "") -> Movement:
    return Movement(
        id=MovementId(UUID(int=number)),
        instance=(SHOPS, GARDENS)[number - 1],
        campaign=CAMPAIGN,
        cause="campaign kernel",
        cell="c1",
        host="h3",
        life=life,
        reason=reason,
    )


class RecoveredCloud(KeptCloud):
    """The campaign recovers lost hosts: h4 is emptied, and h3 waits for an answer."""

    async def ask(self, question: Message) -> Message:
        found = await super().ask(question)
        if not isinstance(found, CampaignsFound):
            return found
        work = CampaignWork(kind="evacuate", hosts=("h3",), by_policy=True)
        stages: tuple[HostStage, ...] = ("held", "done")
        return structs.replace(
            found,
            campaigns=(structs.replace(KERNEL, work=work),),
            hosts=tuple(
                [
                    structs.replace(each, stage=stage)
                    for each, stage in zip(found.hosts, stages, strict=bool(found.hosts))
                ]
            ),
        )


async def test_lost_hosts_are_told_with_what_becomes_of_them(visit: Visit) -> None:
    root = await (await visit(RecoveredCloud())).logged_in("root")
    page = (await root.get("/keeping")).text.partition("<h2>Lost hosts</h2>")[2].partition("<h2>")[0]
    words = [(each in page) for each in ("suspected", "waits for an answer", "recovered")]
    assert words == [True, True, True]
    assert [f">{host}<" in page for host in ("h3", "h4", "h5", "h1")] == [True, True, True, False]


async def test_one_page_has_the_campaigns_what_moves_the_budgets_and_the_cloud_by_domains(
    visit: Visit,
) -> None:
    root = await (await visit(KeptCloud())).logged_in("root")

    page = (await root.get("/keeping")).text

    # In the list, and above its hosts.
    assert page.count(f'<a href="/campaigns/{CAMPAIGN}">kernel</a>') == 2
    assert "drain domain dc1/hall2" in page
    # Of the hosts those that are out, with a bar.
    assert ("3 / 5" in page, ">h3<" in page, ">h4<" in page) == (True, True, False)
    assert ("no host has room" in page, str(SHOPS) in page, str(GARDENS) in page) == (True, True, True)
    assert ("each domain of level 2" in page, "4 / 5" in page, "22:00-06:00" in page) == (True, True, True)
    assert (f"/questions/{QUESTION.id}" in page, "off | leave" in page, "Is host h4 off?" in page) == (
        True,
        True,
        True,
    )
    # A silent host, of which no campaign has said anything yet.
    assert (">h5<" in page, "suspected" in page, "2026-12-01 11:00:00 UTC" in page) == (True, True, True)
    assert ("2026-W49" in page, "2 / 3" in page, "0:01:15" in page) == (True, True, True)
    assert SCRIPT not in page
    tiles = re.findall(r'data-cell="([^"]*)" data-open="([^"]*)" data-tiles="([^"]*)"', page)
    assert tiles == [
        ("no place", "/domains/~", "sdcx"),
        ("dc1/hall2", "/domains/~dc1/hall2", "0"),
        ("dc1/hall2/rack1", "/domains/~dc1/hall2/rack1", "f5"),
        ("dc1/hall2/rack2", "/domains/~dc1/hall2/rack2", "r"),
    ]
    assert "4 of 4 hosts up" in page
    for place, number, host in (("dc1/hall2/rack1", 1, "h2"), ("dc1/hall2", 0, "h4"), ("", 3, "h8")):
        opened = await root.get(f"/domains/~{place}/{number}")
        assert opened.headers["location"] == f"/hosts/c1/{host}"
    for path, status in (("dc1/0", 404), ("dc1/hall2/rack1/2", 404), ("dc2/0", 404), ("/x", 400)):
        assert (await root.get(f"/domains/~{path}")).status_code == status


async def test_a_campaign_is_paused_resumed_and_cancelled_by_its_page_and_only_by_operators(
    visit: Visit,
) -> None:
    cloud = KeptCloud()
    visited = await visit(cloud)
    root, ann = await visited.logged_in("root"), await visited.logged_in("ann")
    path = f"/campaigns/{CAMPAIGN}"
    said = []
    for to in ("pause", "resume", "cancel"):
        page = (await root.get(path)).text
        order = f"/orders/campaign?campaign={CAMPAIGN}&to={to}"
        assert order.replace("&", "&amp;") in page
        assert (await ann.get(order)).status_code == 403
        said.append(re.findall(r"The campaign kernel is (\w+)\.", (await root.order(order)).text))

    assert said == [["paused"], ["running"], ["cancelled"]]
    assert cloud.ordered == [
        SetCampaign(campaign=str(CAMPAIGN), to=to, for_user="root") for to in ("pause", "resume", "cancel")
    ]
    assert "/orders/campaign" not in (await root.get(path)).text
    over = await root.get(f"/orders/campaign?campaign={CAMPAIGN}&to=pause")
    assert (over.status_code, "kernel is cancelled already" in over.text) == (400, True)
    assert (await root.get(f"/orders/campaign?campaign={CAMPAIGN}&to=stop")).status_code == 400
    assert (await ann.get(path)).status_code == 403


async def test_a_question_is_answered_once_by_its_page_and_only_by_operators(visit: Visit) -> None:
    cloud = KeptCloud()
    visited = await visit(cloud)
    root, ann = await visited.logged_in("root"), await visited.logged_in("ann")
    path, order = f"/questions/{QUESTION.id}", f"/orders/answer?question={QUESTION.id}&answer=off"
    page = (await root.get(path)).text
    assert (order.replace("&", "&amp;") in page, "it is set dead" in page, SCRIPT in page) == (
        True,
        True,
        False,
    )
    assert ((await ann.get(path)).status_code, (await ann.get(order)).status_code) == (403, 403)
    assert (await root.get(order.replace("off", "perhaps"))).status_code == 400

    assert "The question about host h4 is answered: off." in (await root.order(order)).text
    assert cloud.ordered == [AnswerQuestion(question=QUESTION.id, answer="off", for_user="root")]
    assert "/orders/answer" not in (await root.get(path)).text
    over = await root.get(order)
    assert (over.status_code, "The question is answered already" in over.text) == (400, True)


async def test_a_drain_and_an_evacuation_begin_a_campaign_whose_page_follows(visit: Visit) -> None:
    cloud = KeptCloud()
    root = await (await visit(cloud)).logged_in("root")

    drained = await root.order("/orders/drain?host=h1", reason="new disk")
    cloud.hosts["h1"] = structs.replace(cloud.hosts["h1"], up=False)
    evacuated = await root.order("/orders/evacuate?host=h1", sure="yes")

    drain, evacuation = [each for each in cloud.ordered if isinstance(each, StartCampaign)]
    assert drain.work == CampaignWork(hosts=("c1/h1",), guests_at_once=10, reason="new disk")
    assert evacuation.work == CampaignWork(kind="evacuate", hosts=("c1/h1",), guests_at_once=50, wait_s=86400)
    for order, job in ((drain, drained), (evacuation, evacuated)):
        assert order.for_user == "root"
        # A form that is sent twice is one campaign.
        assert str(order.id) in job.url.path
        assert f'<a href="/campaigns/{order.id}">How far it is</a>' in job.text


async def test_a_campaign_that_is_refused_says_why(visit: Visit) -> None:
    class Refusing(KeptCloud):
        async def ask(self, question: Message) -> Message:
            if isinstance(question, StartCampaign):
                why = "campaign kernel has it"
                return BuildRejected(request_id=None, field="work.hosts", value="c1/h1", reason=why)
            return await super().ask(question)

    root = await (await visit(Refusing())).logged_in("root")
    refused = await root.order("/orders/drain?host=h1")
    assert (refused.status_code, "campaign kernel has it" in refused.text) == (409, True)
