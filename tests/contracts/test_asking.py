"""Questions are answered, or asked again until they are. On every broker."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from msgspec import structs

from bus.asking import NoAnswer
from bus.broker import Broker
from bus.handling import Answer, Received, Said
from bus.messages.placement import AskSnapshot, LogPosition, SnapshotPage
from bus.station import Station
from tests.contracts.broker_under_test import BrokerUnderTest
from tests.contracts.stage import SETTINGS, Remembering, declared, station, until

pytestmark = pytest.mark.asyncio

QUESTIONS = "placement.questions"


class Answering(Remembering):
    """Answers every question with its own number."""

    def __init__(self, gate: asyncio.Event | None = None) -> None:
        super().__init__(gate=gate)
        self.asked = 0

    async def on_question(self, asks: Sequence[Received[AskSnapshot]], _: None) -> Sequence[Said]:
        self.asked += len(asks)
        if self._gate is not None:
            await self._gate.wait()
        return [
            Answer(ask, SnapshotPage(providers=(), published=LogPosition(term=1, position=ask.message.after)))
            for ask in asks
        ]


@asynccontextmanager
async def answering(broker: Broker, answers: Answering) -> AsyncIterator[Station]:
    here = Station(broker, "answerer", settings=SETTINGS)
    worker = here.worker(QUESTIONS, {AskSnapshot: answers.on_question}, answers)
    running = asyncio.create_task(worker.run())
    try:
        yield here
    finally:
        await worker.stop()
        await running
        await here.close()


async def ask(client: Station, *numbers: int) -> list[int]:
    answers = await client.ask_all([AskSnapshot(after=n) for n in numbers])
    return [answer.published.position for answer in answers if isinstance(answer, SnapshotPage)]


async def test_many_questions_are_answered_each_with_its_own_answer(under_test: BrokerUnderTest) -> None:
    broker = await declared(under_test)

    async with answering(broker, Answering()), station(broker, asks=True) as client:
        first, second = await asyncio.gather(ask(client, *range(300)), ask(client, *range(300, 310)))

    assert first == list(range(300))
    assert second == list(range(300, 310))


async def test_a_question_is_asked_again_until_somebody_answers(under_test: BrokerUnderTest) -> None:
    broker = await declared(under_test)

    async with station(broker, asks=True) as client:
        asking = asyncio.ensure_future(ask(client, 7))
        await until(lambda: client.asked_again > 0)
        async with answering(broker, Answering()):
            assert await asking == [7]


async def test_a_question_survives_a_cut_connection(under_test: BrokerUnderTest) -> None:
    broker = await declared(under_test)
    gate = asyncio.Event()
    answers = Answering(gate)

    async with answering(broker, answers), station(broker, asks=True) as client:
        asking = asyncio.ensure_future(ask(client, 1, 2, 3))
        await until(lambda: answers.asked >= 3)
        await under_test.cut_connections()
        gate.set()
        assert await asking == [1, 2, 3]


async def test_an_answer_whose_asker_has_gone_is_dropped_and_counted(under_test: BrokerUnderTest) -> None:
    broker = await declared(under_test)
    gate = asyncio.Event()
    answers = Answering(gate)

    async with answering(broker, answers) as there:
        async with station(broker, asks=True) as client:
            asking = asyncio.ensure_future(ask(client, 1))
            await until(lambda: answers.asked >= 1)
            asking.cancel()
        gate.set()
        await until(lambda: there.publisher.answers_dropped > 0)


async def test_nobody_answering_in_time_is_said_so(under_test: BrokerUnderTest) -> None:
    broker = await declared(under_test)
    impatient = Station(
        broker,
        "impatient",
        settings=structs.replace(SETTINGS, ask_again_ms=20, answer_timeout_ms=80),
        asks=True,
    )
    running = asyncio.create_task(impatient.run())

    with pytest.raises(NoAnswer, match="2 of 2 questions unanswered after 80 ms"):
        await impatient.ask_all([AskSnapshot(), AskSnapshot(after=1)])

    await impatient.stop()
    await running
    await impatient.close()
