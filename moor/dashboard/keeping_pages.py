"""The pages of keeping: questions to persons, campaigns with their hosts, movements, budgets with their use, and the hosts of the cloud by domains.

All who look within a few seconds see the same: the changing part of the page is made once for them.
"""

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from engine.places import domain_of, is_within
from moor.client import (
    FILL_PARTS,
    TILE_STATES,
    CampaignDetails,
    CampaignHost,
    CampaignState,
    Client,
    Movement,
    Question,
)
from moor.client.keeping import goes_on
from moor.dashboard.rendering import (
    PAGE,
    HtmlTable,
    PageRefused,
    PageRenderer,
    Reader,
    is_number,
    stream_of,
    streamed,
    table_of,
)
from moor.resource_commands import items_of
from moor.resources import BUDGET, CAMPAIGN, HOST, HOSTS_OF_CAMPAIGN, MOVEMENT, QUESTION, WEEKS, HostShown
from moor.showing import time_in_words
from moor.tables import Amount, Columns
from scheduler_worker.hosts import state_of

LOOK_S = 5.0
# Places of hosts seldom change, and to read all hosts is dear.
HOSTS_KEPT_S = 30.0
CAMPAIGNS_SHOWN_MAX = 20
LETTERS = {state: letter for letter, state in TILE_STATES.items()}
# Of each campaign's hosts that are out or have failed.
OUT_SHOWN_MAX = 20
# So many of the latest recoveries.
LOST_SHOWN_MAX = 10


class Domain(Struct, frozen=True):
    """A domain, with a letter for each of its hosts that are in no domain below it (`Tiles` explains the letters)."""

    place: str
    hosts: Sequence[HostShown]
    below: Sequence["Domain"]
    count: int
    up: int

    @property
    def name(self) -> str:
        return self.place.rpartition("/")[2]

    @property
    def tiles(self) -> str:
        return "".join(map(tile_of, self.hosts))


def domain_with(place: str, level: int, hosts: Iterable[HostShown]) -> Domain:
    """The domain of this place and level, with these hosts in it."""
    here: list[HostShown] = []
    below: dict[str, list[HostShown]] = {}
    for each in hosts:
        part = domain_of(each.host.place, level + 1)
        (below.setdefault(part, []) if part else here).append(each)
    parts = [domain_with(part, level + 1, some) for part, some in sorted(below.items())]
    here.sort(key=lambda each: (each.host.cell, each.host.name))
    return Domain(
        place,
        here,
        parts,
        len(here) + sum(each.count for each in parts),
        sum(each.host.up for each in here) + sum(each.up for each in parts),
    )


def domain_at(place: str, domain: Domain) -> Domain | None:
    """The domain of this place in that one; None if there is none."""
    if domain.place == place:
        return domain
    into = next((each for each in domain.below if is_within(place, each.place)), None)
    return into and domain_at(place, into)


def tile_of(shown: HostShown) -> str:
    if letter := LETTERS.get(state_of(shown.host)):
        return letter
    fullest = [each.used / each.capacity if each.capacity else 0.0 for each in (shown.uses or {}).values()]
    return "f" if fullest and max(fullest) >= 1 else str(int(max(fullest) * FILL_PARTS)) if fullest else "?"


