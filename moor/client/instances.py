"""Builds, shows, lists, moves, rebuilds and deletes instances; their consoles; and plans."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Unpack, cast, get_args
from uuid import UUID

from msgspec import structs

from bus.messages.build import (
    AskInstances,
    BuildAccepted,
    BuildInstance,
    DeleteInstance,
    FlavorChange,
    InstanceOrder,
    InstancesFound,
    InstanceState,
    MoveEnd,
    MoveKind,
    RebuildInstance,
)
from bus.messages.catalog import is_image_source
from bus.messages.cell import CONSOLE_BYTES_MAX, AskConsole, ConsoleFound
from bus.messages.moves import AskHistory, AskMoves, Change, EndMove, HistoryFound, MoveInstance, MovesFound
from bus.messages.planning import (
    AskExplanation,
    AskPlan,
    AskReasons,
    Explanation,
    ExplanationsFound,
    PlanFound,
    ReasonsFound,
)
from engine.flavors import Flavor, Image, InstanceId, JoinedGroup, RequestId
from engine.refusals import HostVerdict
from moor.client.bus_client import (
    FOUND_AT_ONCE_MAX,
    Asks,
    answer_of,
    answers_of,
    has_ended,
    pages_of,
    rests,
    why_not_built,
    why_not_moved,
    why_not_rebuilt,
)
from moor.client.errors import NoConsoleFound, NotFound, Rejected
from moor.client.finding import (
    Named,
    aggregate_ids,
    group_id,
    instance_ids,
    instance_or_request_id,
    instances_named,
    instances_or_requests,
)
from moor.client.requests import (
    BuildFields,
    ClientSession,
    Listing,
    MoveFields,
    OrderFields,
    SentRequest,
    StateName,
    build_of,
    move_of,
    order_id,
)

HISTORY_PAGE = 200


class NamingSession(ClientSession):
    """A client whose orders name instances, groups and aggregates by their names."""

    async def _with_ids(self, fields: BuildFields) -> BuildFields:
        """The fields, with the ids of the group, the instances and the aggregates that they name."""
        found = cast("dict[str, Any]", {**fields})
        project = fields.get("project", self.project)
        with self._raising():
            if isinstance(group := found.get("group"), str):
                found["group"] = JoinedGroup(id=await group_id(self._bus, group, project))
            for field in ("different_host", "same_host"):
                if found.get(field):
                    found[field] = await instance_ids(self._bus, found[field], project)
            for field in ("member_of", "forbidden_aggregates"):
                if any(isinstance(each, str) for each in found.get(field, ())):
                    found[field] = await aggregate_ids(self._bus, found[field])
        return cast("BuildFields", found)

    async def _id(self, named: Named) -> InstanceId:
        with self._raising():
            return (await instance_ids(self._bus, [named], self.project))[0]


class InstanceCalls(NamingSession):
    """The client's methods about instances."""

    async def boot(self, flavor: Flavor | str | Sequence[str], **fields: Unpack[BuildFields]) -> SentRequest:
        """Build one instance, or `count` equal ones. Returns when a scheduler has stored the request.

        A flavor may be the name of a stored one; of several names, each instance gets the first for which there is a host. With `all_or_nothing`, all of them are built or none. Without a `request_id` the client makes one. If the answer is lost,
        boot again with the `request_id` of the error: the request is built once. Raises `Rejected` for a wrong request.
        """
        fields["request_id"] = id_ = order_id(fields.get("request_id"))
        order = build_of(flavor, self.project, await self._with_ids(fields))
        accepted = await self._ask(order, BuildAccepted)
        return self._built(id_, accepted.instances, order.project)

    async def find_request(self, request_id: UUID) -> SentRequest:
        """A build request that was taken before, in another process perhaps, to follow it. Raises `NotFound`."""
        question = AskInstances(
            request_id=RequestId(request_id), limit=FOUND_AT_ONCE_MAX, project=self.project
        )
        states = await Listing(self, question, InstancesFound, lambda page: page.instances)
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

    async def delete(self, *named: Named, for_user: str = "") -> SentRequest:
        """Delete instances in any state: the named ones, and all instances of the requests with these ids.

        The request that it returns ends when they are deleted. Raises `NotFound`, and deletes nothing, if one is unknown. The
        program acts for the person `for_user`, and answers for that name.
        """
        with self._raising():
            known = (await instances_or_requests(self._bus, named, self.project)).instances
            orders = [
                DeleteInstance(instance=each.id, project=self.project, for_user=for_user) for each in known
            ]
            answers = await answers_of(self._bus, orders, InstancesFound)
        return SentRequest(
            self,
            order_id(None),
            [each.id for each in known],
            what="the delete",
            project=self.project,
            is_over=lambda state: state.state == "deleted",
            why_not_done=lambda _: "",
            known=[*known, *(each for answer in answers for each in answer.instances)],
        )

    async def show(self, instance: Named) -> InstanceState:
        """The state of one instance. Raises `NotFound`."""
        found = (await self.look(instance)).instances
        if len(found) != 1:
            raise Rejected("instance", str(instance), f"it names {len(found)} instances: name one of them")
        return found[0]

    async def look(self, *named: Named) -> InstancesFound:
        """The instances that are named, and all of the requests with these ids: with their sizes and times, and what was heard of
        their cells. Raises `NotFound` if one is unknown.
        """
        with self._raising():
            return await instances_or_requests(self._bus, named, self.project)

    async def instances_called(self, *texts: str) -> dict[str, InstanceState]:
        """For each of these texts the instance that it names, by its name or the beginning of its id; those that name none are left out."""
        with self._raising():
            return await instances_named(self._bus, texts)

    def list_instances(
        self,
        *,
        state: StateName | None = None,
        host: str = "",
        cell: str = "",
        name: str = "",
        part: str = "",
        flavor: str = "",
        image: str = "",
        project: str = "",
        id_prefix: str = "",
        living: bool = False,
        order: InstanceOrder = "id",
        backwards: bool = False,
        counted: bool = False,
    ) -> Listing[InstanceState, InstancesFound]:
        """All instances, deleted ones too; or those that are so: with this name, or with this part of a name, for example.

        They come in the order of their ids; by `age`, the oldest first; by `name`, `web-2` before `web-10`; or by `host`; or
        `backwards`. A page also has their sizes and times (`details`), what was heard of their cells, and with `counted` how many
        there are.
        """
        if state not in (None, *get_args(StateName)):
            # Otherwise a misspelt state would look like an empty list.
            raise Rejected("state", str(state), f"the states are {', '.join(get_args(StateName))}")
        question = AskInstances(
            state=state or "",
            host=host,
            cell=cell,
            name=name,
            part=part,
            flavor=flavor,
            image=image,
            project=project or self.project,
            id_prefix=id_prefix,
            living=living,
            order=order,
            backwards=backwards,
            counted=counted,
            limit=FOUND_AT_ONCE_MAX,
        )
        return Listing(self, question, InstancesFound, lambda page: page.instances)

    def history(self, instance: Named) -> Listing[Change, HistoryFound]:
        """The orders that an instance was given, the first one first, and how each ended."""

        async def question() -> AskHistory:
            return AskHistory(instance=await self._id(instance), project=self.project, limit=HISTORY_PAGE)

        return Listing(self, question, HistoryFound, lambda page: page.changes)


