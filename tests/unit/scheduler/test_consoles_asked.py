"""A scheduler passes a question for a console on to the instance's cell, for those who may see the instance."""

import asyncio
from typing import Any

import pytest
from msgspec import structs

from bus.messages.cell import AskConsole, ConsoleFound, ConsoleTold, TellConsole
from bus.workers.handling import Answer, ReadOnly
from kit.errors import Undeliverable
from scheduler_worker import cell_questions
from scheduler_worker.cell_questions import ConsoleRelay
from scheduler_worker.store import AdoptedRow
from tests.stores_in_memory import MemorySchedulerStore
from tests.unit.scheduler.test_cells import NOON, Sending
from tests.unit.scheduler.test_moves_at_api_level import ONE, a_row
from tests.unit.scheduler.test_scheduler_handlers import an_ask

pytestmark = pytest.mark.asyncio


class Asked:
    """A question for the console of an instance in cell c1, of the project `shop`."""

    def __init__(self, problem: Exception | None = None, **told: Any) -> None:
        self.station = Sending(problem)
        self._told = told

    async def found(self, *answers: Any, project: str = "shop", answer_s: float = 1000.0) -> ConsoleFound:
        """The answer, if the cell tells these, with the question's name in place of theirs."""
        store = MemorySchedulerStore()
        async with store.transaction() as tx:
            await tx.adopt([AdoptedRow(a_row(**self._told), 0, b"")])
        relay = ConsoleRelay(self.station, {}, store, clock=lambda: NOON, answer_s=answer_s)
        running = asyncio.create_task(relay.run())
        await asyncio.sleep(0)
        handler = relay.question_handlers()[AskConsole]
        assert isinstance(handler, ReadOnly)
        ask = an_ask(AskConsole(instance=ONE, start=5, limit=9, project=project), reply_to="answers.me.1")
        said = [*await handler.handle([ask]), *await handler.handle([ask])]
        while not said and not (sent := [each for each in self.station.sent if each.to]):
            for order in self.orders if answers else ():
                for each in answers:
                    relay.hear(each(order))
            await asyncio.sleep(0)
        await relay.stop()
        await running
        message = said[0].message if said and isinstance(said[0], Answer) else sent[0].message
        assert isinstance(message, ConsoleFound)
        return message

    @property
    def orders(self) -> list[TellConsole]:
        return [each.message for each in self.station.sent if isinstance(each.message, TellConsole)]


def told(order: TellConsole, cell: str = "c1") -> ConsoleTold:
    return ConsoleTold(
        cell=cell, question=order.question, text="login: ", start=5, next=12, size=12, attempt=2
    )


async def test_the_compute_of_its_cell_is_asked_once_and_what_it_tells_is_the_answer() -> None:
    asked = Asked()

    found = await asked.found(lambda order: told(order, cell="c2"), told)

    assert found == ConsoleFound(text="login: ", start=5, next=12, size=12, attempt=2)
    (order,) = asked.orders
    assert (order.cell, order.instance, order.start, order.limit, order.asked_at) == ("c1", ONE, 5, 9, NOON)


async def test_an_instance_of_another_project_is_not_known_and_no_cell_is_asked() -> None:
    asked = Asked()

    assert await asked.found(project="other") == ConsoleFound(none=f"there is no instance {ONE}")
    assert asked.orders == []


async def test_an_instance_in_no_cell_has_no_console() -> None:
    found = await Asked(state="accepted", cell="").found()

    assert found.none == "the instance is accepted and in no cell: it has no console"


async def test_a_cell_that_tells_nothing_or_cannot_be_asked_is_named() -> None:
    silent = await Asked().found(answer_s=0.001)
    unreachable = await Asked(Undeliverable("no queue takes it")).found()

    assert silent.none == "cell c1: no compute has told it within 0.001 s"
    assert unreachable.none == "cell c1: no queue takes it"


async def test_what_is_told_of_another_question_is_no_answer() -> None:
    found = await Asked().found(lambda order: structs.replace(told(order), question="another"), told)

    assert found.text == "login: "


async def test_beyond_the_limit_of_questions_that_wait_the_asker_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cell_questions, "WAITING_MAX", 0)

    assert (await Asked().found()).none == "200 questions wait for cells already: ask again later"
