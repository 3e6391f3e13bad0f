"""Contract of all brokers: questions are answered, or asked again until they are."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from bus.broker import Broker
from bus.messages.books import AskUsages
from bus.messages.hosts import AskHosts
from bus.messages.placement import AskSnapshot, LogPosition, SnapshotPage
from bus.workers.connections import NoAnswer, Station
from bus.workers.consuming import Subscription
from bus.workers.handlers import Answer, Received, Said
from bus.workers.worker import Worker
from kit.errors import AccessRefused
from tests.contracts.broker_under_test import SHOP, BrokerUnderTest
from tests.contracts.stage import CELLS, SETTINGS, Remembering, declared, order, station
from tests.running import running
from tests.varied import varied
from tests.waiting import until

QUESTIONS = "placement.questions"


class Answering(Remembering):
    """Answers each question with its number."""

    def __init__(self, gate: asyncio.Event | None = None) -> None:
        super().__init__(gate=gate)
        self.numbers: list[int] = []

    async def on_question(self, asks: Sequence[Received[AskSnapshot]], _: None) -> Sequence[Said]:
        self.numbers += [ask.message.after for ask in asks]
        if self._gate is not None:
            await self._gate.wait()
        return [
            Answer(ask, SnapshotPage(providers=(), published=LogPosition(term=1, position=ask.message.after)))
            for ask in asks
        ]


@asynccontextmanager
async def answering(broker: Broker, answers: Answering) -> AsyncIterator[Station]:
    here = Station(broker, "answerer", settings=SETTINGS)
    worker = Worker(here, Subscription(QUESTIONS, {AskSnapshot: answers.on_question}, answers))
    async with running((worker,), here):
        yield here


async def ask(client: Station, *numbers: int) -> list[int]:
    answers = await client.ask_all([AskSnapshot(after=n) for n in numbers])
    return [answer.published.position for answer in answers if isinstance(answer, SnapshotPage)]


@pytest.mark.hits("the broker accepts nothing: %s; messages wait here")
async def test_under_an_alarm_a_question_is_asked_once_and_one_that_was_given_up_never(
    under_test: BrokerUnderTest, broker: Broker
) -> None:
    answers = Answering()

    async with answering(broker, answers), station(broker, asks=True) as client:
        assert await ask(client, 1) == [1]
        asked_again = client.asked_again
        await under_test.set_alarm(on=True)
        # RabbitMQ tells a publisher of an alarm only after it has published something.
        telling = client.publisher.send(order(1))
        await until(lambda: client.publisher.is_held)
        before = client.publisher.waiting
        patient = asyncio.ensure_future(ask(client, 2, 3))
        given_up = asyncio.ensure_future(ask(client, 4, 5))
        await until(lambda: client.publisher.waiting == before + 4)
        given_up.cancel()
        await until(lambda: client.publisher.waiting == before + 2)
        # Longer than the interval of repeats.
        await asyncio.wait((patient,), timeout=5 * SETTINGS.ask_again_ms / 1000)
        assert client.asked_again == asked_again
        await under_test.set_alarm(on=False)
        assert await patient == [2, 3]
        await telling
        assert await ask(client, 6) == [6]

    # On a slow machine an answer may take longer than the interval of repeats, when there is no alarm.
    assert {*answers.numbers} == {1, 2, 3, 6}
    assert len(answers.numbers) <= 4 + client.asked_again


@pytest.mark.hits("questions are given up: no answer came in time")
async def test_nobody_answering_in_time_is_said_so(broker: Broker) -> None:
    impatient = varied(SETTINGS, ask_again_ms=20, answer_timeout_ms=80)
    async with station(broker, settings=impatient, asks=True) as client:
        with pytest.raises(NoAnswer, match="2 of 2 questions unanswered after 80 ms"):
            await client.ask_all([AskSnapshot(), AskSnapshot(after=1)])


@pytest.mark.hits(
    "questions without an answer are asked again",
    "an answer is ignored: the question has one, or was given up",
)
async def test_a_question_whose_answer_is_late_is_asked_again_and_one_answer_counts(broker: Broker) -> None:
    gate = asyncio.Event()
    answers = Answering(gate)

    async with answering(broker, answers), station(broker, asks=True) as client:
        late = asyncio.ensure_future(ask(client, 1))
        await until(lambda: client.asked_again > 0)
        gate.set()
        assert await late == [1]
        # Answers keep their order, so that of the copy comes before this one.
        assert await ask(client, 2) == [2]

    assert {*answers.numbers} == {1, 2}


async def test_a_refused_question_fails_its_own_caller_and_no_other(under_test: BrokerUnderTest) -> None:
    await declared(under_test)
    await under_test.add_users((SHOP.user,), CELLS)

    async with station(under_test.broker(SHOP.user), asks=True) as client:
        client.raise_refusals()
        allowed = asyncio.ensure_future(client.ask(AskUsages(project="shop")))
        found = await asyncio.gather(*(client.ask(AskHosts()) for _ in range(3)), return_exceptions=True)

        assert [type(each) for each in found] == [AccessRefused] * 3
        done, _ = await asyncio.wait((allowed,), timeout=0.5)
        assert not done, "it waits for placement"
        allowed.cancel()
