"""The dead letters of all brokers, for those who look at them. They are not consumed: each goes back to its queue at once."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

from msgspec import Struct

from bus.broker import Connection
from bus.topology import DEAD_QUEUE, Site
from bus.workers.dead_letters import DeadLetter, OpenedDeadLetters, open_dead_letters
from kit.errors import ConnectionLost, Failure, Refusal
from kit.settings import without_password
from moor.broker.deployments import BrokerDeployment
from moor.dashboard.masking import masked
from moor.dashboard.rendering import PageRefused
from moor.options import broker_of

# So many letters of each broker are read, the oldest ones.
LETTERS_MAX = 200
BODY_SHOWN_MAX = 4000
# All who look within this time see the same letters: while they are read, they are in no queue.
KEPT_S = 2.0
BROKER_S_MAX = 10.0


class LetterShown(Struct, frozen=True):
    """A dead letter. `body` is readable, without secrets and not longer than BODY_SHOWN_MAX; `is_cut` says that it had more."""

    broker: str
    handle: str
    queue: str
    type: str
    reason: str
    attempts: int
    where: str
    sender: str
    sent_at: datetime | None
    buried_at: datetime | None
    size: int
    body: str
    is_cut: bool


class LettersOfBroker(Struct, frozen=True):
    """The oldest letters of one broker, of `count` in all. `trouble` says why they could not be read."""

    broker: str
    url: str
    letters: tuple[LetterShown, ...] = ()
    count: int = 0
    trouble: str = ""


class LetterReader:
    """Reads the letters of these brokers; `deployments` says which there are now."""

    def __init__(self, deployments: Callable[[], Sequence[BrokerDeployment]]) -> None:
        self._deployments = deployments
        self._lock = asyncio.Lock()
        self._last: tuple[LettersOfBroker, ...] = ()
        self._until_s = 0.0

    def forget(self) -> None:
        """The letters have changed: the next reader must see that."""
        self._until_s = 0.0

    async def read(self) -> tuple[LettersOfBroker, ...]:
        now_s = asyncio.get_running_loop().time
        async with self._lock:
            if now_s() >= self._until_s:
                brokers = [each for each in self._deployments() if each.sites != (Site.IRONIC,)]
                self._last = tuple(await asyncio.gather(*map(_read, brokers)))
                self._until_s = now_s() + KEPT_S
            return self._last

    @asynccontextmanager
    async def opened(self, broker: str) -> AsyncIterator[tuple[Connection, OpenedDeadLetters]]:
        """The letters of this broker, held for an order. Raises a failure of the broker."""
        deployment = next((each for each in self._deployments() if each.names[0] == broker), None)
        if deployment is None:
            raise PageRefused(f"There is no broker {broker!r}.")
        async with self._lock:
            connection = await broker_of(deployment.url).connect()
            try:
                async with open_dead_letters(connection, LETTERS_MAX) as opened:
                    yield connection, opened
            finally:
                self.forget()
                await connection.close()

    async def letter(self, broker: str, handle: str) -> LetterShown | None:
        found = [each for of_broker in await self.read() for each in of_broker.letters]
        return next((each for each in found if (each.broker, each.handle) == (broker, handle)), None)


async def _read(deployment: BrokerDeployment) -> LettersOfBroker:
    name, url = deployment.names[0], without_password(deployment.url)
    try:
        async with asyncio.timeout(BROKER_S_MAX):
            connection = await broker_of(deployment.url).connect()
            try:
                count = await connection.depth(DEAD_QUEUE)
                async with open_dead_letters(connection, LETTERS_MAX) as opened:
                    letters = tuple([_shown(name, letter) for letter in opened.letters.values()])
            finally:
                await connection.close()
    except TimeoutError:
        return LettersOfBroker(name, url, trouble=f"it did not answer within {BROKER_S_MAX:.0f} s")
    except (Failure, ConnectionLost, Refusal) as problem:
        return LettersOfBroker(name, url, trouble=str(problem))
    return LettersOfBroker(name, url, letters, max(count, len(letters)))


def _shown(broker: str, letter: DeadLetter) -> LetterShown:
    body = masked(letter.parcel.body)
    return LetterShown(
        broker=broker,
        handle=letter.handle,
        queue=letter.queue,
        type=letter.type,
        reason=letter.reason,
        attempts=letter.attempts,
        where=letter.where,
        sender=letter.origin.sender,
        sent_at=letter.sent_at,
        buried_at=letter.buried_at,
        size=len(letter.parcel.body),
        body=body[:BODY_SHOWN_MAX],
        is_cut=len(body) > BODY_SHOWN_MAX,
    )
