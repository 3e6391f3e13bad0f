"""One user of the bus: asks questions, hears events, and finds instances."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit, urlunsplit

from bus.broker import AccessRefused, Broker, ConnectionLost
from bus.configuration.settings import BusSettings
from bus.message import Message
from bus.messages.build import (
    AskInstances,
    InstanceId,
    InstancesFound,
    InstanceState,
)
from bus.permissions import key_pattern
from bus.topology import EVENTS, FEED, Application, Grant, broker_user_of, destination_of, user_of
from bus.workers.authority import project_of
from bus.workers.station import Station
from moor.client.questions import as_received, batches_of, pages_of
from moor.client.running import during, feed_of, station_on

# On the bus of `moor up`, a client connects as this application, unless it needs an operator's rights.
LOCAL = Application("local", admin=True)
ASK_AGAIN_S = 1.0
FOUND_AT_ONCE_MAX = 200
# Why a call ends that is under way when its client is closed.
CLOSED = "this client was closed"


class BusClient:
    """Asks questions and hears events as one user of the broker."""

    def __init__(self, station: Station, running: asyncio.Task[None]) -> None:
        self._station = station
        self._running = running
        station.raise_refusals()

    @property
    def trouble(self) -> str:
        """Why there is no connection to the broker now. Empty if there is one."""
        return self._station.trouble

    async def ask(self, question: Message) -> Message:
        """Return the answer. Raise the broker's refusal if this client may not ask or may not receive the answer."""
        return (await self.ask_all((question,)))[0]

    async def ask_all(self, questions: Sequence[Message]) -> list[Message]:
        """Return the answers, in the order of the questions. Raise `NotSendable` if no receiver could read a question."""
        sendable = [as_received(question) for question in questions]
        return await during(self._station.ask_all(sendable), self._raise_failure())

    async def send(self, message: Message) -> None:
        """Publish an order that has no answer. Return when the broker has it."""
        await self._station.send(message)

    async def _raise_failure(self) -> None:
        await asyncio.shield(self._running)
        raise ConnectionLost(CLOSED)

    async def instances(self, ids: Sequence[InstanceId], project: str = "") -> list[InstanceState]:
        """The instances with these ids, as far as they exist."""
        found: list[InstanceState] = []
        for some in batches_of(ids, FOUND_AT_ONCE_MAX):
            question = AskInstances(instances=tuple(some), limit=FOUND_AT_ONCE_MAX, project=project)
            async for page in self.pages_of_instances(question):
                found += page.instances
        return found

    async def pages_of_instances(self, question: AskInstances) -> AsyncIterator[InstancesFound]:
        async for page in pages_of(self, question, InstancesFound):
            yield page

    async def listen(self, *patterns: str, project: str = "") -> AsyncGenerator[Sequence[Message], None]:
        """Yield batches of events whose routing keys match `patterns`, from now on.

        The first batch is empty: it says that the subscription is active. So is the first one after each interruption,
        and no other. If a project is named, only events about its instances are yielded. An application receives them
        from the project's feed, which the schedulers publish.
        """
        speaker = broker_user_of(self._station.consuming.broker.user)
        matches = key_pattern(Grant(EVENTS, patterns)).fullmatch
        if project and speaker is not None and speaker.application:
            # An admin application has no feed of its own and may hear all events.
            with suppress(AccessRefused):
                async with feed_of(self._station, Grant(FEED, (project,))) as feed:
                    async for batch in feed:
                        messages = [each.message for each in batch]
                        wanted = [each for each in messages if matches(destination_of(each).routing_key)]
                        if wanted or not batch:
                            yield wanted
        async with feed_of(self._station, Grant(EVENTS, patterns)) as feed:
            async for batch in feed:
                wanted = [each.message for each in batch if project in ("", project_of(each.message))]
                if wanted or not batch:
                    yield wanted


@asynccontextmanager
async def connected(broker: Broker, patience_s: float) -> AsyncIterator[tuple[Station, asyncio.Task[None]]]:
    """A station that waits at most `patience_s` for an answer, for a client.

    If there is no broker now, raise at once. If the broker goes away later, wait for it.
    """
    await (await broker.connect()).close()
    bus = BusSettings(answer_timeout_ms=patience_s * 1000, ask_again_ms=min(ASK_AGAIN_S, patience_s) * 1000)
    async with station_on(broker, "moor", bus) as connection:
        yield connection


def with_user(url: str, *, operates: bool = False) -> str:
    """Put a user into a Unix socket's URL that has none. There a client may connect as any user without a password."""
    parts = urlsplit(url)
    if parts.scheme != "unix" or parts.netloc:
        return url
    return urlunsplit(parts._replace(netloc=f"{user_of('operator') if operates else LOCAL.user}@"))
