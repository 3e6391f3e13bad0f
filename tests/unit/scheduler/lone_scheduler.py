"""A scheduler without placement, cells or a broker: messages in, messages out, and its rows and picture between them."""

import random
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID

from bus.memory import MemoryBroker
from bus.message import Message
from bus.messages.books import AskConsumer, AskQuotas, ConsumerFound, ConsumerState, QuotasFound
from bus.messages.build import BuildInstance, BuildRejected
from bus.messages.placement import ClaimAnswered, ClaimResources, ReleaseClaim
from bus.workers.connections import Station
from bus.workers.handlers import Answer, Handler, ReadOnly, Received, Said, Tell, Weighed
from engine.choosing.plugins import Plugins
from engine.hosts import HostState
from engine.picture.picture import Picture
from engine.refusals import Claimed
from scheduler_worker.settings import SchedulerPace, SchedulerSettings
from scheduler_worker.wiring import Deciders, Given, Knowledge, Queues, Sending
from tests.narrowing import must_be
from tests.plugins import standard_plugins
from tests.running import once
from tests.stores_in_memory import MemorySchedulerStore

M = TypeVar("M", bound=Message)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def an_ask(message: M, *, reply_to: str = "", attempts: int = 0) -> Received[M]:
    return Received(message=message, id="7", trace="", sender="", reply_to=reply_to, attempts=attempts)


async def _nothing() -> None: ...


class LoneScheduler:
    def __init__(
        self,
        settings: SchedulerSettings | None = None,
        *,
        picture: Picture | None = None,
        plugins: Plugins | None = None,
    ) -> None:
        self.store = MemorySchedulerStore()
        self.picture = picture or Picture()
        self.station = Station(MemoryBroker().as_user(), "s", asks=True)
        # What placement would say of these.
        self.consumers: dict[UUID, ConsumerState] = {}
        self.station.ask_all = self._as_placement  # type: ignore[method-assign]
        given = Given(
            station=self.station,
            cells={},
            cells_at={},
            store=self.store,
            settings=settings or SchedulerSettings(),
            pace=SchedulerPace(),
            clock=lambda: NOON,
            chance=random.Random(1),
            picture=self.picture,
            plugins=plugins or standard_plugins(),
        )
        known = Knowledge(given)
        # There is nothing more to know, and nobody to ask.
        known.replica.catch_up = _nothing  # type: ignore[method-assign]
        self.hosts = known.hosts
        sending = Sending(given)
        self.outbox = sending.outbox
        deciders = Deciders(given, known)
        self.spec_of = deciders.reader.spec_of
        queues = Queues(given, known, deciders, sending)
        self._requests = queues.requests
        self._events: Any = queues.events.subscription.handlers
        self._questions: Any = queues.questions.handlers

    async def has(self, hosts: Sequence[HostState]) -> None:
        """These hosts are registered, and heard."""
        await once(self.store.transaction, lambda tx: tx.save_hosts(hosts, NOON))
        self.hosts.learn(hosts)

    async def _as_placement(self, questions: Sequence[Message]) -> list[Message]:
        """No project has a limit, and each claim is granted."""
        return [
            ConsumerFound(consumer=self.consumers.get(each.consumer))
            if isinstance(each, AskConsumer)
            else ClaimAnswered(consumer=each.consumer, attempt=each.attempt, verdict=Claimed())
            if isinstance(each, ClaimResources)
            else QuotasFound(quotas=())
            for each in questions
            if isinstance(each, AskConsumer | ClaimResources | AskQuotas)
        ]

    async def handle(self, *messages: Message, attempts: int = 0) -> Sequence[Said]:
        handler = self._requests.handlers[type(messages[0])]
        asked = [an_ask(message, attempts=attempts, reply_to="answers.someone") for message in messages]
        if isinstance(handler, ReadOnly):
            return await handler.handle(asked)
        handle = handler.handle if isinstance(handler, Weighed) else handler
        return await once(self.outbox.transaction, lambda tx: handle(asked, tx))

    async def ask(self, question: Message) -> Message:
        (said,) = await self._questions[type(question)].handle([an_ask(question)])
        return must_be(Answer, said).message

    async def hear(self, event: Message) -> Sequence[Said]:
        """On the API level's broker."""
        handle: Handler = self._events[type(event)]
        return await once(self.outbox.transaction, lambda tx: handle([an_ask(event)], tx))

    async def bury(self, build: BuildInstance, *, with_a_row: bool = True) -> Sequence[Said]:
        """The worker's words before it makes a dead letter of a build. `with_a_row=False`: the database has refused each row of it."""
        end, release = self._requests.before_burial[BuildInstance]
        handle = end if with_a_row else release
        return await once(self.outbox.transaction, lambda tx: handle([an_ask(build, attempts=19)], tx))


def rejection(said: Sequence[Said]) -> BuildRejected:
    (answer,) = [each.message for each in said if isinstance(each, Answer)]
    return must_be(BuildRejected, answer)


def released(said: Sequence[Said]) -> list[UUID]:
    """Whose claims are given back."""
    told = [each.message for each in said if isinstance(each, Tell)]
    return [each.consumer for each in told if isinstance(each, ReleaseClaim)]
