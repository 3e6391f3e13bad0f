"""A dashboard that is served over a fake cloud, and browsers that visit it."""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

import bcrypt
import httpx
from msgspec import structs

from bus.addresses import Addresses
from bus.message import Message
from bus.messages.build import AskInstances, DeleteInstance, InstancesFound, InstanceState
from bus.messages.cloud import AskOverview
from bus.messages.hosts import AskHosts, HostSet, HostsFound, SetHost
from engine.flavors import InstanceId, RequestId
from engine.hosts import HostSetting, HostState, host_in_cell
from engine.inventories import ProviderId
from kit.errors import Unavailable
from moor.dashboard.service import DashboardOptions, DashboardService
from moor.settings import Settings
from tests.asking import client_of

# The visited are without TLS, and the authorities that a client reads otherwise take 30 ms.
NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
SETTINGS = Settings(addresses=Addresses(bus_url="unix:///nowhere/bus.sock"), data=Path("/nowhere"))
NOON = datetime(2031, 1, 1, 12, tzinfo=UTC)
SHOPS = InstanceId(UUID("00000000-0000-4000-8000-000000000001"))
GARDENS = InstanceId(UUID("00000000-0000-4000-8000-000000000002"))
SCRIPT = "<script>alert(1)</script>"
# The cheapest hash that bcrypt allows; every user has this password.
PASSWORD = "s3cret"  # noqa: S105
HASHED = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
USERS = f"root:{HASHED}\nann:{HASHED}:shop:member\nbob:{HASHED}:garden:member\nreader:{HASHED}:shop\n"


def an_instance(id_: InstanceId, project: str, **changed: object) -> InstanceState:
    state = InstanceState(
        id=id_,
        request_id=RequestId(id_),
        sequence=1,
        state="active",
        cell="c1",
        host="h1",
        project=project,
        name="web",
        changed_at=NOON,
    )
    return structs.replace(state, **changed)


def is_called(host: HostState, name: str) -> bool:
    return name in (host.name, host_in_cell(host.cell, host.name))


class FakeCloud:
    """Answers as schedulers do, and remembers what was ordered; orders wait for `may_answer`."""

    def __init__(self) -> None:
        self.hosts = {"h1": HostState(id=ProviderId(UUID(int=1)), name="h1", cell="c1", up=True)}
        self.instances = {
            SHOPS: an_instance(SHOPS, "shop"),
            GARDENS: an_instance(GARDENS, "garden"),
        }
        self.ordered: list[Message] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def ask(self, question: Message) -> Message:
        match question:
            case AskHosts(name=name):
                return HostsFound(hosts=tuple(each for each in self.hosts.values() if is_called(each, name)))
            case AskOverview():
                raise Unavailable("no scheduler")
            case AskInstances(request_id=UUID()):
                return InstancesFound(instances=())
            case AskInstances(instances=ids, project=project, host=host):
                found = [
                    each
                    for each in self.instances.values()
                    if (not ids or each.id in ids)
                    and project in ("", each.project)
                    and (not host or each.host)
                ]
                return InstancesFound(instances=tuple(found))
        self.ordered.append(question)
        await self.may_answer.wait()
        if isinstance(question, SetHost):
            name = next(name for name, each in self.hosts.items() if is_called(each, question.host))
            setting = HostSetting(mode=question.mode, reason=question.reason, by=question.for_user)
            self.hosts[name] = structs.replace(self.hosts[name], setting=setting)
            return HostSet(host=self.hosts[name])
        assert isinstance(question, DeleteInstance), f"the fake cloud cannot answer {question!r}"
        gone = structs.replace(self.instances[question.instance], state="deleting")
        self.instances[question.instance] = gone
        return InstancesFound(instances=(gone,))

    async def ask_all(self, questions: Sequence[Message]) -> list[Message]:
        return [await self.ask(each) for each in questions]


class Visited:
    """A dashboard that is served. `shown` are the lines that its process has printed."""

    def __init__(self, cloud: Any, options: DashboardOptions) -> None:
        self.cloud = cloud
        self.shown: list[str] = []
        self._browsers: list[FakeBrowser] = []
        self.service = DashboardService(
            self._connected, self._connected, SETTINGS, options, self.shown.append
        )
        self.url = self.service.url
        self.cookie = f"moorage-{self.url.rpartition(':')[2]}"

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        yield client_of(self.cloud)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        running = asyncio.create_task(self.service.run())
        try:
            async with httpx.AsyncClient(base_url=self.url, verify=NO_AUTHORITIES) as client:
                await client.get("/login")
            yield
        finally:
            for each in self._browsers:
                await each.aclose()
            await self.service.stop()
            await running

    def browser(self, address: str = "127.0.0.1", scheme: str = "http") -> "FakeBrowser":
        self._browsers.append(FakeBrowser(self, address, scheme))
        return self._browsers[-1]

    async def logged_in(self, user: str) -> "FakeBrowser":
        browser = self.browser()
        answer = await browser.log_in(user=user, password=PASSWORD)
        assert answer.status_code == 303, answer.text
        return browser


class Visit(Protocol):
    async def __call__(self, cloud: Any = None, auth: str = "basic", more_users: str = "") -> Visited: ...


class FakeBrowser(httpx.AsyncClient):
    """Keeps cookies, and names the origin of each form, as browsers do."""

    def __init__(self, visited: Visited, address: str, scheme: str) -> None:
        super().__init__(
            base_url=visited.url,
            verify=NO_AUTHORITIES,
            timeout=60,
            headers={"accept": "text/html", "x-forwarded-for": address, "x-forwarded-proto": scheme},
        )
        self.origin = visited.url.replace("http", scheme, 1)

    async def log_in(self, **fields: str) -> httpx.Response:
        page = await self.get("/login")
        return await self.send_form("/login", {**hidden(page), **fields})

    async def send_form(self, path: str, fields: dict[str, str], origin: str | None = "") -> httpx.Response:
        """With `origin` None, none is sent."""
        headers = {} if origin is None else {"origin": origin or self.origin}
        return await self.post(path, data=fields, headers=headers)

    async def form_of(self, path: str) -> dict[str, str]:
        """The hidden fields of the form that asks about an order."""
        page = await self.get(path)
        assert page.status_code == 200, page.text
        return hidden(page)

    async def order(self, path: str, **fields: str) -> httpx.Response:
        """Confirm an order, and return the page that says what became of it."""
        sent = await self.send_form(path.partition("?")[0], {**await self.form_of(path), **fields})
        assert sent.status_code == 303, sent.text
        return await self.get(sent.headers["location"])


def hidden(page: httpx.Response) -> dict[str, str]:
    """The hidden fields of the last form of a page: the first one is to log out."""
    form = page.text.rpartition("<form")[2]
    found = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', form)
    return {name: unescape(value) for name, value in found}
