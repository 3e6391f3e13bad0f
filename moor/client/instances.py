"""Builds, shows, lists, moves, rebuilds and deletes instances; their consoles; and plans."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any, Unpack, cast, get_args
from uuid import UUID

from msgspec import structs

from bus.messages.build import (
    AskInstances,
    BuildAccepted,
    DeleteInstance,
    FlavorChange,
    InstanceDetails,
    InstancesFound,
    InstanceState,
    MoveEnd,
    MoveKind,
    RebuildInstance,
)
from bus.messages.cell import CONSOLE_BYTES_MAX, AskConsole, ConsoleFound
from bus.messages.moves import AskHistory, AskMoves, Change, EndMove, HistoryFound, MoveInstance, MovesFound
from bus.messages.planning import (
    AskDrain,
    AskExplanation,
    AskPlan,
    AskReasons,
    DrainFound,
    ExplanationsFound,
    PlanFound,
    ReasonsFound,
)
from bus.messages.stored_names import is_image_source
from engine.flavors import Flavor, Image, InstanceId, RequestId
from engine.refusals import HostVerdict
from moor.client.bus_client import (
    FOUND_AT_ONCE_MAX,
    Asks,
    BusClient,
    States,
    answer_of,
    batches_of,
    granted,
    has_ended,
    pages_of,
    rests,
    why_not_built,
    why_not_moved,
    why_not_rebuilt,
)
from moor.client.errors import NoConsoleFound, NotFound, Rejected
from moor.client.requests import (
    BuildFields,
    ClientSession,
    MoveFields,
    OrderFields,
    SentRequest,
    StateName,
    build_of,
    move_of,
    order_id,
)

HISTORY_PAGE = 200


class InstanceCalls(ClientSession):
    """The client's methods about instances."""

    async def boot(self, flavor: Flavor | str | Sequence[str], **fields: Unpack[BuildFields]) -> SentRequest:
        """Build one instance, or `count` equal ones. Returns when a scheduler has stored the request.

        A flavor may be the name of a stored one; of several names, each instance gets the first for which there is a host. With `all_or_nothing`, all of them are built or none. Without a `request_id` the client makes one. If the answer is lost,
        boot again with the `request_id` of the error: the request is built once. Raises `Rejected` for a wrong request.
        """
        fields["request_id"] = id_ = order_id(fields.get("request_id"))
        order = build_of(flavor, self.project, fields)
        accepted = await self._ask(order, BuildAccepted)
        return self._built(id_, accepted.instances, order.project)

    async def find_request(self, request_id: UUID) -> SentRequest:
        """A build request that was taken before, in another process perhaps, to follow it. Raises `NotFound`."""
        question = AskInstances(
            request_id=RequestId(request_id), limit=FOUND_AT_ONCE_MAX, project=self.project
        )
        states = [each async for each in self._instances(question)]
        if not states:
            raise NotFound("request", request_id)
        return self._built(RequestId(request_id), [each.id for each in states], self.project, states)

    def _built(
        self, id_: RequestId, ids: Sequence[InstanceId], project: str, known: Sequence[InstanceState] = ()
    ) -> SentRequest:
        return SentRequest(
            self,
            id_,
            ids,
            what="the build",
            project=project,
            is_over=has_ended,
            why_not_done=why_not_built,
            known=known,
        )

    async def delete(self, *ids: UUID) -> SentRequest:
        """Delete instances in any state: those with these ids, and all of the requests with these ids.

        The request that it returns ends when they are deleted. Raises `NotFound`, and deletes nothing, if an id is unknown.
        """
        with self._raising():
            known, unknown = await found_by_ids(self._bus, ids, self.project)
        if unknown:
            raise NotFound("instance or request", unknown[0])
        orders = [DeleteInstance(instance=id_, project=self.project) for id_ in known]
        told = [*known.values()]
        for some in batches_of(orders, FOUND_AT_ONCE_MAX):
            with self._raising():
                answers = await self._bus.ask_all(some)
            for order, answer in zip(some, answers, strict=True):
                told += granted(order, answer, InstancesFound).instances
        return SentRequest(
            self,
            order_id(None),
            [*known],
            what="the delete",
            project=self.project,
            is_over=lambda state: state.state == "deleted",
            why_not_done=lambda _: "",
            known=told,
        )

    async def show(self, instance: UUID) -> InstanceState:
        """The state of one instance. Raises `NotFound`."""
        with self._raising():
            found = await self._bus.instances([InstanceId(instance)], self.project)
        if not found:
            raise NotFound("instance", instance)
        return found[0]

    async def details(self, *instances: UUID) -> dict[InstanceId, InstanceDetails]:
        """The size of each instance, and when it was accepted and placed."""
        found: dict[InstanceId, InstanceDetails] = {}
        for some in batches_of([*map(InstanceId, instances)], FOUND_AT_ONCE_MAX):
            question = AskInstances(instances=tuple(some), limit=FOUND_AT_ONCE_MAX, project=self.project)
            pages = self._items(question, InstancesFound, lambda page: page.details)
            found |= {each.id: each async for each in pages}
        return found

    async def list_instances(
        self, *, state: StateName | None = None, host: str = "", cell: str = "", name: str = ""
    ) -> AsyncGenerator[InstanceState, None]:
        """All instances in the order of their ids, deleted ones too; or those that are so. They are read page by page."""
        if state not in (None, *get_args(StateName)):
            # Otherwise a misspelt state would look like an empty list.
            raise Rejected("state", str(state), f"the states are {', '.join(get_args(StateName))}")
        question = AskInstances(state=state or "", host=host, project=self.project, limit=FOUND_AT_ONCE_MAX)
        async for each in self._instances(question):
            if cell in ("", each.cell) and name in ("", each.name):
                yield each

    def history(self, instance: UUID) -> AsyncGenerator[Change, None]:
        """The orders that an instance was given, the first one first, and how each ended."""
        return self._items(
            AskHistory(instance=InstanceId(instance), project=self.project, limit=HISTORY_PAGE),
            HistoryFound,
            lambda page: page.changes,
        )

    def _instances(self, question: AskInstances) -> AsyncGenerator[InstanceState, None]:
        return self._items(question, InstancesFound, lambda page: page.instances)


