"""What every page has: its reader, its templates, tables and facts as a terminal has them, small pictures of numbers, and the page
that says why there is none.
"""

import asyncio
import functools
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from http import HTTPStatus
from itertools import accumulate
from operator import sub
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape
from msgspec import Struct
from rich.text import Text
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse

from engine.hosts import host_in_cell
from engine.refusals import NoValidHost
from kit.errors import ConnectionLost, Failure, Refusal
from moor.client import ClientError, HostChoice, NotInTime
from moor.showing import size_in_words, time_in_words
from moor.tables import Amount, Columns, styled, text_of

HERE = Path(__file__).parent


class PageRefused(Exception):  # noqa: N818 - named for what happened
    """A page cannot be shown as it was asked for; says which value is wrong, and why."""


class Reader(Struct, frozen=True):
    """The user who reads a page. `project` is the only one whose instances they may see; empty for administrators.

    `form_token` is that of their session; without one they only read. With one, administrators may order everything, and a
    user with `may_delete` deletes instances of their project.
    """

    name: str
    project: str
    is_admin: bool
    may_delete: bool = False
    form_token: str = ""

    @property
    def operates(self) -> bool:
        return self.is_admin and bool(self.form_token)

    @property
    def deletes(self) -> bool:
        return self.may_delete and bool(self.form_token)


NOBODY = Reader("", "", is_admin=False)


# Tables and facts of the terminal, as HTML.

CLASSES = {"green": "good", "red": "bad", "yellow": "note", "dim": "quiet"}


def html_of(cell: str | Text | Amount) -> Markup:
    """A cell of a table as HTML: what is coloured in a terminal has a class, and an amount a bar."""
    if isinstance(cell, Amount):
        bar = (
            '<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><rect class="all" width="100"'
            f' height="8"/><rect class="{"removed" if cell.used > cell.capacity else "part"}" width="{share(cell.used, cell.capacity)}" height="8"/></svg>'
        )
        return Markup(f'<span class="line">{bar} {cell.used:,} / {cell.capacity:,}</span>')  # noqa: S704 - numbers
    text = text_of(cell)
    parts = []
    for piece in text.divide(sorted({at for span in text.spans for at in (span.start, span.end)})):
        styles = [str(piece.style), *(str(span.style) for span in piece.spans)]
        found = [CLASSES[word] for style in styles for word in style.split() if word in CLASSES]
        said = unbroken(piece.plain)
        parts.append(Markup('<span class="{}">{}</span>').format(found[0], said) if found else said)
    return Markup("").join(parts)


class HtmlCell(Struct, frozen=True):
    heading: str
    html: Markup
    is_number: bool
    # The page about the thing; empty in all cells but the first.
    link: str = ""


class HtmlTable(Struct, frozen=True):
    """A table as its template draws it: rows of cells, without the columns that are empty."""

    rows: Sequence[Sequence[HtmlCell]]
    nothing: str = ""


class FormField(Struct, frozen=True):
    """A field of a page's form. `values` are those to choose from; without them it is a text, of which `hint` is an example."""

    name: str
    label: str
    values: Sequence[tuple[str, str]] = ()
    hint: str = ""
    is_number: bool = False
    is_secret: bool = False
    # As what browsers complete it.
    completes: str = "off"


def table_of(
    columns: Columns[Any], items: Sequence[Any], page_of: Callable[[Any], str] | None, nothing: str
) -> HtmlTable:
    headings, made = columns.filled(items)
    rows = []
    for item, row in zip(items, made, strict=True):
        links = (quote(page_of(item)) if page_of is not None else "", *[""] * len(row))
        cells = zip(headings, row, links, strict=False)
        rows.append(
            [HtmlCell(name, html_of(cell), name in columns.numbers, link) for name, cell, link in cells]
        )
    return HtmlTable(rows, nothing)


class PageRenderer:
    def refusal(self, request: Request, reader: Reader, status: HTTPStatus, why: str) -> Response:
        return self._page(request, reader, "refusal.html", status, why=why)

    async def not_found(self, request: Request, _problem: Exception) -> Response:
        return self.refusal(request, NOBODY, HTTPStatus.NOT_FOUND, "There is no such page.")

    def _page(
        self,
        request: Request,
        reader: Reader,
        template: str,
        status: HTTPStatus = HTTPStatus.OK,
        **shown: Any,
    ) -> HTMLResponse:
        page = self._render(template, path=request.url.path, reader=reader, status=status, **shown)
        return HTMLResponse(page, status)

    def thing(
        self,
        request: Request,
        reader: Reader,
        title: str,
        facts: Sequence[tuple[str, str]],
        parts: Sequence[tuple[str, HtmlTable]],
        **more: Any,
    ) -> Response:
        return self._page(
            request,
            reader,
            "thing.html",
            **{
                "title": title,
                "facts": [(label, html_of(styled(fact))) for label, fact in facts if fact],
                "parts": parts,
                "orders": (),
                "links": (),
                "text": None,
                "note": "",
                **more,
            },
        )

    def _render(self, template: str, **shown: Any) -> str:
        return _templates().get_template(template).render(**shown)