class KeepingPages(PageRenderer):
    def __init__(self, moor: Client) -> None:
        self._moor = moor
        self._lock = asyncio.Lock()
        # The changing part of the page that was rendered last, the hosts that it showed, and until when they count.
        self._shown, self._until_s = "", -math.inf
        self._cloud, self._hosts_until_s = domain_with("", 0, ()), -math.inf

    async def keeping(self, request: Request, reader: Reader) -> Response:
        return self._page(request, reader, "keeping.html", live=await self._live())

    async def live(self, _request: Request, _reader: Reader) -> Response:
        return streamed(stream_of("keeping", self._live, LOOK_S))

    async def campaign(self, request: Request, reader: Reader) -> Response:
        found = await self._moor.show_campaign(request.path_params["id"])
        begin = request.query_params.get("skip", "0")
        if not is_number(begin):
            raise PageRefused(f"skip is {begin!r}: it is no number of hosts.")
        end = int(begin) + PAGE
        going = await self._moor.list_movements(campaign=str(found.campaign.id)).first(PAGE)
        return self.thing(
            request,
            reader,
            found.campaign.name or "Campaign",
            CAMPAIGN.facts(found.campaign),
            [
                ("Its hosts", _hosts(found.hosts[int(begin) : end], "no more hosts")),
                ("What goes on", _moving(going)),
                ("What was given up", _moving(await self._given_up(found.campaign))),
            ],
            orders=_orders_of(found) if reader.operates else (),
            links=(
                *(((f"?skip={end}", "The next hosts"),) if end < len(found.hosts) else ()),
                (f"/movements?campaign={found.campaign.id}&ended=1", "All its movements"),
            ),
        )

    async def question(self, request: Request, reader: Reader) -> Response:
        found = await self._moor.show_question(request.path_params["id"])
        return self.thing(
            request,
            reader,
            f"Question about host {found.host}",
            QUESTION.facts(found),
            [],
            orders=_answers_of(found) if reader.operates else (),
            links=((f"/campaigns/{found.campaign}", "Its campaign"),),
        )

    async def tile(self, request: Request, reader: Reader) -> Response:
        """The host behind a tile: that with this number in its domain."""
        place, text = request.path_params["place"], request.path_params["number"]
        if not is_number(text):
            raise PageRefused(f"{text!r} is no number of a host.")
        domain = domain_at(place, await self._domains())
        if domain is None or int(text) >= len(domain.hosts):
            return self.refusal(request, reader, HTTPStatus.NOT_FOUND, f"{place!r} has no host {text}.")
        host = domain.hosts[int(text)].host
        return RedirectResponse(f"/hosts/{quote(host.cell)}/{quote(host.name)}", HTTPStatus.SEE_OTHER)

    async def _live(self) -> str:
        now_s = asyncio.get_running_loop().time
        async with self._lock:
            if now_s() >= self._until_s:
                self._shown = self._render("keeping_live.html", **await self._seen())
                self._until_s = now_s() + LOOK_S / 2
            return self._shown

    async def _seen(self) -> Mapping[str, Any]:
        going = await self._moor.list_campaigns().first(CAMPAIGNS_SHOWN_MAX)
        latest = await self._moor.list_campaigns(ended=True).first(CAMPAIGNS_SHOWN_MAX)
        states = [*{each.id: each for each in (*going, *latest)}.values()][:CAMPAIGNS_SHOWN_MAX]
        campaigns = [await self._moor.show_campaign(each.id) for each in going]
        given_up = [each for state in states for each in await self._given_up(state)]
        budgets = await self._moor.list_budgets()
        questions = await self._moor.list_questions().first(PAGE)
        cloud = await self._domains()
        known = {each.campaign.id: each for each in campaigns}
        lost = _suspected(cloud)
        for each in [each for each in states if each.work.by_policy][:LOST_SHOWN_MAX]:
            found = known.get(each.id) or await self._moor.show_campaign(each.id)
            lost = [*lost, *found.hosts][:PAGE]
        return {
            "lost": table_of(LOST, lost, _page_of, "No host is lost, or was lately."),
            "weeks": table_of(WEEKS, await self._moor.keeping_weeks(), None, "Nothing was done unasked."),
            "questions": table_of(QUESTION.columns, questions, QUESTION.page_of, "Nothing is asked."),
            "campaigns": table_of(CAMPAIGN.columns, states, CAMPAIGN.page_of, "There were no campaigns."),
            "out": [(each.campaign, _hosts(_out(each)[:OUT_SHOWN_MAX])) for each in campaigns],
            "movements": _moving(await self._moor.list_movements().first(PAGE)),
            "given_up": _moving(given_up[:PAGE]),
            "budgets": table_of(BUDGET.columns, budgets, None, "There are no budgets."),
            "cloud": cloud,
        }

    async def _given_up(self, campaign: CampaignState) -> list[Movement]:
        if not campaign.movements.get("given_up"):
            return []
        return await self._moor.list_movements(campaign=str(campaign.id), life="given_up").first(PAGE)

    async def _domains(self) -> Domain:
        now_s = asyncio.get_running_loop().time
        if now_s() >= self._hosts_until_s:
            self._cloud = domain_with("", 0, [each async for each in items_of(HOST, self._moor)])
            self._hosts_until_s = now_s() + HOSTS_KEPT_S
        return self._cloud


STAGES = {"waiting": "suspected", "held": "waits for an answer", "asked": "waits for an answer"}
# Hosts that are lost, as campaigns have them; those that may be lost, too.
LOST = Columns[CampaignHost](
    {
        "host": lambda each: each.host,
        "cell": lambda each: each.cell,
        "place": lambda each: each.place,
        "what": lambda each: "recovered" if each.stage == "done" else STAGES.get(each.stage, each.stage),
        "last heard": lambda each: time_in_words(each.lost_at),
        "since": lambda each: time_in_words(each.stage_at),
        "guests": lambda each: Amount(each.moved, of) if (of := each.moved + each.left + each.stay) else "",
        "reason": lambda each: each.reason,
    },
    prose=("reason",),
)


def _suspected(cloud: Domain) -> list[CampaignHost]:
    """Hosts that are silent, and of which no campaign has said anything: as campaigns would have them."""
    silent = [
        each.host
        for each in cloud.hosts
        if not each.host.up and each.host.silent_since and each.host.setting.mode in ("up", "draining")
    ]
    below = [each for part in cloud.below for each in _suspected(part)]
    return [
        *(
            CampaignHost(
                id=each.id, host=each.name, cell=each.cell, place=each.place, lost_at=each.silent_since
            )
            for each in silent
        ),
        *below,
    ]


def _page_of(host: CampaignHost) -> str:
    return f"/hosts/{host.cell}/{host.host}"


def _out(found: CampaignDetails) -> list[CampaignHost]:
    return [each for each in found.hosts if each.stage not in ("waiting", "done")]


def _hosts(hosts: Sequence[Any], nothing: str = "none of its hosts is out now") -> HtmlTable:
    return table_of(HOSTS_OF_CAMPAIGN, hosts, _page_of, nothing)


def _moving(movements: Sequence[Movement]) -> HtmlTable:
    return table_of(MOVEMENT.columns, movements, MOVEMENT.page_of, "none")


def _answers_of(question: Question) -> list[tuple[str, str]]:
    named = f"/orders/answer?question={question.id}&answer="
    return [
        (named + quote(each.answer), f"Answer {each.answer}")
        for each in question.choices
        if question.life == "open"
    ]


def _orders_of(found: CampaignDetails) -> list[tuple[str, str]]:
    orders = {"resume": "Resume it"} if found.campaign.life == "paused" else {"pause": "Pause it"}
    named = f"/orders/campaign?campaign={found.campaign.id}&to="
    return [
        (named + to, words)
        for to, words in {**orders, "cancel": "Cancel it"}.items()
        if goes_on(found.campaign)
    ]