# Reads what guests have written to their serial consoles.

LOOK_S = 1.0


class ConsoleCalls(NamingSession):
    """The client's methods about consoles."""

    async def console(self, instance: Named, *, start: int = -4096, limit: int = 4096) -> ConsoleFound:
        """What the guest has written to its serial console: `text`, which begins at the byte `start`; if negative, so many bytes before the end.

        The next part begins at `next`, and all of it has `size` bytes now. Raises `NoConsoleFound`.
        """
        question = AskConsole(
            instance=await self._id(instance),
            project=self.project,
            start=start,
            limit=min(limit, CONSOLE_BYTES_MAX),
        )
        found = await self._ask(question, ConsoleFound)
        if found.none:
            raise NoConsoleFound(found.none)
        return found

    async def follow_console(self, instance: Named, *, start: int = -4096) -> AsyncGenerator[str, None]:
        """What the guest has written from the byte `start` on, and what it writes from now on, until the instance is deleted.

        While there is no console, as during a move, it waits for one.
        """
        async with aclosing(self.console_parts(instance, start=start)) as parts:
            async for part in parts:
                if part.text:
                    yield part.text

    async def console_parts(
        self, instance: Named, *, start: int = -4096, follow: bool = True
    ) -> AsyncGenerator[ConsoleFound, None]:
        """The console from the byte `start` on, each part from where the last one ended. It ends at what there is now; with `follow`
        it goes on as the guest writes, until the instance is deleted.

        Parts may be empty. One with `none` says that there is no console now.
        """
        question = AskConsole(
            instance=await self._id(instance),
            project=self.project,
            start=start,
            limit=CONSOLE_BYTES_MAX if follow else min(abs(start), CONSOLE_BYTES_MAX),
        )
        parts = (parts_of_console if follow else last_of_console)(self._bus, question)
        while True:
            with self._raising(question):
                part = await anext(parts, None)
            if part is None:
                return
            yield part