async def found_by_ids(asking: BusClient, ids: Iterable[UUID], project: str) -> tuple[States, list[UUID]]:
    """The instances with these ids; for an id of a request, all its instances. And the ids that are neither.

    Schedulers obey a delete that arrives before its build request. So a mistyped id must not be sent: it would cancel a later
    request with that id.
    """
    wanted = [*dict.fromkeys(ids)]
    known = {each.id: each for each in await asking.instances([*map(InstanceId, wanted)], project)}
    unknown = []
    for id_ in wanted:
        if InstanceId(id_) in known:
            continue
        question = AskInstances(request_id=RequestId(id_), limit=FOUND_AT_ONCE_MAX, project=project)
        pages = asking.pages_of_instances(question)
        of_request = {each.id: each async for page in pages for each in page.instances}
        known |= of_request
        if not of_request:
            unknown.append(id_)
    return known, unknown


# Reads what guests have written to their serial consoles.

LOOK_S = 1.0


class ConsoleCalls(ClientSession):
    """The client's methods about consoles."""

    async def console(self, instance: UUID, *, start: int = -4096, limit: int = 4096) -> ConsoleFound:
        """What the guest has written to its serial console: `text`, which begins at the byte `start`; if negative, so many bytes before the end.

        The next part begins at `next`, and all of it has `size` bytes now. Raises `NoConsoleFound`.
        """
        question = AskConsole(
            instance=InstanceId(instance),
            project=self.project,
            start=start,
            limit=min(limit, CONSOLE_BYTES_MAX),
        )
        found = await self._ask(question, ConsoleFound)
        if found.none:
            raise NoConsoleFound(found.none)
        return found

    async def follow_console(self, instance: UUID, *, start: int = -4096) -> AsyncGenerator[str, None]:
        """What the guest has written from the byte `start` on, and what it writes from now on, until the instance is deleted.

        While there is no console, as during a move, it waits for one.
        """
        question = AskConsole(
            instance=InstanceId(instance), project=self.project, start=start, limit=CONSOLE_BYTES_MAX
        )
        parts = parts_of_console(self._bus, question)
        while True:
            with self._raising(question):
                part = await anext(parts, None)
            if part is None:
                return
            if part.text:
                yield part.text


