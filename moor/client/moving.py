"""Moves instances to other hosts, shelves and rebuilds them."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any, Unpack, cast
from uuid import UUID

from msgspec import Struct, structs

from bus.message import Message
from bus.messages.build import (
    AskInstances,
    BuildRejected,
    FlavorChange,
    InstancesFound,
    InstanceState,
    MoveEnd,
    MoveKind,
    RebuildInstance,
)
from bus.messages.moves import MOVE_LIMITS, AskMoves, Change, EndMove, MoveInstance, MovesFound, MoveWait
from bus.messages.stored_names import is_image_source
from engine.flavors import Flavor, Image, InstanceId
from moor.client.bus_client import FOUND_AT_ONCE_MAX, BusClient, during, items_of
from moor.client.errors import NotFound, Rejected
from moor.client.following import (
    LOOK_AGAIN_S,
    InstanceFollower,
    has_ended,
    rests,
    why_not_moved,
    why_not_rebuilt,
)
from moor.client.instances import InstanceCalls
from moor.client.requests import MoveFields, OrderFields, SentRequest, move_of, new_request_ids, order_id

MOVES_PAGE = 200


class MoveCalls(InstanceCalls):
    """The client's methods that move instances or rebuild them."""

    async def migrate(
        self,
        instance: UUID,
        *,
        confirm_s: int | None = None,
        together: Sequence[UUID] = (),
        **fields: Unpack[MoveFields],
    ) -> SentRequest:
        """Move an instance to another host, stopped meanwhile. Then `confirm` the move or `revert` it; after `confirm_s` seconds it
        confirms itself.

        With `together`, these instances move to the same host, all or none.
        """
        return await self._move(instance, "migrate", fields, confirm_s=confirm_s, together=together)

    async def live_migrate(self, instance: UUID, **fields: Unpack[MoveFields]) -> SentRequest:
        """Move an instance to another host while it runs."""
        return await self._move(instance, "live-migrate", fields)

    async def resize(
        self,
        instance: UUID,
        size: Flavor | FlavorChange,
        *,
        confirm_s: int | None = None,
        **fields: Unpack[MoveFields],
    ) -> SentRequest:
        """Give an instance another size, on another host. Then `confirm` it or `revert` it.

        A `FlavorChange` says what changes, and all else stays; a `Flavor` replaces the whole size.
        """
        given = "flavor" if isinstance(size, Flavor) else "change"
        return await self._move(instance, "resize", fields, confirm_s=confirm_s, **{given: size})

    async def evacuate(
        self, instance: UUID, *, together: Sequence[UUID] = (), **fields: Unpack[MoveFields]
    ) -> SentRequest:
        """Build an instance anew on another host, since its own is down."""
        return await self._move(instance, "evacuate", fields, together=together)

    async def shelve(self, instance: UUID, **fields: Unpack[OrderFields]) -> SentRequest:
        """Stop an instance. It keeps its host and its share."""
        return await self._move(instance, "shelve", fields)

    async def offload(self, instance: UUID, **fields: Unpack[OrderFields]) -> SentRequest:
        """Stop an instance, save it as an image, and free its host. It may be shelved already."""
        return await self._move(instance, "offload", fields)

    async def unshelve(self, instance: UUID, **fields: Unpack[MoveFields]) -> SentRequest:
        """Run a shelved instance again: on its host, or on any suitable one if it was offloaded."""
        return await self._move(instance, "unshelve", fields)

    async def stop(self, instance: UUID, **fields: Unpack[OrderFields]) -> SentRequest:
        """Switch an instance off. It keeps its host and its share. Nothing is done if it is stopped already."""
        return await self._move(instance, "stop", fields)

    async def start(self, instance: UUID, **fields: Unpack[OrderFields]) -> SentRequest:
        """Run a stopped instance again. Nothing is done if it is active already."""
        return await self._move(instance, "start", fields)

    async def reboot(self, instance: UUID, **fields: Unpack[OrderFields]) -> SentRequest:
        """Stop an active instance, and start it again."""
        return await self._move(instance, "reboot", fields)

    async def confirm(self, instance: UUID) -> SentRequest:
        """Confirm the last move, which has arrived: the first host is freed."""
        return await self._end(instance, "confirm")

    async def revert(self, instance: UUID) -> SentRequest:
        """Revert the last move, which has arrived: the instance runs on its first host again, with its old size."""
        return await self._end(instance, "revert")

    async def abort(self, instance: UUID) -> SentRequest:
        """Abort the last move before it arrives, or while it waits for room."""
        return await self._end(instance, "abort")

    async def rebuild(self, instance: UUID, image: Image | str, **fields: Unpack[OrderFields]) -> SentRequest:
        """Build an instance anew on its host, from this image; what is on its disk is lost.

        A text is the image's id or URL, or the name of a stored image, whose properties its host must have.
        """
        given = cast("dict[str, Any]", {"project": self.project, **fields})
        given["request_id"] = order_id(given.get("request_id"))
        if isinstance(image, str) and not is_image_source(image):
            given["image_name"] = image
        else:
            given["image"] = Image(source=image) if isinstance(image, str) else image
        order = RebuildInstance(instance=InstanceId(instance), **given)
        answer = await self._ask(order, InstancesFound)
        return SentRequest(
            self,
            order.request_id,
            [each.id for each in answer.instances],
            what="the rebuild",
            project=order.project,
            is_over=has_ended,
            why_not_done=lambda state: why_not_rebuilt(state, order),
            known=answer.instances,
        )

    async def list_moves(self, *, host: str = "", ended: bool = False) -> AsyncGenerator[Change, None]:
        """The moves of all instances, the newest first: those under way, or with `ended` all of them. For admins."""
        question = AskMoves(host=host, ended=ended, limit=MOVES_PAGE)
        async for each in self._items(question, MovesFound, lambda page: page.moves):
            yield each

    async def _move(
        self, instance: UUID, kind: MoveKind, fields: MoveFields | OrderFields, **more: Any
    ) -> SentRequest:
        return await self._moved(move_of(instance, kind, self.project, fields, **more), "the move")

    async def _end(self, instance: UUID, how: MoveEnd) -> SentRequest:
        state = await self.show(instance)
        if state.move is None:
            raise Rejected("instance", str(instance), f"it has never moved: there is nothing to {how}")
        order = EndMove(request_id=state.move.request_id, instance=state.id, how=how, project=self.project)
        return await self._moved(order, f"the order to {how} the move")

    async def _moved(self, order: MoveInstance | EndMove, what: str) -> SentRequest:
        answer = await self._ask(order, InstancesFound)
        if not answer.instances:
            raise NotFound("instance", order.instance)
        return SentRequest(
            self,
            order.request_id,
            [each.id for each in answer.instances],
            what=what,
            project=order.project,
            is_over=lambda state: rests(state, order.request_id),
            why_not_done=lambda state: why_not_moved(state, order),
            known=answer.instances,
        )


