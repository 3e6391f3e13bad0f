"""Builds, deletes, shows and lists instances."""

from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Unpack, get_args
from uuid import UUID

from bus.messages.build import (
    AskInstances,
    BuildAccepted,
    DeleteInstance,
    Flavor,
    InstanceDetails,
    InstanceId,
    InstancesFound,
    InstanceState,
    RequestId,
)
from bus.messages.moves import AskHistory, Change, HistoryFound
from moor.client.bus_client import FOUND_AT_ONCE_MAX, BusClient
from moor.client.errors import NotFound, Rejected
from moor.client.fields import BuildFields, StateName, build_of, order_id
from moor.client.following import States, has_ended, why_not_built
from moor.client.questions import batches_of, granted
from moor.client.requests import SentRequest
from moor.client.session import ClientSession

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

    async def history(self, instance: UUID) -> AsyncGenerator[Change, None]:
        """The orders that an instance was given, the first one first, and how each ended."""
        question = AskHistory(instance=InstanceId(instance), project=self.project, limit=HISTORY_PAGE)
        async for each in self._items(question, HistoryFound, lambda page: page.changes):
            yield each

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