async def parts_of_console(asking: Asks, question: AskConsole) -> AsyncGenerator[ConsoleFound, None]:
    """The parts of a console, each from where the last one ended, as the guest writes them, until the instance is deleted.

    Parts may be empty. One with `none` says that there is no console now.
    """
    attempt = 0
    while True:
        found = await answer_of(asking, question, ConsoleFound)
        if not found.none and attempt not in (0, found.attempt):
            # It is another host's console, from its beginning.
            question, attempt = structs.replace(question, start=0), found.attempt
            continue
        yield found
        if found.none and await _is_over(asking, question):
            return
        if not found.none:
            question, attempt = structs.replace(question, start=found.next), found.attempt
        if found.none or found.next >= found.size:
            await asyncio.sleep(LOOK_S)


async def last_of_console(asking: Asks, question: AskConsole) -> AsyncGenerator[ConsoleFound, None]:
    """The same parts, up to what there is now. A part with `none` is the only one."""
    first: ConsoleFound | None = None
    async for part in parts_of_console(asking, question):
        yield part
        first = first or part
        if part.none or not part.text or part.attempt != first.attempt or part.next >= first.size:
            return


async def _is_over(asking: Asks, question: AskConsole) -> bool:
    asked = AskInstances(instances=(question.instance,), project=question.project, limit=1)
    found = (await answer_of(asking, asked, InstancesFound)).instances
    return not found or found[0].state == "deleted"


# Asks what would fit where, why a host was chosen, and why none was. Nothing is claimed or written.

VERDICTS_PAGE = 200
EXPLANATIONS_PAGE = 100


class PlanCalls(ClientSession):
    """The client's questions about choices of hosts: before a request, and after it."""

    async def plan(self, flavor: Flavor, **fields: Unpack[BuildFields]) -> PlanFound:
        """How many instances of this request would fit now, in which cells, and what would make more hosts qualify."""
        request = build_of(flavor, self.project, fields)
        return await self._ask(AskPlan(request=request, project=request.project), PlanFound)

    def verdicts(
        self, flavor: Flavor, *, step: str = "", **fields: Unpack[BuildFields]
    ) -> AsyncGenerator[HostVerdict, None]:
        """The verdict on each host for this request: how many would fit there, or the first filter that removes it. For admins.

        With `step`, only on the hosts that this step removes; `qualify` stands for those that no step removes.
        """
        request = build_of(flavor, self.project, fields)
        return self._items(
            AskReasons(request=request, step=step, limit=VERDICTS_PAGE), ReasonsFound, lambda page: page.hosts
        )

    async def plan_drain(self, host: str) -> DrainFound:
        """Whether the instances of this host would fit on other hosts of its cell, all together. For admins."""
        return await self._ask(AskDrain(host=host), DrainFound)

    async def explain(self, instance_or_request: UUID, *, plan_now: bool = False) -> ExplanationsFound:
        """How the host of an instance was chosen, or those of all instances of a request; or why there was none.

        With `plan_now`, also a plan for the same needs. Raises `NotFound`.
        """
        with self._raising(AskExplanation()):
            found = await explained(self._bus, instance_or_request, self.project, plan_now=plan_now)
        if not found.explanations:
            raise NotFound("instance or request", instance_or_request)
        return found


async def explained(asking: Asks, id_: UUID, project: str, *, plan_now: bool) -> ExplanationsFound:
    """The explanations of the instance with this id; if there is none, of the request's instances."""
    about = AskExplanation(project=project, plan_now=plan_now, limit=EXPLANATIONS_PAGE)
    pages: list[ExplanationsFound] = []
    for question in (
        structs.replace(about, instance=InstanceId(id_)),
        structs.replace(about, request_id=RequestId(id_)),
    ):
        pages = [page async for page in pages_of(asking, question, ExplanationsFound)]
        if pages[0].explanations:
            break
    explanations = tuple(each for page in pages for each in page.explanations)
    return structs.replace(pages[0], explanations=explanations, next=None)


# Moves instances to other hosts, shelves and rebuilds them.

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

        With `together`, these instances move to one host with room for all of them, and confirm at once.
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

    def list_moves(self, *, host: str = "", ended: bool = False) -> AsyncGenerator[Change, None]:
        """The moves of all instances, the newest first: those under way, or with `ended` all of them. For admins."""
        return self._items(
            AskMoves(host=host, ended=ended, limit=MOVES_PAGE), MovesFound, lambda page: page.moves
        )

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
