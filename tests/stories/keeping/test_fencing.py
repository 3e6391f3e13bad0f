"""A host that may still run is switched off before its guests are built anew; where that fails, a person is asked."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import structs

from bus.messages.build import BuildRejected
from bus.messages.hosts import AskHosts, HostsFound, SetHost
from bus.messages.keeping import CampaignHost, CampaignsFound, SetCampaign
from bus.messages.questions import AnswerQuestion, AskQuestions, Question, QuestionChanged, QuestionsFound
from keeper.settings import KeeperSettings
from keeper.store_sql import KeeperStore
from laboratory.computes.driver import SimulatedDriver
from laboratory.computes.faults import FaultScript
from laboratory.computes.hosts import SimulatedHost
from tests.contracts.stage import SETTINGS
from tests.contracts.stores import open_conductor_store, open_keeper_store
from tests.stories.cells.held_driver import HeldDriver
from tests.stories.cloud import cloud
from tests.stories.keeping.test_campaigns import Keeping, hook
from tests.stories.layouts import EMBEDDED, STAGES
from tests.stories.moves.test_moves import SILENT, Movers
from tests.waiting import Clock, until

DOWN_S = 3.0


class Fencing(Keeping):
    """A cloud whose host h1 falls silent when its time passes, while its guests go on, and is heard again later."""

    def __init__(self, here: Movers, rows: KeeperStore, held: Clock[float]) -> None:
        super().__init__(here, rows)
        self.held = held

    async def begin(self, **work: Any) -> None:
        """Its guests find a host, also if that was not heard for a moment since the machine is busy."""
        await self.start("h1", kind="evacuate", fence="power-off", wait_s=600, **work)

    async def questions(self, *, ended: bool = True) -> list[Question]:
        return [*(await self.cloud.ask(AskQuestions(ended=ended), QuestionsFound)).questions]

    async def asked(self) -> Question:
        (question,) = await until(lambda: self.questions(ended=False), "a person is asked")
        return question

    async def answer(self, question: Question, answer: str) -> Question:
        order = AnswerQuestion(question=question.id, answer=answer)
        return (await self.cloud.ask(order, QuestionsFound)).questions[0]

    async def not_taken(self, question: Question, answer: str) -> BuildRejected:
        return await self.cloud.ask(AnswerQuestion(question=question.id, answer=answer), BuildRejected)

    async def host(self) -> CampaignHost:
        return (await self.told()).hosts[0]

    async def fall_silent(self) -> None:
        self.held.pass_s(SILENT.after_s)
        await until(
            lambda: self.cloud.ask(AskHosts(name="h1"), HostsFound),
            "h1 is silent",
            lambda told: not told.hosts[0].up,
        )


@asynccontextmanager
async def fencing(bus: str, books: str, hooks: Path) -> AsyncIterator[Fencing]:
    held = Clock(0.0)
    quick = structs.replace(SETTINGS, host_down_s=DOWN_S)
    script = FaultScript(spawn_ms=0, receive_ms=0, faults=(SILENT,))
    hosts = [SimulatedHost(name=name) for name in ("h1", "h2")]
    async with (
        cloud(bus, books, scripted=("c2",)) as setup,
        setup.placement(),
        setup.scheduler(bus=quick),
        open_conductor_store(books, "c1") as cells,
        setup.conductor(cells, bus=quick),
        setup.computes(
            drivers=[HeldDriver(SimulatedDriver(host, script), held) for host in hosts], bus=quick
        ),
        open_keeper_store(books) as rows,
        setup.keeper(rows, settings=KeeperSettings(hooks_folder=str(hooks))),
    ):
        await setup.until_reported("h1", "h2")
        yield Fencing(Movers(setup), rows, held)


@STAGES
async def test_a_silent_host_is_switched_off_and_then_its_guests_are_built_anew(
    bus: str, books: str, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    hook(tmp_path, "power-off", f'echo "$1 $2 $MOOR_CAMPAIGN" >> {ran}')
    async with fencing(bus, books, tmp_path) as here:
        guests = [await here.here.booted(number, "h1") for number in (1, 2)]
        await here.fall_silent()
        assert (await here.refused("h1", kind="evacuate", fence="x")).field == "work.fence"
        assert (await here.refused("h2", fence="power-off")).field == "work.fence"
        await here.begin()
        ended = await here.until()

        assert ran.read_text() == "h1 c1 spring\n"
        assert (ended.hosts[0].stage, ended.hosts[0].fenced_by, ended.hosts[0].moved) == (
            "done",
            "power-off",
            2,
        )
        assert await here.mode_of("h1") == "dead"
        assert await here.hosts_of(guests) == {"h2"}
        assert await here.questions() == []


@EMBEDDED
async def test_where_it_fails_a_person_is_asked_once_and_the_answer_is_done(
    bus: str, books: str, tmp_path: Path
) -> None:
    hook(tmp_path, "power-off", "echo no answer of its controller; exit 3")
    async with fencing(bus, books, tmp_path) as here, here.cloud.listening("question.changed") as heard:
        guest = await here.here.booted(1, "h1")
        await here.fall_silent()
        await here.begin()
        first = await here.asked()
        assert "ended with code 3: no answer of its controller" in first.text
        assert [each.answer for each in first.choices] == ["off", "again", "leave"]
        assert (await here.host()).stage == "asked"
        assert await here.movements() == []

        wrong = await here.not_taken(first, "maybe")
        assert (wrong.field, wrong.value, wrong.reason) == ("answer", "maybe", "answer off or again or leave")
        assert (await here.answer(first, "again")).life == "answered"
        second = await here.asked()
        assert second.id != first.id
        assert (await here.not_taken(first, "off")).reason.startswith("it is answered: again")
        answered = await here.answer(second, "off")
        assert answered == await here.answer(second, "off")

        ended = await here.until()
        assert ended.hosts[0].fenced_by == (answered.by or "an operator")
        assert [each.id for each in await here.questions()] == [second.id, first.id]
        assert await here.mode_of("h1") == "dead"
        assert await here.hosts_of([guest]) == {"h2"}
        ends = {(first.id, "again"), (second.id, "off")}
        await until(
            lambda: {
                (each.question.id, each.question.answer)
                for each in heard
                if isinstance(each, QuestionChanged)
            },
            "the last of each is told",
            ends.issubset,
        )


@EMBEDDED
async def test_one_that_hangs_is_killed_and_a_host_may_be_left(bus: str, books: str, tmp_path: Path) -> None:
    hook(tmp_path, "power-off", "sleep 600 & sleep 600")
    async with fencing(bus, books, tmp_path) as here:
        guest = await here.here.booted(1, "h1")
        await here.fall_silent()
        await here.begin(fence_s=1)
        question = await here.asked()
        assert "was killed: it ran for more than 1 s" in question.text
        await here.answer(question, "leave")
        ended = await here.until()
        assert (ended.hosts[0].stage, await here.hosts_of([guest])) == ("failed", {"h1"})
        assert "left it" in ended.hosts[0].reason
        assert await here.mode_of("h1") == "up"


@EMBEDDED
async def test_a_question_that_does_not_matter_any_more_is_not_answered(
    bus: str, books: str, tmp_path: Path
) -> None:
    hook(tmp_path, "power-off", "exit 1")
    async with fencing(bus, books, tmp_path) as here:
        guest = await here.here.booted(1, "h1")
        await here.fall_silent()
        await here.begin()
        question = await here.asked()
        here.held.pass_s(SILENT.for_s)
        (void,) = await until(
            here.questions, "the host is back", lambda found: bool(found) and found[0].life == "void"
        )
        assert void.reason == "host h1 is failed: it is up again"
        assert (await here.not_taken(question, "off")).reason == f"it is void: {void.reason}"
        assert (await here.hosts_of([guest]), await here.movements()) == ({"h1"}, [])


@EMBEDDED
async def test_one_that_lies_is_found_out_when_the_host_is_heard(
    bus: str, books: str, tmp_path: Path
) -> None:
    """The program ends well, and the host goes on: nothing of it is built anew."""
    hook(tmp_path, "power-off", "exit 0")
    async with fencing(bus, books, tmp_path) as here:
        guest = await here.here.booted(1, "h1")
        await here.cloud.client.ask(SetHost(host="h1", mode="down", reason="it does strange things"))
        await here.begin()
        question = await here.asked()
        assert "power-off says that it is off, and it was heard since" in question.text
        assert (await here.hosts_of([guest]), await here.movements()) == ({"h1"}, [])
        assert await here.mode_of("h1") == "down"


@EMBEDDED
async def test_a_campaign_that_is_cancelled_while_a_fence_runs_ends_and_asks_nobody(
    bus: str, books: str, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    hook(tmp_path, "power-off", f"echo begun >> {ran}; sleep 600 & sleep 600")
    async with fencing(bus, books, tmp_path) as here:
        guest = await here.here.booted(1, "h1")
        await here.fall_silent()
        await here.begin(fence_s=2)
        await until(ran.exists, "the fence runs")
        await here.cloud.ask(SetCampaign(campaign="spring", to="cancel"), CampaignsFound)
        ended = await here.until("cancelled")
        assert (ended.hosts[0].stage, ended.hosts[0].reason) == ("skipped", "its campaign is cancelled")
        assert await here.questions(ended=False) == []
        assert (await here.hosts_of([guest]), await here.movements()) == ({"h1"}, [])
