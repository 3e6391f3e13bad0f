"""An order that was taken, and how its instances are followed to its end."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress

from bus.errors import Unavailable
from bus.messages.build import InstanceId, InstanceState, RequestId
from moor.client.errors import NoHostFound, NotDone, NotInTime
from moor.client.session import ClientSession

# The first pause between questions whether a scheduler knows of an end, and how long they go on.
KNOWN_PAUSE_S_FIRST = 0.01
KNOWN_S_MAX = 5.0


class SentRequest:
    """A build, a move, a rebuild or a delete that a scheduler has taken.

    `id` is the request's id: to send the order again with it is harmless. `instances` are the instances concerned.
    """

    def __init__(
        self,
        session: ClientSession,
        id_: RequestId,
        instances: Sequence[InstanceId],
        *,
        what: str,
        project: str,
        is_over: Callable[[InstanceState], bool],
        why_not_done: Callable[[InstanceState], str],
        known: Sequence[InstanceState] = (),
    ) -> None:
        self.id = id_
        self.instances = tuple(instances)
        self._session = session
        self._what = what
        self._project = project
        self._is_over = is_over
        self._why_not_done = why_not_done
        self._known = {each.id: each for each in known if each.id in self.instances}

    @property
    def states(self) -> tuple[InstanceState, ...]:
        """The instances as this request has last heard of them, in the order of `instances`."""
        return tuple(self._known[id_] for id_ in self.instances if id_ in self._known)

    async def follow(self, timeout_s: float | None = None) -> AsyncGenerator[InstanceState, None]:
        """Yield the state of each instance, and each new state, until the order has ended in all of them.

        Raises `NotInTime` after `timeout_s` (the client's, if it is None). The order then goes on.
        """
        limit_s = self._session.timeout_s if timeout_s is None else timeout_s
        by_s = asyncio.get_running_loop().time() + limit_s
        under_way = set(self.instances)
        watch = self._session._watch(self._project)  # noqa: SLF001 - a request is a part of its session
        with watch.of(self.instances, self.states) as told:
            while under_way:
                try:
                    async with asyncio.timeout_at(by_s):
                        state = await told.get()
                except TimeoutError:
                    what = (
                        f"{self._what} has not ended in {len(under_way)} of {len(self.instances)} instances"
                    )
                    raise NotInTime(what, limit_s, self.states, self.id) from None
                if isinstance(state, BaseException):
                    with self._session._raising():  # noqa: SLF001
                        raise state
                self._known[state.id] = state
                if self._is_over(state):
                    under_way.discard(state.id)
                yield state

    async def until_ended(self, timeout_s: float | None = None) -> tuple[InstanceState, ...]:
        """Wait until the order has ended, well or not, and return the states of the instances.

        The schedulers know of the end then, too: they take the next order for these instances.
        """
        async with aclosing(self.follow(timeout_s)) as states:
            async for _ in states:
                pass
        await self._until_schedulers_know()
        return self.states

    async def _until_schedulers_know(self) -> None:
        """A cell tells the ends of orders to everyone at once, so a client may hear of one before a scheduler has written it.

        If no scheduler answers in time, the caller goes on: the order has ended all the same.
        """
        pause_s = KNOWN_PAUSE_S_FIRST
        heard = {each.id: each.sequence for each in self.states}
        with self._session._raising(), suppress(TimeoutError, Unavailable):  # noqa: SLF001
            async with asyncio.timeout(KNOWN_S_MAX):
                while heard:
                    found = await self._session._bus.instances([*heard], self._project)  # noqa: SLF001
                    known = {each.id: each.sequence for each in found}
                    heard = {id_: number for id_, number in heard.items() if known.get(id_, number) < number}
                    if heard:
                        await asyncio.sleep(pause_s)
                        pause_s *= 2

    async def until_done(self, timeout_s: float | None = None) -> tuple[InstanceState, ...]:
        """Wait until the order has ended, and return the states of the instances.

        Raises `NotDone` if it has failed in one of them, or `NoHostFound` if there was no host for one.
        """
        states = await self.until_ended(timeout_s)
        failed = [each for each in states if self._why_not_done(each)]
        if not failed:
            return states
        reasons = dict.fromkeys(f"{each.name or each.id}: {self._why_not_done(each)}" for each in failed)
        reason = f"{self._what} has failed in {len(failed)} of {len(states)} instances: {'; '.join(reasons)}"
        funnel = next((each.no_valid_host for each in failed if each.no_valid_host is not None), None)
        if funnel is not None:
            raise NoHostFound(states, reason, self.id, funnel)
        raise NotDone(states, reason, self.id)
