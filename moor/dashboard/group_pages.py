"""The pages of server groups and aggregates: lists, and the members of one."""

from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response

from bus.messages.hosts import AggregatesFound, AskAggregates
from bus.messages.stored_names import AskGroups, GroupsFound
from engine.inventories import GroupId
from moor.dashboard.asking_pages import PAGE, AskingPages, id_of
from moor.dashboard.rendering import Reader


class GroupPages(AskingPages):
    async def groups(self, request: Request, reader: Reader) -> Response:
        asked = request.query_params
        name, after = asked.get("name", "").strip(), asked.get("after", "")
        place = id_of(after)
        question = AskGroups(
            name=name, after=None if place is None else GroupId(place), limit=PAGE, project=reader.project
        )
        found = await self._ask(question, GroupsFound)
        return self._page(request, reader, "groups.html", found=found, name=name, after=after)

    async def group(self, request: Request, reader: Reader) -> Response:
        id_ = GroupId(request.path_params["id"])
        found = await self._ask(AskGroups(id=id_, project=reader.project), GroupsFound)
        if not found.groups:
            return self.refusal(request, reader, HTTPStatus.NOT_FOUND, f"There is no server group {id_}.")
        return self._page(request, reader, "group.html", group=found.groups[0])

    async def aggregates(self, request: Request, reader: Reader) -> Response:
        after = request.query_params.get("after", "")
        found = await self._ask(AskAggregates(after=after, limit=PAGE), AggregatesFound)
        return self._page(request, reader, "aggregates.html", found=found, after=after)

    async def aggregate(self, request: Request, reader: Reader) -> Response:
        name, after = request.path_params["name"], request.query_params.get("after", "")
        found = await self._ask(AskAggregates(name=name, after=after, limit=PAGE), AggregatesFound)
        if not (name and found.aggregates):
            return self.refusal(request, reader, HTTPStatus.NOT_FOUND, f"There is no aggregate {name!r}.")
        return self._page(
            request,
            reader,
            "aggregate.html",
            aggregate=found.aggregates[0],
            next=found.next,
            after=after,
        )
