"""Dead letters: messages that no worker could handle, which an operator replays or deletes. They are read from one broker, by a
connection of their own: the client needs not be open.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

from bus.broker import PREFETCH_MAX, Connection
from bus.queues import DEAD_QUEUE
from bus.workers.authority import broker_facts_of
from bus.workers.dead_letters import DeadLetter, OpenedDeadLetters, open_dead_letters
from kit.errors import ConnectionLost
from moor.client.errors import NotFound
from moor.client.requests import ClientSession

# How many are listed or decided on, the oldest first, unless the caller says else.
LETTERS_MAX = 1000
# So long it may take to read letters, and to decide on them.
DECIDED_S_MAX = 60.0
_IDS = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d+")


def group_of(letter: DeadLetter) -> tuple[str, ...]:
    """Letters with an equal group have died of the same: their reasons differ by ids and numbers alone."""
    return letter.queue, letter.type, _IDS.sub("*", letter.reason)


class DeadLetterCalls(ClientSession):
    """The client's methods about dead letters. For operators."""

    async def list_dead_letters(self, *, queue: str = "", limit: int = LETTERS_MAX) -> tuple[DeadLetter, ...]:
        """The oldest dead letters of the client's broker, at most `limit`; or the oldest from one queue.

        They go back to where they were: while they are read, no other reader sees them.
        """
        async with self._opened_letters(PREFETCH_MAX if queue else limit) as (_, opened):
            return _each_once(_from(queue, opened, limit).values())

    async def show_dead_letter(self, handle: str) -> DeadLetter:
        """The dead letter with this handle. Raises `NotFound`."""
        for letter in await self.list_dead_letters(limit=PREFETCH_MAX):
            if letter.handle == handle:
                return letter
        raise NotFound("dead letter", handle)

    async def count_dead_letters(self) -> int:
        """How many dead letters wait at the client's broker; without those that somebody looks at now."""
        async with self._connected() as connection:
            return await connection.depth(DEAD_QUEUE)

    async def replay_dead_letters(
        self,
        *handles: str,
        queue: str = "",
        every: bool = False,
        like: bool = False,
        limit: int = LETTERS_MAX,
    ) -> tuple[DeadLetter, ...]:
        """Send dead letters back to the queues that they came from, with no attempts counted; returns those that were.

        Those with these handles; with `like` also all that died of the same; or `every` one, the oldest `limit`. With `queue` only
        those from this queue. Raises `NotFound`, and does nothing, if there is no letter with one of the handles.
        """
        return await self._decide(
            handles, queue, limit, every=every, like=like, does=OpenedDeadLetters.replay
        )

    async def delete_dead_letters(
        self,
        *handles: str,
        queue: str = "",
        every: bool = False,
        like: bool = False,
        limit: int = LETTERS_MAX,
    ) -> tuple[DeadLetter, ...]:
        """Delete dead letters for good: those that `replay_dead_letters` would send back; returns those that were."""
        return await self._decide(
            handles, queue, limit, every=every, like=like, does=lambda opened, _, tags: opened.drop(tags)
        )

    async def _decide(
        self,
        handles: Sequence[str],
        queue: str,
        limit: int,
        *,
        every: bool,
        like: bool,
        does: Callable[[OpenedDeadLetters, Connection, Sequence[int]], Awaitable[None]],
    ) -> tuple[DeadLetter, ...]:
        reads = PREFETCH_MAX if queue or handles else limit
        async with self._opened_letters(reads) as (connection, opened):
            among = _from(queue, opened, reads if handles else limit)
            unknown = {*handles} - {letter.handle for letter in among.values()}
            if unknown:
                raise NotFound("dead letter", *sorted(unknown))
            groups = {group_of(letter) for letter in among.values() if like and letter.handle in handles}
            chosen = {
                tag: letter
                for tag, letter in among.items()
                if every or letter.handle in handles or group_of(letter) in groups
            }
            await does(opened, connection, [*chosen])
            return _each_once(chosen.values())

    @asynccontextmanager
    async def _opened_letters(self, limit: int) -> AsyncIterator[tuple[Connection, OpenedDeadLetters]]:
        facts = broker_facts_of(self._broker.user)
        async with self._connected() as connection, open_dead_letters(connection, limit, facts) as opened:
            yield connection, opened

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Connection]:
        """A connection that is used for a bounded time: a broker that is blocked answers nothing."""
        with self._raising():
            connection = await self._broker.connect()
            try:
                async with asyncio.timeout(DECIDED_S_MAX):
                    yield connection
            except TimeoutError:
                why = connection.blocked or "the broker does not answer"
                raise ConnectionLost(f"not done within {DECIDED_S_MAX:.0f} s: {why}") from None
            finally:
                await connection.close()


def _each_once(letters: Iterable[DeadLetter]) -> tuple[DeadLetter, ...]:
    """One of those that share a handle: what is done with that, is done with each of them."""
    return tuple({letter.handle: letter for letter in letters}.values())


def _from(queue: str, opened: OpenedDeadLetters, limit: int) -> dict[int, DeadLetter]:
    letters = [(tag, each) for tag, each in opened.letters.items() if queue in ("", each.queue)]
    return dict(letters[:limit])
