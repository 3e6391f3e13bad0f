"""What every page has: its templates, its reader, and the page that says why there is none."""

import functools
import re
from http import HTTPStatus
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from engine.hosts import host_in_cell
from moor.dashboard.pictures import funnel_of, parts_of_choice, parts_of_funnel, share
from moor.showing import size_in_words, time_in_words

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


class PageRenderer:
    def refusal(self, request: Request, reader: Reader, status: HTTPStatus, why: str) -> Response:
        page = self._page(request, reader, "refusal.html", why=why, status=status)
        page.status_code = status
        return page

    async def not_found(self, request: Request, _problem: Exception) -> Response:
        return self.refusal(request, NOBODY, HTTPStatus.NOT_FOUND, "There is no such page.")

    def _page(self, request: Request, reader: Reader, template: str, **shown: Any) -> HTMLResponse:
        return HTMLResponse(self._render(template, path=request.url.path, reader=reader, **shown))

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
        "funnel_of": funnel_of,
        "parts_of_funnel": parts_of_funnel,
        "parts_of_choice": parts_of_choice,
        "size_in_words": size_in_words,
        "host_in_cell": host_in_cell,
    }
    return templates
