"""The list of instances as a stream: the table again whenever it has changed. A member gets that of their project, as on the page."""

import asyncio
from collections.abc import AsyncIterator
from functools import cached_property

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from bus.messages.build import AskInstances, InstancesFound
from kit.errors import ConnectionLost, Failure, Refusal
from moor.dashboard.asking_pages import PAGE, AskingPages, id_of
from moor.dashboard.rendering import PageRefused, Reader
from moor.showing import COLOURS

# All who look at the same list within this time see one answer, so that many readers ask no more than one.
LOOK_S = 5.0


class SeenTable(Struct, frozen=True):
    until_s: float
    page: str


class LiveInstances(AskingPages):
    async def live_instances(self, request: Request, reader: Reader) -> Response:
        question = instances_asked(request, reader)
        headers = {"cache-control": "no-store"}
        return StreamingResponse(self._tables_of(question), media_type="text/event-stream", headers=headers)

    async def _tables_of(self, question: AskInstances) -> AsyncIterator[str]:
        last = ""
        while True:
            event = await self._event(question)
            yield event if event != last else ": quiet\n\n"
            last = event
            await asyncio.sleep(LOOK_S)

    async def _event(self, question: AskInstances) -> str:
        try:
            kind, page = "instances", await self._table(question)
        except (PageRefused, Failure, ConnectionLost, Refusal) as problem:
            kind, page = "trouble", str(problem)
        lines = "".join(f"data: {line}\n" for line in page.splitlines())
        return f"event: {kind}\n{lines}\n"

    async def _table(self, question: AskInstances) -> str:
        now_s = asyncio.get_running_loop().time()
        for asked in [asked for asked, seen in self._seen_tables.items() if seen.until_s <= now_s]:
            del self._seen_tables[asked]
        if question not in self._seen_tables:
            found = await self._ask(question, InstancesFound)
            page = self._render("instance_table.html", found=found, after=question.after)
            self._seen_tables[question] = SeenTable(now_s + LOOK_S / 2, page)
        return self._seen_tables[question].page

    @cached_property
    def _seen_tables(self) -> dict[AskInstances, SeenTable]:
        return {}


def instances_asked(request: Request, reader: Reader) -> AskInstances:
    """The question behind a list of instances: only those of the reader's project, if they are no administrator."""
    asked = request.query_params
    state = asked.get("state", "")
    if state not in ("", *COLOURS):
        raise PageRefused(f"state is {state!r}: there is none.")
    return AskInstances(
        state=state,
        name=asked.get("name", "").strip(),
        after=id_of(asked.get("after", "")),
        limit=PAGE,
        project=reader.project,
    )
