"""Follows instances until what an order began in them has ended, and says why it failed."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress

from bus.messages.build import InstanceEvent, InstanceState, MoveKind, RebuildInstance
from bus.messages.moves import EndMove, MoveInstance, is_to_wait_again
from engine.flavors import InstanceId, RequestId
from kit.errors import ConnectionLost, Unavailable
from kit.times import now
from moor.client.bus_client import CLOSED, BusClient, during

# Events are fast but may be missed; polling at this interval finds what was missed.
LOOK_AGAIN_S = 2.0

States = dict[InstanceId, InstanceState]


class InstanceFollower:
    """Keeps the states of the instances in `ids` up to date, by events and by polling.

    The caller may add ids and remove them meanwhile. `tell` is called with each new state.
    """

    def __init__(
        self,
        client: BusClient,
        ids: Collection[InstanceId],
        project: str = "",
        tell: Callable[[InstanceState], None] | None = None,
    ) -> None:
        self.states: States = {}
        self._client = client
        self._ids = ids
        self._project = project
        self._changed = asyncio.Event()
        self._listening = asyncio.Event()
        self._tell = tell
        # Instances to ask about before the next look at all of them.
        self._new: set[InstanceId] = set()
        self._are_new = asyncio.Event()

    def look_soon(self, ids: Iterable[InstanceId]) -> None:
        """Ask about these instances soon: nobody has listened to their events so far."""
        self._new.update(ids)
        self._are_new.set()

    def take(self, states: Iterable[InstanceState]) -> None:
        """Store these states of the API level; skip any that is not newer than the known one.

        One that names another cell counts at any sequence: what was known came from an event of a cell that does not have
        the instance.
        """
        for state in states:
            known = self.states.get(state.id)
            is_newer = known is None or known.sequence < state.sequence
            if state.id in self._ids and (is_newer or _is_elsewhere(known, state.cell)):
                self.states[state.id] = state
                self._changed.set()
                if self._tell is not None:
                    self._tell(state)

    def hear(self, event: InstanceEvent) -> None:
        """Store the state that an event tells, unless the instance is known to be in another cell than the event's."""
        if not _is_elsewhere(self.states.get(event.instance.id), event.cell):
            self.take((event.instance,))

    async def until(
        self, is_over: Callable[[InstanceState], bool], show: Callable[[States], None], by_s: float
    ) -> bool:
        """Call `show` at each change, until `is_over` holds for all instances. Return False if time is up before.

        Time is up at `by_s` on the event loop's clock.
        """
        try:
            async with asyncio.timeout_at(by_s):
                await self._follow(
                    lambda: all(id_ in self.states and is_over(self.states[id_]) for id_ in self._ids), show
                )
        except TimeoutError:
            return False
        return True

    async def follow(self, show: Callable[[States], None]) -> None:
        """Call `show` with the states at each change, without end."""
        await self._follow(lambda: False, show)

    async def _follow(self, is_over: Callable[[], bool], show: Callable[[States], None]) -> None:
        await during(self._show_until(is_over, show), self._hear(), self._look())

    async def _show_until(self, is_over: Callable[[], bool], show: Callable[[States], None]) -> None:
        while not is_over():
            await self._changed.wait()
            self._changed.clear()
            show(self.states)

    async def _hear(self) -> None:
        async with aclosing(self._client.listen("instance.#", project=self._project)) as heard:
            async for batch in heard:
                self._listening.set()
                for each in batch:
                    if isinstance(each, InstanceEvent):
                        self.hear(each)

    async def _look(self) -> None:
        # Poll only once the subscription is active: an event between the first poll and the subscription would be missed,
        # and noticed only by the second poll.
        await self._listening.wait()
        loop = asyncio.get_running_loop()
        due_s = 0.0
        while True:
            is_due = due_s <= loop.time()
            new = self._taken_new()
            ids = self._ids if is_due else new
            if is_due:
                due_s = loop.time() + LOOK_AGAIN_S
            # A broker that is away, or schedulers that do not answer, may be back before the caller's time is up.
            with suppress(Unavailable):
                self.take(await self._client.instances([*ids], self._project))
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due_s):
                    await self._are_new.wait()

    def _taken_new(self) -> Collection[InstanceId]:
        new, self._new = self._new, set()
        self._are_new.clear()
        return new


def _is_elsewhere(known: InstanceState | None, cell: str) -> bool:
    """Is an instance in this state in another cell than this one? Without a cell it is nowhere yet."""
    return known is not None and bool(known.cell) and bool(cell) and known.cell != cell


# When an order has ended, and why it failed: pure functions of the state of its instance.

# What an end is, is listed; any other state, of a later release perhaps, is none.
BUILT = ("active", "moving", "moved", "stopped", "shelved", "offloaded")
ENDED = (*BUILT, "error", "deleted")
# The states that orders to switch the power lead to.
RESULTS: Mapping[MoveKind, str] = {"stop": "stopped", "start": "active"}


def has_ended(instance: InstanceState) -> bool:
    """True if no build, rebuild or delete of the instance goes on. It may have been stopped or moved since."""
    return instance.state in ENDED


def why_not_built(instance: InstanceState) -> str:
    """Why the build failed; empty if the instance was built."""
    if instance.state in (*BUILT, "rebuilding"):
        return ""
    if instance.state in ("deleting", "deleted"):
        return "the instance was deleted"
    failures = (f"{each.host}: {each.reason}" for each in instance.failures)
    return "; ".join(filter(None, (instance.reason, *failures))) or f"the instance is {instance.state}"


def rests(state: InstanceState, move_id: RequestId) -> bool:
    """True if the move has arrived or ended, or if the instance is deleted or has another move by now."""
    if state.state in ("deleting", "deleted") or state.move is None or state.move.request_id != move_id:
        return True
    if is_to_wait_again(state, now()):
        return False
    return state.state == "moved" or bool(state.move.outcome)


def why_not_moved(state: InstanceState, order: MoveInstance | EndMove) -> str:
    """Why the order has failed. Empty if the instance arrived, or if its move was confirmed, reverted or aborted as ordered."""
    move = state.move
    if isinstance(order, MoveInstance) and RESULTS.get(order.kind) == state.state:
        # Perhaps it was so before, and there was nothing to do.
        return ""
    if move is None or move.request_id != order.request_id:
        return "another move came after this one"
    if state.state in ("deleting", "deleted"):
        return "the instance was deleted"
    if isinstance(order, EndMove):
        wanted = {"confirm": "confirmed", "revert": "reverted", "abort": "aborted"}[order.how]
        return (
            "" if move.outcome == wanted else f"the move is {move.outcome}: {move.failure or 'it came first'}"
        )
    if state.state == "moved" or move.outcome in ("confirmed", "done"):
        # One that its host could not run is in error, and the host is asked further.
        return state.reason if state.state == "error" else ""
    reasons = "; ".join([move.failure, *(f"{each.host}: {each.reason}" for each in state.failures)])
    return f"the move has {move.outcome}: {reasons}"


def why_not_rebuilt(state: InstanceState, order: RebuildInstance) -> str:
    """Why the instance was not rebuilt; empty if it has the image of this rebuild."""
    last = state.rebuild
    if last is None or last.request_id != order.request_id:
        why = "another rebuild came after this one"
    elif last.failure or state.state not in BUILT:
        why = last.failure or state.reason or f"the instance is {state.state}"
    else:
        return ""
    return f"the instance was not rebuilt from {order.image_name or (order.image.source if order.image else '')}: {why}"


# One subscription and one poll for all instances that the callers of a client follow, however many these are.

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
