"""What an answer to a keeper's question does to the host that it is about: on both databases."""

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

import pytest
from msgspec import structs

from bus.message import Message
from bus.messages.build import BuildRejected
from bus.messages.keeping import CampaignHost, CampaignState
from bus.messages.questions import AnswerQuestion, Question, QuestionsFound
from bus.workers.handlers import Answer, ReadOnly, Received
from keeper import store_sql as rows
from keeper.asking import Schedulers
from keeper.balancing import Balancing
from keeper.core.campaigns import staged
from keeper.core.fencing import question_about
from keeper.handlers import Orders
from keeper.hooks import Hooks
from keeper.policies import PolicyBook
from keeper.store_sql import KeeperStore
from tests.contracts.stores import STORES, open_keeper_store
from tests.contracts.test_keeper_store import NOON, begin, host

LATER = NOON + timedelta(minutes=1)


class Asked:
    """A host of a campaign that may not be off."""

    def __init__(self, store: KeeperStore, campaign: CampaignState) -> None:
        self._store = store
        self._campaign = campaign
        self.woken = 0
        schedulers, hooks = Schedulers(self._asks_nothing), Hooks("")
        policies = PolicyBook(schedulers, store, hooks, lambda: LATER)
        balancing = Balancing(schedulers, store, lambda: LATER)
        orders = Orders(schedulers, store, hooks, policies, balancing, clock=lambda: LATER, wake=self._wake)
        self._handler = orders.handlers()[AnswerQuestion]

    async def _asks_nothing(self, _: Sequence[Message]) -> Sequence[Message]:
        raise AssertionError("an answer asks nobody")

    def _wake(self) -> None:
        self.woken += 1

    async def ask(self, why: str, at: timedelta = timedelta()) -> Question:
        """Its host comes to this stage, and a person is asked."""
        asked = staged(host(1, fence="power-off"), "asked", NOON + at, why)
        question = question_about(self._campaign, asked)
        async with self._store.transaction() as transaction:
            await transaction.run(rows.save_hosts, self._campaign.id, [asked])
            await transaction.run(rows.ask, [question])
        return question

    async def host(self) -> CampaignHost:
        return (await self._store.read(rows.host_page, self._campaign.id, None, 1))[0]

    async def save(self, after: CampaignHost) -> None:
        async with self._store.transaction() as transaction:
            await transaction.run(rows.save_hosts, self._campaign.id, [after])

    async def answer(self, question: Question, answer: str) -> Message:
        message = AnswerQuestion(question=question.id, answer=answer, for_user="ann")
        received = Received(
            message=message, id="7", trace="", sender="moor-operator", reply_to="client", attempts=0
        )
        assert isinstance(self._handler, ReadOnly)
        (said,) = await self._handler.handle([received])
        assert isinstance(said, Answer)
        return said.message


@pytest.fixture(params=STORES)
async def asked(request: pytest.FixtureRequest) -> AsyncIterator[Asked]:
    async with open_keeper_store(request.param) as store:
        yield Asked(store, await begin(store))


async def test_an_answer_that_came_twice_is_done_once(asked: Asked) -> None:
    question = await asked.ask("no power")
    first = await asked.answer(question, "off")
    again = await asked.answer(question, "off")

    assert isinstance(first, QuestionsFound)
    assert first == again
    assert (first.questions[0].life, first.questions[0].by) == ("answered", "moor-operator for ann")
    assert ((await asked.host()).stage, asked.woken) == ("fenced", 1)


async def test_an_answer_to_an_earlier_question_decides_nothing(asked: Asked) -> None:
    first = await asked.ask("no power")
    await asked.answer(first, "again")
    await asked.ask("no power again", timedelta(seconds=5))
    refused = await asked.answer(first, "off")

    assert isinstance(refused, BuildRejected)
    assert (refused.field, refused.value) == ("question", str(first.id))
    assert refused.reason == "it is answered: again by moor-operator for ann"
    assert (await asked.host()).stage == "asked"


async def test_a_host_that_has_gone_on_is_not_decided_on(asked: Asked) -> None:
    question = await asked.ask("no power")
    await asked.save(staged(await asked.host(), "failed", LATER, "it is up again"))
    refused = await asked.answer(question, "off")

    assert isinstance(refused, BuildRejected)
    assert refused.reason == "host h1 is failed"
    assert (await asked.host()).stage == "failed"


async def test_an_answer_that_there_is_not_is_refused(asked: Asked) -> None:
    question = await asked.ask("no power")
    refused = await asked.answer(question, "perhaps")
    unknown = await asked.answer(structs.replace(question, id=question.campaign), "off")

    assert isinstance(refused, BuildRejected)
    assert (refused.field, refused.value, refused.reason) == (
        "answer",
        "perhaps",
        "answer off or again or leave",
    )
    assert unknown == QuestionsFound(questions=())
    assert ((await asked.host()).stage, asked.woken) == ("asked", 0)
