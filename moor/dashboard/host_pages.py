"""The pages of hosts: a list, and one host with its instances."""

from http import HTTPStatus

from rich.text import Text
from starlette.requests import Request
from starlette.responses import Response

from bus.messages.build import AskInstances, InstancesFound
from bus.messages.hosts import AskHosts, HostsFound
from engine.hosts import host_in_cell
from moor.dashboard.asking_pages import PAGE, AskingPages, id_of
from moor.dashboard.rendering import Reader
from moor.showing import facts_of_host


class HostPages(AskingPages):
    async def hosts(self, request: Request, reader: Reader) -> Response:
        """In the order of their names, or only those of one name."""
        asked = request.query_params
        name, after = asked.get("name", "").strip(), asked.get("after", "")
        found = await self._ask(AskHosts(name=name, after=after, limit=PAGE), HostsFound)
        return self._page(
            request, reader, "hosts.html", hosts=found.hosts, next=found.next, after=after, name=name
        )

    async def host(self, request: Request, reader: Reader) -> Response:
        name = host_in_cell(request.path_params["cell"], request.path_params["name"])
        found = await self._ask(AskHosts(name=name), HostsFound)
        if not found.hosts:
            return self.refusal(request, reader, HTTPStatus.NOT_FOUND, f"There is no host {name}.")
        (host, *_) = found.hosts
        after = id_of(request.query_params.get("after", ""))
        there = await self._ask(AskInstances(host=name, after=after, limit=PAGE), InstancesFound)
        return self._page(
            request,
            reader,
            "host.html",
            host=host,
            facts=[(label, Text.from_markup(fact).plain) for label, fact in facts_of_host(host)],
            found=there,
        )
