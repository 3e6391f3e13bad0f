"""Lets some callers at a time do something costly, in turns between the users that ask for it.

Each user has a line of its own, and the first of each line is next in turn. So a user with a thousand requests delays another
user's request by one of them, not by all.
"""

import asyncio
from collections import deque


class FairTurns:
    """`free` callers at a time. `waiting` is the number of callers that wait."""

    def __init__(self, free: int) -> None:
        self._free = free
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}
        self.waiting = 0

    def waiting_of(self, user: str) -> int:
        return len(self._lines.get(user, ()))

    async def acquire(self, user: str) -> None:
        if self._free and not self._lines:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(user, deque()).append(turn)
        self.waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # It came at the same moment: it goes to the next caller.
                self.release()
            else:
                self._forget(user, turn)
            raise

    def release(self) -> None:
        if not self._lines:
            self._free += 1
            return
        # The first line is served, and goes behind all others.
        user = next(iter(self._lines))
        line = self._lines.pop(user)
        turn = line.popleft()
        if line:
            self._lines[user] = line
        self.waiting -= 1
        turn.set_result(None)

    def _forget(self, user: str, turn: asyncio.Future[None]) -> None:
        line = self._lines[user]
        line.remove(turn)
        self.waiting -= 1
        if not line:
            del self._lines[user]
