"""A dashboard over a fake cloud, and browsers that visit it: what tests of its forms need."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from uuid import UUID

import bcrypt
import httpx
from msgspec import structs

from bus.addresses import Addresses
from bus.message import Message
from bus.messages.build import AskInstances, BuildRejected, DeleteInstance, InstancesFound, InstanceState
from bus.messages.cloud import AskOverview
from bus.messages.hosts import AskHosts, HostSet, HostsFound, SetHost
from engine.flavors import InstanceId, RequestId
from engine.hosts import HostSetting, HostState, host_in_cell
from engine.inventories import ProviderId
from kit.errors import Unavailable
from kit.keystone import OpenStackSettings
from moor.dashboard.access import Access, OpeningToken, SessionStore
from moor.dashboard.actions import Actions, Clouds
from moor.dashboard.cloud_pages import CloudPages, Watcher
from moor.dashboard.instance_pages import InstancePages
from moor.dashboard.letters import LetterPages, LetterReader
from moor.dashboard.node_pages import MetalReader, NodePages
from moor.dashboard.service import dashboard_app
from moor.settings import Settings
from placement_worker.api.auth import MEMBER_ROLES, Authentication, BasicAuthentication, User

SETTINGS = Settings(addresses=Addresses(bus_url="unix:///nowhere/bus.sock"), data=Path("/nowhere"))
NOON = datetime(2031, 1, 1, 12, tzinfo=UTC)
SHOPS = InstanceId(UUID("00000000-0000-4000-8000-000000000001"))
GARDENS = InstanceId(UUID("00000000-0000-4000-8000-000000000002"))
SCRIPT = "<script>alert(1)</script>"
# The cheapest hash that bcrypt allows; every user has this password.
PASSWORD = "s3cret"  # noqa: S105
HASHED = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4))
USERS = {
    "root": User(HASHED),
    "ann": User(HASHED, "shop", MEMBER_ROLES),
    "bob": User(HASHED, "garden", MEMBER_ROLES),
    "reader": User(HASHED, "shop"),
}


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
    """Answers as schedulers do, and remembers what was ordered. `refusal` is its answer to orders if it is set; orders wait
    for `may_answer`.
    """

    def __init__(self) -> None:
        self.hosts = {"h1": HostState(id=ProviderId(UUID(int=1)), name="h1", cell="c1", up=True)}
        self.instances = {
            SHOPS: an_instance(SHOPS, "shop"),
            GARDENS: an_instance(GARDENS, "garden"),
        }
        self.ordered: list[Message] = []
        self.refusal: BuildRejected | None = None
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def ask(self, question: Message) -> Message:
        match question:
            case AskHosts(name=name):
                return HostsFound(hosts=tuple(each for each in self.hosts.values() if is_called(each, name)))
            case AskOverview():
                raise Unavailable("no scheduler")
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
        if self.refusal is not None:
            return self.refusal
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
    """A dashboard. `shown` are the tokens that its process has printed."""

    def __init__(
        self,
        auth: Authentication | None = None,
        *,
        cloud: FakeCloud | None = None,
        port: int = 1,
        opens: bool = False,
        sessions: SessionStore | None = None,
        scheme: str = "http",
    ) -> None:
        self.cloud = cloud or FakeCloud()
        self.shown: list[str] = []
        self.sessions = SessionStore() if sessions is None else sessions
        self.url = f"{scheme}://testserver"
        self.watcher = watcher = Watcher(self.cloud, SETTINGS, every_s=0.01)
        letters = LetterPages(LetterReader(watcher.brokers))
        nodes = NodePages(MetalReader(SETTINGS, OpenStackSettings))
        opening = OpeningToken(self.shown.append) if opens else None
        self.access = Access(auth or BasicAuthentication(USERS), self.sessions, port=port, opening=opening)
        self.actions = Actions(self.access, Clouds(self.cloud, letters.reader, self._ordering))  # type: ignore[arg-type]
        self.app = dashboard_app(
            CloudPages(self.cloud, watcher),  # type: ignore[arg-type]
            InstancePages(self.cloud),  # type: ignore[arg-type]
            nodes,
            letters,
            self.actions,
            hosts=["testserver"],
        )

    @asynccontextmanager
    async def _ordering(self) -> AsyncIterator[FakeCloud]:
        yield self.cloud

    def browser(self, address: str = "127.0.0.1") -> "FakeBrowser":
        return FakeBrowser(self, address)

    async def logged_in(self, user: str) -> "FakeBrowser":
        browser = self.browser()
        answer = await browser.log_in(user=user, password=PASSWORD)
        assert answer.status_code == 303, answer.text
        return browser


class FakeBrowser(httpx.AsyncClient):
    """Keeps cookies, and names the origin of each form, as browsers do."""

    def __init__(self, visited: Visited, address: str) -> None:
        super().__init__(
            transport=httpx.ASGITransport(app=visited.app, client=(address, 1)),
            base_url=visited.url,
            headers={"accept": "text/html"},
        )
        self.origin = visited.url

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