async def parts_of_console(asking: Asks, question: AskConsole) -> AsyncGenerator[ConsoleFound, None]:
    """The parts of a console, each from where the last one ended, as the guest writes them, until the instance is deleted."""
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


class PlanCalls(NamingSession):
    """The client's questions about choices of hosts: before a request, and after it."""

    async def plan(self, flavor: Flavor | str | BuildInstance, **fields: Unpack[BuildFields]) -> PlanFound:
        """How many instances of this request would fit now, in which cells, and what would make more hosts qualify.

        It is a flavor with the other fields of a build, or a whole request.
        """
        request = build_of(flavor, self.project, await self._with_ids(fields))
        return await self._ask(AskPlan(request=request, project=request.project), PlanFound)

    def verdicts(
        self, flavor: Flavor | str | BuildInstance, *, step: str = "", **fields: Unpack[BuildFields]
    ) -> Listing[HostVerdict, ReasonsFound]:
        """The verdict on each host for this request: how many would fit there, or the first filter that removes it. For admins.

        With `step`, only on the hosts that this step removes; `qualify` stands for those that no step removes.
        """

        async def question() -> AskReasons:
            request = build_of(flavor, self.project, await self._with_ids(fields))
            return AskReasons(request=request, step=step, limit=VERDICTS_PAGE)

        return Listing(self, question, ReasonsFound, lambda page: page.hosts)

    async def explain(self, instance_or_request: Named, *, plan_now: bool = False) -> ExplanationsFound:
        """How the host of an instance was chosen, or those of all instances of a request; or why there was none.

        With `plan_now`, also a plan for the same needs. Raises `NotFound`.
        """
        about = AskExplanation(project=self.project, plan_now=plan_now, limit=EXPLANATIONS_PAGE)
        with self._raising(about):
            id_ = await instance_or_request_id(self._bus, instance_or_request, self.project)
            for question in (
                structs.replace(about, instance=InstanceId(id_)),
                structs.replace(about, request_id=RequestId(id_)),
            ):
                pages = [page async for page in pages_of(self._bus, question, ExplanationsFound)]
                found: tuple[Explanation, ...] = tuple(each for page in pages for each in page.explanations)
                if found:
                    return structs.replace(pages[0], explanations=found, next=None)
        raise NotFound("instance and no request", instance_or_request)


# Moves instances to other hosts, shelves and rebuilds them.

MOVES_PAGE = 200


