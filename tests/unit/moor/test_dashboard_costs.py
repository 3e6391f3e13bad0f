"""What each page costs, counted: how many questions it asks, how many rows it has, how many bytes. A cloud of 10,000 hosts and more instances
than a page has must not make a page larger. And a member's page asks about their project alone.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import StreamingResponse

from bus.message import Message
from bus.messages.build import AskInstances, InstancesFound, InstanceState
from bus.messages.cloud import AskOverview, AskTiles, CellState, Overview, Tiles
from bus.messages.hosts import AggregatesFound, AggregateState, AskAggregates, AskHosts, HostsFound
from bus.messages.moves import AskHistory, AskMoves, Change, HistoryFound, MovesFound
from bus.messages.planning import AskExplanation, AskPlan, Explanation, ExplanationsFound, PlanFound
from bus.messages.stored_names import AskGroups, GroupsFound, GroupState
from engine.flavors import InstanceId, RequestId
from engine.hosts import HostState
from engine.inventories import AggregateId, GroupId, ProviderId
from engine.refusals import FunnelStep, NoValidHost
from moor.dashboard.cloud_pages import Watcher
from moor.dashboard.instance_pages import InstancePages
from moor.dashboard.rendering import Reader
from placement_worker.api.values import Caller
from tests.unit.moor.test_dashboard_watching import SETTINGS, app_of

pytestmark = pytest.mark.asyncio

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
FUNNEL = NoValidHost(hosts=10_000, steps=(FunnelStep(step="capacity", removed=10_000, example="h: full"),))
CHANGE = Change(instance=STATES[0].id, number=1, what="migrate", cell="c1", asked_at=AT)
ANSWERS: Mapping[type[Message], Callable[[Any], Message]] = {
    AskInstances: lambda ask: InstancesFound(
        instances=STATES[:1] if ask.instances else STATES, next=STATES[-1].id
    ),
    AskHistory: lambda _: HistoryFound(instance=STATES[0], changes=(CHANGE,)),
    AskExplanation: lambda _: ExplanationsFound(explanations=(Explanation(state=STATES[0]),)),
    AskMoves: lambda _: MovesFound(moves=(CHANGE,) * 100),
    AskHosts: lambda _: HostsFound(
        hosts=tuple(
            HostState(id=ProviderId(UUID(int=at)), name=f"c1-host-{at:05d}", cell="c1", up=True)
            for at in range(100)
        ),
        next="c1-host-00099",
    ),
    AskGroups: lambda _: GroupsFound(
        groups=tuple(GroupState(id=GroupId(UUID(int=at)), policy="affinity", name="g") for at in range(100)),
        next=GroupId(ID),
    ),
    AskAggregates: lambda _: AggregatesFound(
        aggregates=tuple(AggregateState(id=AggregateId(UUID(int=at)), name=f"a{at}") for at in range(100)),
        next="a99",
    ),
    AskPlan: lambda _: PlanFound(qualify=0, fit=0, is_cut=False, cells=(), funnel=FUNNEL),
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
    "/tiles/c1/4999": ({AskTiles: 1}, 0, 100),
    "/waiting": ({AskInstances: 1}, 101, 40_000),
    "/moves": ({AskMoves: 1}, 101, 40_000),
    "/groups": ({AskGroups: 1}, 101, 30_000),
    "/aggregates": ({AskAggregates: 1}, 101, 30_000),
    "/why?vcpus=1": ({AskPlan: 1}, 5, 10_000),
    "/nodes": ({}, 0, 5_000),
}  # fmt: skip


class LargeCloud:
    """Answers each question by a whole page, and counts the questions."""

    def __init__(self) -> None:
        self.asked = Counter[type[Message]]()
        self.projects: list[str | None] = []

    async def ask(self, question: Message) -> Message:
        self.asked[type(question)] += 1
        self.projects.append(getattr(question, "project", None))
        return ANSWERS[type(question)](question)


async def watching(asking: LargeCloud) -> Watcher:
    """A watcher that has looked once."""
    watcher = Watcher(asking, SETTINGS)
    running = asyncio.create_task(watcher.run())
    async with asyncio.timeout(10):
        while watcher.seen is None:
            await asyncio.sleep(0.01)
    await watcher.stop()
    await running
    return watcher


async def test_a_look_asks_for_one_overview_and_a_page_of_tiles_for_each_cell() -> None:
    asking = LargeCloud()

    watcher = await watching(asking)

    assert asking.asked == {AskOverview: 1, AskTiles: CELLS}
    assert watcher.seen is not None
    assert {cell: len(tiles) for cell, tiles in watcher.seen.tiles.items()} == {"c1": HOSTS, "c2": HOSTS}


@pytest.mark.parametrize("path", COSTS)
async def test_a_page_asks_few_questions_and_stays_small(path: str) -> None:
    questions, rows_max, bytes_max = COSTS[path]
    asking = LargeCloud()
    watcher = await watching(asking)
    asking.asked.clear()
    app = app_of(Caller(user="root", project="", roles=frozenset({"admin"})), asking, watcher)

    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:
        page = await client.get(path)

    assert page.status_code in (200, 303), page.text
    assert asking.asked == questions
    assert page.text.count("<tr>") <= rows_max
    assert len(page.content) <= bytes_max


PAGES_OF_MEMBERS = (
    *("/instances", f"/instances/{STATES[0].id}?now=1", "/groups", f"/groups/{ID}"),
    *("/why?vcpus=1", "/why?vcpus=1&project=garden"),
)


@pytest.mark.parametrize("path", PAGES_OF_MEMBERS)
async def test_a_page_of_a_member_asks_about_their_project(path: str) -> None:
    asking = LargeCloud()
    app = app_of(Caller(user="ann", project="shop"), asking, Watcher(asking, SETTINGS))

    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:
        page = await client.get(path)

    assert page.status_code == 200, page.text
    assert {*asking.projects} == {"shop"}


async def test_the_live_list_of_a_member_is_that_of_their_project() -> None:
    asking = LargeCloud()
    request = Request({"type": "http", "method": "GET", "path": "/", "headers": (), "query_string": b""})

    live = await InstancePages(asking).live_instances(request, Reader("ann", "shop", is_admin=False))  # type: ignore[arg-type]
    assert isinstance(live, StreamingResponse)
    await anext(aiter(live.body_iterator))

    assert asking.projects == ["shop"]
