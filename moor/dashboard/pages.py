"""What each page shows."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import UUID

from msgspec import structs
from rich.text import Text
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from bus.message import Message
from bus.messages.aggregates import AggregatesFound, AskAggregates
from bus.messages.build import (
    AskInstances,
    BuildInstance,
    Flavor,
    InstanceId,
    InstancesFound,
)
from bus.messages.groups import AskGroups, GroupsFound
from bus.messages.hosts import AskHosts, HostsFound, host_in_cell
from bus.messages.moves import AskHistory, AskMoves, Change, HistoryFound, MovesFound
from bus.messages.overview import AskTiles, Tiles
from bus.messages.planning import AskExplanation, AskPlan, ExplanationsFound, PlanFound
from moor.asking import Client, answer_of
from moor.client.errors import ClientError
from moor.dashboard.pictures import HEIGHT, WIDTH, line_of
from moor.dashboard.rendering import PageRefused, PageRenderer, Reader
from moor.dashboard.watching import STAGES, Watcher
from moor.instances.moves.history_command import how_it_ended
from moor.overview.judging import notes_of, troubles_of
from moor.overview.showing import instance_counts, main_uses, worker_groups
from moor.showing import COLOURS, facts_of_host

T = TypeVar("T")

PAGE = 100
# A comment that keeps proxies from closing a quiet stream.
QUIET_S = 20.0
SIZES = {"vcpus": "VCPUs", "ram_mb": "memory (MB)", "root_gb": "disk (GB)"}
SIZE_MAX = 2**31
DIGITS_MAX = 10
HISTORY_PAGES_MAX = 10


class Pages(PageRenderer):
    def __init__(self, asking: Client, watcher: Watcher) -> None:
        super().__init__()
        self._asking = asking
        self._watcher = watcher
        # The last part of the overview that was rendered, and of what.
        self._rendered: tuple[object, str, str] = (None, "", "")

    async def overview(self, request: Request, reader: Reader) -> Response:
        return self._page(request, reader, "overview.html", live=self._live())

    async def live(self, _request: Request, _reader: Reader) -> Response:
        """The overview as server-sent events: the changing part of the page, each time that something new was seen."""
        return StreamingResponse(
            self._events(), media_type="text/event-stream", headers={"cache-control": "no-store"}
        )

    async def _events(self) -> AsyncIterator[str]:
        news = aiter(self._watcher.news())
        coming = asyncio.ensure_future(anext(news))
        try:
            while True:
                done, _ = await asyncio.wait((coming,), timeout=QUIET_S)
                if not done:
                    yield ": quiet\n\n"
                    continue
                coming.result()
                lines = "".join(f"data: {line}\n" for line in self._live().splitlines())
                yield f"event: overview\n{lines}\n"
                coming = asyncio.ensure_future(anext(news))
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
            await news.aclose()  # type: ignore[attr-defined]  # it is a generator

    def _live(self) -> str:
        """The changing part of the overview: rendered once for all who look."""
        seen = self._watcher.seen
        known, trouble, page = self._rendered
        if known is not seen or trouble != self._watcher.trouble or not page:
            page = self._render("live.html", **self._seen())
            self._rendered = (seen, self._watcher.trouble, page)
        return page

    def _seen(self) -> Mapping[str, Any]:
        seen, hour = self._watcher.seen, [*self._watcher.hour]
        if seen is None or seen.view.overview is None:
            silent = seen.view.silent if seen else ""
            return {"overview": None, "trouble": self._watcher.trouble or silent}
        overview = seen.view.overview
        return {
            "overview": overview,
            "trouble": self._watcher.trouble,
            "troubles": troubles_of(seen.view),
            "notes": notes_of(seen.view),
            "tiles": seen.tiles,
            "counts": instance_counts(overview),
            "uses": main_uses(overview.uses),
            "workers": worker_groups(overview.workers),
            "queues": [
                (name, depth)
                for broker in seen.view.brokers
                for name, depth in broker.queues.items()
                if depth
            ],
            "brokers": seen.view.brokers,
            "rates": [
                (stage, hour[-1].per_s[stage] if hour else 0.0, line_of([each.per_s[stage] for each in hour]))
                for stage in STAGES
            ],
            "conflicts": (
                hour[-1].conflicts_per_s if hour else 0.0,
                line_of([each.conflicts_per_s for each in hour]),
            ),
            "since": hour[0].at if hour else None,
            "picture": (WIDTH, HEIGHT),
        }

    async def tile(self, request: Request, reader: Reader) -> Response:
        """The host behind a tile: that with this number, in the order of names."""
        cell, text = request.path_params["cell"], request.path_params["number"]
        if not _is_number(text):
            raise PageRefused(f"{text!r} is no number of a host.")
        number = int(text)
        page = await self._ask(AskTiles(in_cell=cell, skipped=number, named=True), Tiles)
        if not page.names:
            return self.refusal(request, reader, HTTPStatus.NOT_FOUND, f"cell {cell} has no host {number}.")
        return RedirectResponse(f"/hosts/{quote(cell)}/{quote(page.names[0])}", HTTPStatus.SEE_OTHER)

    async def hosts(self, request: Request, reader: Reader) -> Response:
        after = request.query_params.get("after", "")
        found = await self._ask(AskHosts(after=after, limit=PAGE), HostsFound)
        return self._page(request, reader, "hosts.html", hosts=found.hosts, next=found.next, after=after)

    async def host(self, request: Request, reader: Reader) -> Response:
        name = host_in_cell(request.path_params["cell"], request.path_params["name"])
        found = await self._ask(AskHosts(name=name), HostsFound)
        if not found.hosts:
            return self.refusal(request, reader, HTTPStatus.NOT_FOUND, f"There is no host {name}.")
        (host, *_) = found.hosts
        there = await self._ask(AskInstances(host=name, limit=PAGE), InstancesFound)
        return self._page(
            request,
            reader,
            "host.html",
            host=host,
            facts=[(label, Text.from_markup(fact).plain) for label, fact in facts_of_host(host)],
            found=there,
        )

    async def instances(self, request: Request, reader: Reader) -> Response:
        asked = request.query_params
        state = asked.get("state", "")
        if state not in ("", *COLOURS):
            return self.refusal(
                request, reader, HTTPStatus.BAD_REQUEST, f"state is {state!r}: there is none."
            )
        after, wrong = _id(asked.get("after", ""))
        if wrong:
            return self.refusal(request, reader, HTTPStatus.BAD_REQUEST, wrong)
        question = AskInstances(state=state, after=after, limit=PAGE, project=reader.project)
        found = await self._ask(question, InstancesFound)
        return self._page(
            request, reader, "instances.html", found=found, state=state, states=[*COLOURS], after=after
        )

    async def instance(self, request: Request, reader: Reader) -> Response:
        id_ = InstanceId(request.path_params["id"])
        found = await self._ask(AskInstances(instances=(id_,), project=reader.project), InstancesFound)
        if not found.instances:
            return self.refusal(request, reader, HTTPStatus.NOT_FOUND, f"There is no instance {id_}.")
        (state,) = found.instances
        changes, has_more = await self._history(id_, reader)
        explained = await self._ask(AskExplanation(instance=id_, project=reader.project), ExplanationsFound)
        return self._page(
            request,
            reader,
            "instance.html",
            state=state,
            details=next(iter(found.details), None),
            changes=changes,
            has_more=has_more,
            explanations=explained.explanations,
            how_it_ended=how_it_ended,
        )

    async def _history(self, id_: InstanceId, reader: Reader) -> tuple[list[Change], bool]:
        """The orders for an instance, the oldest first, and whether there are more than are read here."""
        changes: list[Change] = []
        question = AskHistory(instance=id_, project=reader.project)
        for _ in range(HISTORY_PAGES_MAX):
            page = await self._ask(question, HistoryFound)
            changes += page.changes
            if not page.next:
                return changes, False
            question = structs.replace(question, after=page.next)
        return changes, True

    async def waiting(self, request: Request, reader: Reader) -> Response:
        found = await self._ask(AskInstances(state="waiting", limit=PAGE), InstancesFound)
        return self._page(request, reader, "waiting.html", found=found)

    async def moves(self, request: Request, reader: Reader) -> Response:
        found = await self._ask(AskMoves(limit=PAGE), MovesFound)
        return self._page(
            request,
            reader,
            "moves.html",
            moves=found.moves,
            has_more=len(found.moves) == PAGE,
            how_it_ended=how_it_ended,
        )

    async def why(self, request: Request, reader: Reader) -> Response:
        """What would fit, and why not the rest: of a request that is not built."""
        asked = request.query_params
        sizes, wrong = _sizes(asked)
        traits = [each for each in asked.get("traits", "").replace(",", " ").split() if each]
        plan, refused = None, wrong
        if any(sizes.values()) and not wrong:
            specs = {f"trait:{trait}": "required" for trait in traits}
            build = BuildInstance(
                flavor=structs.replace(Flavor(extra_specs=specs), **sizes), project=reader.project
            )
            try:
                plan = await self._ask(AskPlan(request=build, project=reader.project), PlanFound)
            except PageRefused as problem:
                refused = str(problem)
        return self._page(
            request,
            reader,
            "why.html",
            labels=SIZES,
            given={name: asked.get(name, "") for name in (*SIZES, "traits")},
            plan=plan,
            refused=refused,
        )

    async def groups(self, request: Request, reader: Reader) -> Response:
        found = await self._ask(AskGroups(limit=PAGE), GroupsFound)
        return self._page(request, reader, "groups.html", found=found)

    async def aggregates(self, request: Request, reader: Reader) -> Response:
        found = await self._ask(AskAggregates(limit=PAGE), AggregatesFound)
        return self._page(request, reader, "aggregates.html", found=found)

    async def _ask(self, question: Message, kind: type[T]) -> T:
        try:
            return await answer_of(self._asking, question, kind)
        except ClientError as wrong:
            raise PageRefused(str(wrong)) from None


def _id(text: str) -> tuple[InstanceId | None, str]:
    """The id after which a page begins; or what is wrong with it."""
    try:
        return (InstanceId(UUID(text)) if text else None), ""
    except ValueError:
        return None, f"after is {text!r}: it is no id of an instance."


def _is_number(text: str) -> bool:
    # A text of thousands of digits is no number for Python either.
    return text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX and int(text) <= SIZE_MAX


def _sizes(asked: Mapping[str, str]) -> tuple[dict[str, int], str]:
    """The sizes that a reader asks about; or what is wrong with them."""
    sizes = {}
    for name, label in SIZES.items():
        text = asked.get(name, "").strip()
        if text and not _is_number(text):
            return {}, f"{label} is {text!r}: it must be a whole number, at most {SIZE_MAX}."
        sizes[name] = int(text) if text else 0
    return sizes, ""