class MoveCalls(InstanceCalls):
    """The client's methods that move instances or rebuild them."""

    async def migrate(
        self,
        instance: Named,
        *,
        confirm_s: int | None = None,
        together: Sequence[Named] = (),
        **fields: Unpack[MoveFields],
    ) -> SentRequest:
        """Move an instance to another host, stopped meanwhile. Then `confirm` the move or `revert` it; after `confirm_s` seconds it
        confirms itself.

        With `together`, these instances move to one host with room for all of them, and confirm at once.
        """
        return await self._move(instance, "migrate", fields, confirm_s=confirm_s, together=together)

    async def live_migrate(self, instance: Named, **fields: Unpack[MoveFields]) -> SentRequest:
        """Move an instance to another host while it runs."""
        return await self._move(instance, "live-migrate", fields)

    async def resize(
        self,
        instance: Named,
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
        self, instance: Named, *, together: Sequence[Named] = (), **fields: Unpack[MoveFields]
    ) -> SentRequest:
        """Build an instance anew on another host, since its own is down."""
        return await self._move(instance, "evacuate", fields, together=together)

    async def shelve(self, instance: Named, **fields: Unpack[OrderFields]) -> SentRequest:
        """Stop an instance. It keeps its host and its share."""
        return await self._move(instance, "shelve", fields)

    async def offload(self, instance: Named, **fields: Unpack[OrderFields]) -> SentRequest:
        """Stop an instance, save it as an image, and free its host. It may be shelved already."""
        return await self._move(instance, "offload", fields)

    async def unshelve(self, instance: Named, **fields: Unpack[MoveFields]) -> SentRequest:
        """Run a shelved instance again: on its host, or on any suitable one if it was offloaded."""
        return await self._move(instance, "unshelve", fields)

    async def stop(self, instance: Named, **fields: Unpack[OrderFields]) -> SentRequest:
        """Switch an instance off. It keeps its host and its share. Nothing is done if it is stopped already."""
        return await self._move(instance, "stop", fields)

    async def start(self, instance: Named, **fields: Unpack[OrderFields]) -> SentRequest:
        """Run a stopped instance again. Nothing is done if it is active already."""
        return await self._move(instance, "start", fields)

    async def reboot(self, instance: Named, **fields: Unpack[OrderFields]) -> SentRequest:
        """Stop an active instance, and start it again."""
        return await self._move(instance, "reboot", fields)

    async def confirm(self, instance: Named) -> SentRequest:
        """Confirm the last move, which has arrived: the first host is freed."""
        return await self._end(instance, "confirm")

    async def revert(self, instance: Named) -> SentRequest:
        """Revert the last move, which has arrived: the instance runs on its first host again, with its old size."""
        return await self._end(instance, "revert")

    async def abort(self, instance: Named) -> SentRequest:
        """Abort the last move before it arrives, or while it waits for room."""
        return await self._end(instance, "abort")

    async def rebuild(
        self, instance: Named, image: Image | str, **fields: Unpack[OrderFields]
    ) -> SentRequest:
        """Build an instance anew on its host, from this image; what is on its disk is lost.

        A text is the image's id or URL, or the name of a stored image, whose properties its host must have.
        """
        given = cast("dict[str, Any]", {"project": self.project, **fields})
        given["request_id"] = order_id(given.get("request_id"))
        if isinstance(image, str) and not is_image_source(image):
            given["image_name"] = image
        else:
            given["image"] = Image(source=image) if isinstance(image, str) else image
        order = RebuildInstance(instance=await self._id(instance), **given)
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

    def list_moves(self, *, host: str = "", ended: bool = False) -> Listing[Change, MovesFound]:
        """The moves of all instances, the newest first: those under way, or with `ended` all of them. For admins."""
        question = AskMoves(host=host, ended=ended, limit=MOVES_PAGE)
        return Listing(self, question, MovesFound, lambda page: page.moves)

    async def _move(
        self, instance: Named, kind: MoveKind, fields: MoveFields | OrderFields, **more: Any
    ) -> SentRequest:
        first, *others = await self._ids((instance, *more.pop("together", ())), fields)
        move = move_of(first, kind, self.project, fields, together=tuple(others), **more)
        return await self._moved(move, "the move")

    async def _ids(self, named: Sequence[Named], fields: MoveFields | OrderFields) -> list[InstanceId]:
        with self._raising():
            return await instance_ids(self._bus, named, fields.get("project", self.project))

    async def _end(self, instance: Named, how: MoveEnd) -> SentRequest:
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