# A browser would break them at their hyphens.
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def unbroken(text: str) -> Markup:
    """The text for a page, in which no UUID is broken over two lines."""
    return Markup(_UUID.sub(r'<span class="line">\g<0></span>', str(escape(text))))  # noqa: S704 - it is escaped


@functools.cache
def _templates() -> Environment:
    templates = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # The files do not change while it runs.
        auto_reload=False,
    )
    templates.filters["moment"] = time_in_words
    templates.filters["unbroken"] = unbroken
    templates.filters["number"] = lambda number: f"{number:,}"
    templates.globals |= {
        "share": share,
        "parts_of_funnel": parts_of_funnel,
        "parts_of_choice": parts_of_choice,
        "size_in_words": size_in_words,
        "host_in_cell": host_in_cell,
    }
    return templates


# So many rows has a page of a list.
PAGE = 100
LOOK_AT_WORKERS = "`moor status`, and the page of workers, say which workers were heard last."
NUMBER_MAX = 2**31


def why_refused(problem: Exception) -> str:
    """The words of a page about a problem."""
    if isinstance(problem, NotInTime):
        return f"No worker answers: {problem}. {LOOK_AT_WORKERS}"
    return str(problem)


def is_number(text: str) -> bool:
    # A text of thousands of digits is no number for Python either.
    return (
        text.isascii() and text.isdecimal() and len(text) <= len(str(NUMBER_MAX)) and int(text) <= NUMBER_MAX
    )


async def stream_of(
    event: str, render: Callable[[], Awaitable[str]], every_s: float
) -> AsyncGenerator[str, None]:
    """Server-sent events: what `render` makes, again whenever it is another one. Between them, comments keep proxies from closing the
    stream.
    """
    last = ""
    while True:
        try:
            kind, page = event, await render()
        except (ClientError, Failure, ConnectionLost, Refusal) as problem:
            kind, page = "trouble", why_refused(problem)
        lines = "".join(f"data: {line}\n" for line in page.splitlines())
        said = f"event: {kind}\n{lines}\n"
        yield said if said != last else ": quiet\n\n"
        last = said
        await asyncio.sleep(every_s)


def streamed(events: AsyncIterator[str]) -> Response:
    headers = {"cache-control": "no-store"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


# Numbers as small pictures, as attributes of SVG elements: a content security policy allows no styles inside of pages. Pure.

WIDTH, HEIGHT = 240, 48


def line_of(values: Sequence[tuple[float, float]], most: float = 0.0) -> str:
    """The points of a line through these values, each with its time, from left to right. The highest is at the top, or
    `most` if that is higher.
    """
    if not values:
        return ""
    most = max(most, *(value for _, value in values), 0.0) or 1.0
    first, last = values[0][0], values[-1][0]
    width = WIDTH / ((last - first) or 1.0)
    return " ".join(
        f"{(at - first) * width:.1f},{HEIGHT - value / most * (HEIGHT - 4) - 2:.1f}" for at, value in values
    )


# Of the width of a funnel: what is not zero is seen.
SEEN_MIN = 1.5


class FunnelPart(Struct, frozen=True):
    """One part of the picture of a funnel: `count` hosts go on from it. `points` are its corners, in a square of 100 by 100."""

    name: str
    count: int
    points: str


def funnel_parts(counts: Sequence[tuple[str, int]]) -> list[FunnelPart]:
    """A funnel from the largest number to the smallest: each part begins as wide as the one above it ends."""
    most = max((count for _, count in counts), default=0)
    found, above = [], 100.0
    for name, count in counts:
        width = max(share(count, most), SEEN_MIN) if count else 0.0
        corners = ((50 - above / 2, 0), (50 + above / 2, 0), (50 + width / 2, 100), (50 - width / 2, 100))
        found.append(FunnelPart(name, count, " ".join(f"{x:.2f},{y}" for x, y in corners)))
        above = width
    return found


def parts_of_funnel(found: NoValidHost) -> list[FunnelPart]:
    left = accumulate((each.removed for each in found.steps), sub, initial=found.hosts)
    return funnel_parts([*zip(("all hosts", *(each.step for each in found.steps)), left, strict=True)])


def parts_of_choice(choice: HostChoice) -> list[FunnelPart]:
    """A choice that found a host: of all hosts those that qualified, of these the chosen one and its alternates."""
    kept = ("chosen, with alternates", 1 + len(choice.alternates)) if choice.alternates else ("chosen", 1)
    return funnel_parts([("all hosts", choice.hosts), ("qualified", choice.qualified), kept])


def share(used: int, capacity: int) -> float:
    """In hundredths, at most a hundred; what has no capacity is full."""
    return round(100 * Amount(used, capacity).share, 2)
