"""What each page costs, counted: how many questions it asks, how many rows it has, how many bytes. A cloud of 10,000 hosts and more instances
than a page has must not make a page larger. And a member's page asks about their project alone.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from bus.addresses import Addresses
from bus.memory import MemoryBroker
from bus.message import Message
from bus.messages.build import AskInstances, BuildRejected, InstancesFound, InstanceState
from bus.messages.cloud import AskOverview, AskTiles, CellState, Overview, Tiles
from bus.messages.hosts import AggregatesFound, AggregateState, AskAggregates, AskHosts, HostsFound
from bus.messages.keeping import (
    AskBudgets,
    AskCampaigns,
    AskKeepingWeeks,
    AskMovements,
    BudgetsFound,
    BudgetState,
    CampaignHost,
    CampaignId,
    CampaignsFound,
    CampaignState,
    CampaignWork,
    KeepingWeek,
    KeepingWeeksFound,
    MoveBudget,
    Movement,
    MovementId,
    MovementsFound,
)
from bus.messages.moves import AskHistory, AskMoves, Change, HistoryFound, MovePlace, MovesFound
from bus.messages.planning import AskExplanation, AskPlan, Explanation, ExplanationsFound, PlanFound
from bus.messages.projects import AskGroups, GroupsFound, GroupState
from bus.messages.questions import AskQuestions, QuestionsFound
from bus.workers.connections import NoAnswer
from engine.flavors import InstanceId, RequestId
from engine.hosts import HostState
from engine.inventories import AggregateId, GroupId, ProviderId
from engine.refusals import FunnelStep, Miss, NoValidHost
from ironic_sync.store_sql import IronicStore
from kit.sql import upgrade
from moor.client import Client
from moor.dashboard import node_pages
from moor.dashboard.resource_pages import INSTANCE_LIST, ResourcePages
from moor.settings import Settings
from scheduler_worker.core.project_view import seen_by_project
from tests.unit.examples.keeping import QUESTION
from tests.unit.moor.dashboard_visits import Visit
from tests.waiting import until

AT = datetime(2026, 1, 1, tzinfo=UTC)
CELLS, HOSTS = 2, 5_000
ID = UUID(int=7)
STATES = tuple(
    InstanceState(
        id=InstanceId(UUID(int=at + 1)),
        request_id=RequestId(ID),
        sequence=1,
        state="active",
        name=f"web-{at}",
        cell="c1",
        host=f"c1-host-{at:05d}",
    )
    for at in range(100)
)
SECRETS = ("h-17: full", "h-18", "its disk is broken")
FUNNEL = NoValidHost(
    hosts=10_000,
    steps=(FunnelStep(step="capacity", removed=10_000, example=SECRETS[0]),),
    nearest=(Miss(host=SECRETS[1], reason=f"draining: {SECRETS[2]}"),),
)
PLANNED = PlanFound(qualify=0, fit=0, is_cut=False, cells=(), funnel=FUNNEL)
CHANGE = Change(instance=STATES[0].id, number=1, what="migrate", cell="c1", asked_at=AT)
CAMPAIGN = CampaignState(
    id=CampaignId(ID),
    name="kernel",
    work=CampaignWork(place="dc1"),
    hosts={"done": 1, "waiting": 999},
    movements={"done": 1, "given_up": 2},
)
CAMPAIGN_HOST = CampaignHost(id=ProviderId(ID), host="h1", cell="c1", stage="emptying", left=3, moved=1)
MOVEMENT = Movement(
    id=MovementId(ID),
    instance=STATES[0].id,
    campaign=CAMPAIGN.id,
    cause="campaign kernel",
    cell="c1",
    host="h1",
)
ANSWERS: Mapping[type[Message], Callable[[Any], Message]] = {
    AskInstances: lambda ask: InstancesFound(
        instances=STATES[:1] if ask.instances else STATES, next=None if ask.instances else STATES[-1].id
    ),
    AskHistory: lambda _: HistoryFound(instance=STATES[0], changes=(CHANGE,)),
    AskExplanation: lambda _: ExplanationsFound(explanations=(Explanation(state=STATES[0]),), plan=PLANNED),
    AskMoves: lambda ask: MovesFound(
        moves=(CHANGE,) * 100, next=MovePlace(asked_at=AT, instance=CHANGE.instance) if ask.ended else None
    ),
    AskHosts: lambda ask: HostsFound(
        hosts=tuple(
            HostState(id=ProviderId(UUID(int=at)), name=f"c1-host-{at:05d}", cell="c1", up=True)
            for at in range(1 if ask.name else 100)
        ),
        next="" if ask.name or ask.after else "c1-host-00099",
    ),
    AskGroups: lambda _: GroupsFound(
        groups=tuple(GroupState(id=GroupId(UUID(int=at)), policy="affinity", name="g") for at in range(100)),
        next=GroupId(ID),
    ),
    AskAggregates: lambda _: AggregatesFound(
        aggregates=tuple(AggregateState(id=AggregateId(UUID(int=at)), name=f"a{at}") for at in range(100)),
        next="a99",
    ),
    AskCampaigns: lambda ask: CampaignsFound(
        campaigns=(CAMPAIGN,)
        if ask.campaign
        else tuple(structs.replace(CAMPAIGN, id=CampaignId(UUID(int=at))) for at in range(20)),
        hosts=(CAMPAIGN_HOST,) * 500 if ask.campaign else (),
        next=None if ask.campaign else CAMPAIGN.id,
        next_host=None if ask.after_host else CAMPAIGN_HOST.id,
    ),
    AskMovements: lambda _: MovementsFound(movements=(MOVEMENT,) * 100, next=MOVEMENT.id),
    AskQuestions: lambda _: QuestionsFound(questions=(QUESTION,) * 100, next=QUESTION.id),
    AskBudgets: lambda _: BudgetsFound(
        budgets=(BudgetState(budget=MoveBudget(name="b", scope="cloud", at_once=5)),)
    ),
    AskKeepingWeeks: lambda _: KeepingWeeksFound(weeks=(KeepingWeek(week="2026-W49"),) * 12),
    AskPlan: lambda _: PLANNED,
    AskTiles: lambda ask: Tiles(
        in_cell=ask.in_cell, made_at=AT, tiles="3" * HOSTS, hosts=HOSTS, names=("h",) if ask.named else ()
    ),
    AskOverview: lambda _: Overview(
        made_at=AT,
        scheduler="s1",
        cells=tuple(
            CellState(cell=f"c{at}", life="up", hosts=HOSTS, hosts_up=HOSTS, instances=50_000)
            for at in range(1, CELLS + 1)
        ),
    ),
}
# For each page: its questions by type, and the most rows and bytes that it may have.
COSTS: Mapping[str, tuple[Mapping[type[Message], int], int, int]] = {
    "/": ({}, 40, 25_000),
    "/workers": ({}, 100, 20_000),
    "/instances": ({AskInstances: 1}, 101, 40_000),
    f"/instances/{STATES[0].id}": ({AskInstances: 1, AskHistory: 1, AskExplanation: 1}, 10, 10_000),
    "/hosts": ({AskHosts: 1}, 101, 40_000),
    "/hosts/c1/c1-host-00001": ({AskHosts: 1, AskInstances: 1}, 101, 40_000),
    "/tiles/c1/4999": ({}, 0, 100),
    "/waiting": ({AskInstances: 1}, 101, 40_000),
    "/moves": ({AskMoves: 1}, 101, 40_000),
    # Of each of 20 campaigns its 1,000 hosts, and what it has given up; and all hosts of the cloud.
    "/keeping": (
        {
            AskCampaigns: 42, AskMovements: 21, AskBudgets: 1, AskQuestions: 1, AskHosts: 2,
            AskKeepingWeeks: 1,
        },
        820,
        350_000,
    ),
    "/campaigns": ({AskCampaigns: 1}, 101, 30_000),
    f"/campaigns/{ID}": ({AskCampaigns: 2, AskMovements: 2}, 303, 120_000),
    "/movements": ({AskMovements: 1}, 101, 50_000),
    "/groups": ({AskGroups: 1}, 101, 30_000),
    "/aggregates": ({AskAggregates: 1}, 101, 30_000),
    "/why?vcpus=1": ({AskPlan: 1}, 5, 10_000),
    "/nodes": ({}, 0, 5_000),
}  # fmt: skip


class LargeCloud:
    """Answers each question by a whole page, and counts the questions, but those of who watches."""

    def __init__(self) -> None:
        self.asked = Counter[type[Message]]()
        self.projects: list[str | None] = []

    async def ask(self, question: Message) -> Message:
        if not isinstance(question, AskOverview | AskTiles):
            self.asked[type(question)] += 1
            self.projects.append(getattr(question, "project", None))
        answer = ANSWERS[type(question)](question)
        if getattr(question, "for_member", False):
            return seen_by_project(answer, lambda word: word in SECRETS)
        return answer


@pytest.mark.parametrize("path", COSTS)
async def test_a_page_asks_few_questions_and_stays_small(path: str, visit: Visit) -> None:
    questions, rows_max, bytes_max = COSTS[path]
    asking = LargeCloud()
    root = (await visit(asking, auth="none")).browser()
    await until(lambda: root.get("/"), "the page has the cell", lambda page: "c1" in page.text)

    page = await root.get(path)

    assert page.status_code in (200, 303), page.text
    assert asking.asked == questions
    assert page.text.count("<tr>") <= rows_max
    assert len(page.content) <= bytes_max


async def test_the_next_page_of_a_list_is_of_the_same_list(visit: Visit) -> None:
    root = (await visit(LargeCloud(), auth="none")).browser()

    for path, filtered in (
        ("/moves?ended=1", "ended=1"),
        ("/instances?part=web&order=name", "part=web&amp;order=name"),
    ):
        page = (await root.get(path)).text
        (following,) = [part for part in page.split("<a ") if "The next page" in part]
        assert filtered in following
        later = (await root.get(unescape(following.partition('href="')[2].partition('"')[0]))).text
        assert "The first page" in later
        assert filtered in later


async def test_a_member_is_told_why_not_without_names_of_hosts_and_reasons_of_operators(visit: Visit) -> None:
    visited = await visit(LargeCloud())
    root, ann = await visited.logged_in("root"), await visited.logged_in("ann")
    for path in ("/why?vcpus=1", f"/instances/{STATES[0].id}?now=1"):
        told, shown = (await root.get(path)).text, (await ann.get(path)).text
        assert all(secret in told for secret in SECRETS)
        assert not any(secret in shown for secret in SECRETS)
        assert "10,000 hosts" in shown


PAGES_OF_MEMBERS = (
    *("/instances", f"/instances/{STATES[0].id}?now=1", "/groups", f"/groups/{ID}"),
    *("/why?vcpus=1", "/why?vcpus=1&project=garden"),
)


@pytest.mark.parametrize("path", PAGES_OF_MEMBERS)
async def test_a_page_of_a_member_asks_about_their_project(path: str, visit: Visit) -> None:
    asking = LargeCloud()
    ann = await (await visit(asking)).logged_in("ann")

    page = await ann.get(path)

    assert page.status_code == 200, page.text
    assert {*asking.projects} == {"shop"}


async def test_the_live_list_of_a_member_is_that_of_their_project(visit: Visit) -> None:
    asking = LargeCloud()
    ann = await (await visit(asking)).logged_in("ann")

    async with ann.stream("GET", "/instances/live") as stream:
        await anext(stream.aiter_raw())

    assert {*asking.projects} == {"shop"}


class Silent:
    async def ask(self, question: Message) -> Message:
        if isinstance(question, AskInstances):
            return BuildRejected(request_id=None, field="x", value="y", reason="not today")
        raise NoAnswer("1 of 1 questions unanswered after 10000 ms")


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/instances", 400, "not today"),
        *((path, 503, "No worker answers") for path in ("/hosts", "/keeping", "/groups", "/why?vcpus=1")),
    ],
)
async def test_a_page_without_an_answer_says_why(path: str, status: int, said: str, visit: Visit) -> None:
    page = await (await visit(Silent(), auth="none")).browser().get(path)

    assert (page.status_code, said in page.text) == (status, True)


async def test_pages_that_come_at_once_open_the_daemons_database_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []

    class SlowStore(IronicStore):
        async def has_tables(self) -> bool:
            opened.append(self)
            await asyncio.sleep(0.05)
            return await super().has_tables()

    monkeypatch.setattr(node_pages, "IronicStore", SlowStore)
    url = f"sqlite+aiosqlite:///{tmp_path}/moor.db"
    await upgrade(url, "ironic_sync")
    addresses = Addresses(bus_url="memory://", ironic_db_url=url)
    reader = node_pages.MetalReader(Settings(addresses=addresses, data=tmp_path))

    seen = await asyncio.gather(*(reader.node(ProviderId(ID)) for _ in range(3)), reader.nodes())

    await reader.close()
    assert (seen[:3], len(opened)) == ([None] * 3, 1)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (None, "no instances"),
        (InstanceId(UUID(int=7)), "no instances so far: the next page goes on"),
    ],
)
def test_an_empty_page_with_more_behind_it_says_so(place: InstanceId | None, said: str) -> None:
    pages = ResourcePages(Client(MemoryBroker().as_user()))

    table = pages._table(INSTANCE_LIST, InstancesFound(instances=(), next=place), is_later=False)  # noqa: SLF001

    assert table.nothing == said
