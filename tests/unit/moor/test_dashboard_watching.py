"""The watcher of the dashboard goes on whatever is answered, and who may read what is decided before a question is sent."""

import asyncio
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from bus.addresses import Addresses
from bus.message import Message
from bus.messages.build import BuildRejected
from bus.messages.cloud import Overview
from bus.workers.station import NoAnswer
from kit.errors import Unavailable
from kit.keystone import OpenStackSettings
from moor.dashboard.access import Access, SessionStore
from moor.dashboard.actions import Actions, Clouds
from moor.dashboard.cloud_pages import CloudPages, Watcher
from moor.dashboard.instance_pages import InstancePages
from moor.dashboard.letters import LetterPages, LetterReader
from moor.dashboard.node_pages import MetalReader, NodePages
from moor.dashboard.service import dashboard_app
from moor.settings import Settings
from placement_worker.api.auth import Authentication
from placement_worker.api.values import Caller

pytestmark = pytest.mark.asyncio

SETTINGS = Settings(addresses=Addresses(bus_url="unix:///nowhere/bus.sock"), data=Path("/nowhere"))


class Refusing:
    """Answers every question by a rejection."""

    def __init__(self) -> None:
        self.asked: list[Message] = []

    async def ask(self, question: Message) -> Message:
        self.asked.append(question)
        return BuildRejected(request_id=None, field="x", value="y", reason="not today")


class As(Authentication):
    """Authenticates everybody as this caller, or as nobody."""

    def __init__(self, caller: Caller | None) -> None:
        self._caller = caller

    async def caller(self, headers: object, address: str = "") -> Caller:
        del headers, address
        if self._caller is None:
            raise Unavailable("the identity service is away")
        return self._caller


def app_of(caller: Caller | None, asking: Any, watcher: Watcher) -> Starlette:
    """The dashboard as this caller gets it. `asking` answers in place of a station on the bus."""
    letters = LetterPages(LetterReader(watcher.brokers))
    access = Access(As(caller), SessionStore(), port=1)
    actions = Actions(access, Clouds(asking, letters.reader, nullcontext))  # type: ignore[arg-type]
    nodes = NodePages(MetalReader(SETTINGS, OpenStackSettings))
    return dashboard_app(
        CloudPages(asking, watcher), InstancePages(asking), nodes, letters, actions, hosts=["testserver"]
    )


async def answers(caller: Caller | None, path: str, asking: Refusing) -> httpx.Response:
    app = app_of(caller, asking, Watcher(asking, SETTINGS))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:
        return await client.get(path)


async def test_a_rejected_question_is_told_and_asked_again() -> None:
    asking = Refusing()
    watcher = Watcher(asking, SETTINGS, every_s=0.01)
    running = asyncio.create_task(watcher.run())
    async with asyncio.timeout(10):
        while len(asking.asked) < 3:
            await asyncio.sleep(0.01)

    assert "not today" in watcher.trouble
    await watcher.stop()
    await running


async def test_a_caller_without_a_project_sees_nothing() -> None:
    asking = Refusing()
    for path in ("/instances", "/why?vcpus=1", "/"):
        answer = await answers(Caller(user="u", project=""), path, asking)
        assert (answer.status_code, asking.asked) == (403, [])


async def test_an_identity_service_that_is_away_is_said() -> None:
    answer = await answers(None, "/instances", Refusing())

    assert (answer.status_code, "away" in answer.text) == (503, True)


async def test_a_rejection_is_a_page_that_says_why() -> None:
    answer = await answers(Caller(user="u", project="shop"), "/instances", Refusing())

    assert (answer.status_code, "not today" in answer.text) == (400, True)


class Silent(Refusing):
    """Answers nothing."""

    async def ask(self, question: Message) -> Message:
        self.asked.append(question)
        raise NoAnswer("1 of 1 questions unanswered after 10000 ms")


async def test_a_page_says_that_no_scheduler_answers() -> None:
    for path in ("/instances", "/hosts", "/groups", "/why?vcpus=1"):
        answer = await answers(Caller(user="u", project="", roles=frozenset({"admin"})), path, Silent())
        assert (answer.status_code, "No scheduler answers" in answer.text) == (503, True), path
    overview = await answers(Caller(user="u", project="", roles=frozenset({"admin"})), "/", Silent())
    assert (overview.status_code, "No scheduler has answered yet" in overview.text) == (200, True)


class Overviews:
    """Answers every question for an overview by an empty one, and counts them."""

    def __init__(self) -> None:
        self.count = 0

    async def ask(self, _question: Message) -> Message:
        self.count += 1
        return Overview(made_at=datetime.now(UTC), scheduler="s1")


async def test_it_looks_seldom_while_nobody_does_and_at_once_when_somebody_comes() -> None:
    asking = Overviews()
    watcher = Watcher(asking, SETTINGS, every_s=0.01)
    running = asyncio.create_task(watcher.run())
    async with asyncio.timeout(10):
        while watcher.seen is None:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        assert asking.count == 1

        watcher.is_looked_at()
        while asking.count < 3:
            await asyncio.sleep(0.01)
    assert len(watcher.hour) >= asking.count - 1
    await watcher.stop()
    await running


async def test_an_open_stream_counts_as_somebody() -> None:
    asking = Overviews()
    watcher = Watcher(asking, SETTINGS, every_s=0.01)
    running = asyncio.create_task(watcher.run())
    async with asyncio.timeout(10):
        news = watcher.news()
        for _ in range(4):
            await anext(news)
        await news.aclose()  # type: ignore[attr-defined]  # it is a generator
    assert asking.count >= 3
    await watcher.stop()
    await running