# Moves all instances away from one host, a limited number at once, and says which could not move and why.


class Stayed(Struct, frozen=True):
    instance: InstanceId
    name: str
    reason: str


class Emptied(Struct, frozen=True):
    """The result of emptying a host: which instances moved, and which stayed."""

    host: str
    moved: tuple[InstanceState, ...]
    stayed: tuple[Stayed, ...]
    seconds: float


async def instances_on(asking: BusClient, host: str) -> list[InstanceState]:
    """The instances on this host. An instance in error counts only if it keeps its host."""
    question = AskInstances(host=host, limit=FOUND_AT_ONCE_MAX)
    found = await items_of(asking, question, InstancesFound, lambda page: page.instances)
    return [each for each in found if each.state != "error" or each.keeps_share]


class HostMoves:
    """Moves these instances off a host, some at a time. `moved` and `stayed` are up to date at every moment.

    The first kind of move is ordered for each instance, and the next kind for those that did not move by it. `tell` is called with
    a line about the progress.
    """

    def __init__(
        self,
        asking: BusClient,
        states: Sequence[InstanceState],
        kinds: Sequence[MoveKind],
        hosts: Sequence[str],
        *,
        wait: MoveWait | None = None,
        for_user: str = "",
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.moved: list[InstanceState] = []
        self.stayed = {each.id: Stayed(each.id, each.name, "its turn did not come") for each in states}
        self._asking = asking
        self._hosts = tuple(hosts)
        self._wait = wait
        self._for_user = for_user
        self._tell = tell
        # Each with the kinds of moves that are left for it.
        self._waiting = deque((each, tuple(kinds)) for each in states)
        self._under_way: dict[InstanceId, tuple[MoveInstance, InstanceState, tuple[MoveKind, ...]]] = {}
        self._following = InstanceFollower(asking, self._under_way)
        self._changed = asyncio.Event()

    async def make(self, at_once: int) -> None:
        """Keep `at_once` moves under way, or as many as the schedulers' limits allow, until all are over. Moves that wait for
        room do not count.
        """
        await during(self._make(at_once), self._following.follow(lambda _: self._changed.set()))

    async def _make(self, at_once: int) -> None:
        allowed = at_once
        while self._waiting or self._under_way:
            if self._waiting and self._going < allowed:
                if await self._order(allowed - self._going):
                    allowed = self._going
            elif self._going or not self._waiting:
                await self._changed.wait()
                self._changed.clear()
            else:
                # Moves that others have ordered are under way.
                await asyncio.sleep(LOOK_AGAIN_S)
                allowed = 1
            # One more for each that is over: the limit may be further away by now.
            allowed = min(at_once, allowed + self._take_ends())

    @property
    def _going(self) -> int:
        """How many moves are under way, without those that wait for room."""
        return sum(self._why_waits(id_) == "" for id_ in self._under_way)

    def _why_waits(self, instance: InstanceId) -> str:
        state = self._following.states.get(instance)
        if state is None or state.waiting is None:
            return ""
        return f"its move waits for room until {state.waiting.until:%Y-%m-%d %H:%M:%S %Z}: {state.waiting.reason}"

    async def _order(self, count: int) -> int:
        """Order the next moves. Those that the cloud's limits of moves refuse wait again; returns their number."""
        some = [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]
        orders = [
            MoveInstance(
                request_id=id_,
                instance=state.id,
                kind=kinds[0],
                hosts=self._hosts,
                confirm_s=0,
                with_group=True,
                wait=self._wait,
                for_user=self._for_user,
            )
            for id_, (state, kinds) in zip(new_request_ids(len(some)), some, strict=True)
        ]
        for order, (state, kinds) in zip(orders, some, strict=True):
            self._under_way[state.id] = (order, state, kinds[1:])
            self._stays(state, "its move goes on")
        answers = [*zip(orders, some, await self._asking.ask_all(orders), strict=True)]
        with_others = self._take_companions(answers)
        beyond = []
        for order, (state, kinds), answer in answers:
            if isinstance(answer, InstancesFound):
                self._following.take(answer.instances)
                continue
            if state.id in with_others:
                continue
            del self._under_way[state.id]
            assert isinstance(answer, BuildRejected), f"{order!r} was answered by {answer!r}"
            if answer.field in MOVE_LIMITS:
                self._stays(state, answer.reason)
                beyond.append((state, kinds))
            else:
                self._did_not(state, kinds[1:], answer.reason)
        self._waiting.extendleft(reversed(beyond))
        return len(beyond)

    def _take_companions(
        self, answers: Iterable[tuple[MoveInstance, tuple[InstanceState, tuple[MoveKind, ...]], Message]]
    ) -> set[InstanceId]:
        """Count the instances that move by the order for another member of their server group as under way by that order.
        Returns their ids.
        """
        by = {
            each.id: order
            for order, (state, _), answer in answers
            if isinstance(answer, InstancesFound)
            for each in answer.instances
            if each.id != state.id
        }
        for id_, (order, state, kinds) in list(self._under_way.items()):
            if id_ in by:
                self._under_way[id_] = structs.replace(order, request_id=by[id_].request_id), state, kinds
        for state, kinds in [each for each in self._waiting if each[0].id in by]:
            self._waiting.remove((state, kinds))
            self._under_way[state.id] = structs.replace(by[state.id], instance=state.id), state, kinds[1:]
            self._stays(state, "its move goes on")
        return {*by}

    def _take_ends(self) -> int:
        """Note the moves that ended since the last call. Returns how many there are."""
        over = [
            (state, *each)
            for id_, each in self._under_way.items()
            if (state := self._following.states.get(id_)) is not None and rests(state, each[0].request_id)
        ]
        for now, order, state, kinds in over:
            del self._under_way[state.id]
            if why := _why_not(now, order):
                # By another kind it would need the same room, and wait for it as long again.
                self._did_not(state, () if _waited_in_vain(now) else kinds, why)
            else:
                self.moved.append(now)
                del self.stayed[state.id]
        if over and self._tell is not None:
            self._tell(f"{len(self.moved)} moved, {len(self.stayed)} not yet")
        return len(over)

    def still_there(self) -> tuple[Stayed, ...]:
        """The instances that did not move, each with the reason."""
        return tuple(
            structs.replace(each, reason=self._why_waits(each.instance) or each.reason)
            if each.instance in self._under_way
            else each
            for each in self.stayed.values()
        )

    def _did_not(self, state: InstanceState, kinds: tuple[MoveKind, ...], why: str) -> None:
        self._stays(state, why)
        if kinds:
            self._waiting.append((state, kinds))

    def _stays(self, state: InstanceState, why: str) -> None:
        self.stayed[state.id] = Stayed(state.id, state.name, why)


def _why_not(state: InstanceState, order: MoveInstance) -> str:
    move = state.move
    if state.state in ("deleting", "deleted"):
        return ""
    if move is None or move.request_id != order.request_id:
        return "another move came first"
    if move.outcome in ("failed", "aborted", "reverted"):
        return "; ".join(
            [move.failure or move.outcome, *(f"{each.host}: {each.reason}" for each in state.failures)]
        )
    return ""


def _waited_in_vain(state: InstanceState) -> bool:
    """Has its move ended while it waited for room? Such a move ends at the same time as its wait."""
    move = state.move
    return move is not None and move.outcome == "failed" and move.ends_by == move.waits_until
