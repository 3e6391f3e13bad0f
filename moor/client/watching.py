"""One subscription and one poll for all instances that the callers of a client follow, however many these are."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bus.broker import ConnectionLost
from bus.messages.build import InstanceId, InstanceState
from moor.client.bus_client import CLOSED, BusClient
from moor.client.following import InstanceFollower

# How long the subscription stays when nobody follows an instance any more.
LINGER_S = 10.0

Told = asyncio.Queue[InstanceState | BaseException]


class InstanceWatch:
    """Tells each caller the new states of its instances. It listens only while there are callers."""

    def __init__(self, client: BusClient, project: str) -> None:
        self._client = client
        self._project = project
        self._callers: dict[InstanceId, list[Told]] = {}
        self._follower: InstanceFollower | None = None
        self._following: asyncio.Task[None] | None = None
        self._ending: asyncio.TimerHandle | None = None

    @contextmanager
    def of(self, ids: Sequence[InstanceId], known: Sequence[InstanceState] = ()) -> Iterator[Told]:
        """A queue of the states of these instances, from now on. `known` are states that the caller has learned so far.

        If the instances cannot be followed, the queue gets the reason, as an exception.
        """
        told: Told = asyncio.Queue()
        follower = self._started()
        before = {id_: follower.states.get(id_) for id_ in ids}
        for id_ in before:
            self._callers.setdefault(id_, []).append(told)
        follower.take(known)
        for id_, state in before.items():
            if state is not None and follower.states[id_] is state:
                told.put_nowait(state)
        follower.look_soon(before)
        try:
            yield told
        finally:
            for id_ in before:
                self._leave(id_, told)

    def _leave(self, id_: InstanceId, told: Told) -> None:
        callers = self._callers[id_]
        callers.remove(told)
        if callers:
            return
        del self._callers[id_]
        if self._follower is not None:
            self._follower.states.pop(id_, None)
        if not self._callers and self._following is not None:
            self._ending = asyncio.get_running_loop().call_later(LINGER_S, self._stop)

    def _stop(self) -> None:
        following, self._following, self._follower = self._following, None, None
        if following is not None:
            following.cancel()

    def _started(self) -> InstanceFollower:
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        if self._follower is None or self._following is None or self._following.done():
            self._follower = InstanceFollower(self._client, self._callers, self._project, self._tell)
            self._following = asyncio.create_task(self._follower.follow(lambda _: None))
            self._following.add_done_callback(self._ended)
        return self._follower

    def _tell(self, state: InstanceState) -> None:
        for told in self._callers.get(state.id, ()):
            told.put_nowait(state)

    def _ended(self, following: asyncio.Task[None]) -> None:
        """Tell all callers why they hear nothing any more."""
        why = ConnectionLost(CLOSED) if following.cancelled() else following.exception()
        if following is self._following and why is not None:
            for told in {id(each): each for callers in self._callers.values() for each in callers}.values():
                told.put_nowait(why)

    async def close(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait((self._following,))
