"""Tokens of the real Keystone: what placement's HTTP API, the dashboard and the client of Ironic make of them."""

# ruff: noqa: S105, S106 - these passwords are for a server inside the tests

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
import trustme
from msgspec import Struct
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ironic_sync.rest import HttpIronicApi
from kit.errors import Unavailable
from kit.keystone import KeystoneTokens, OpenStackSettings
from kit.rest import RestLimits
from kit.tls import client_tls
from placement_worker.api.auth import KeystoneAuthentication
from tests.api.test_auth import guarded
from tests.placement_servers import our_server
from tests.served import served
from tests.servers.keystone import KeystoneAdmin, PrivateKeystone
from tests.unit.ironic.test_rest import NODE, told

# The first one installs Keystone into an environment of its own.
pytestmark = pytest.mark.timeout(900)

SERVICE_PASSWORD = "of placement"
PASSWORD = "of everybody else"
USAGES = "/usages?project_id={}"
VERSION = {"OpenStack-API-Version": "placement 1.39"}


class Identities(Struct):
    """A Keystone with the projects shop and garden, and a user for each role in shop."""

    keystone: PrivateKeystone
    admin: KeystoneAdmin
    shop: str
    garden: str
    users: dict[str, str]

    @property
    def account(self) -> OpenStackSettings:
        return OpenStackSettings(keystone_url=self.keystone.url, user="placement", password=SERVICE_PASSWORD)

    def token(self, user: str, **scope: object) -> str:
        """Of this user for the project shop, unless the scope is another."""
        return self.admin.token(user, PASSWORD, **({"project": "shop"} | scope))  # type: ignore[arg-type]

    def new_user(self, role: str) -> tuple[str, str]:
        """The name and the id of a user that one test alone has."""
        name = f"{role}-{uuid4().hex[:8]}"
        return name, self.admin.user(name, PASSWORD, {self.shop: role})


@pytest.fixture(scope="module")
def cloud() -> Iterator[Identities]:
    with PrivateKeystone() as keystone:
        admin = KeystoneAdmin(keystone)
        service, shop, garden = (admin.project(name) for name in ("service", "shop", "garden"))
        admin.user("placement", SERVICE_PASSWORD, {service: "service"})
        users = {
            role: admin.user(role, PASSWORD, {shop: role})
            for role in ("reader", "member", "service", "manager")
        }
        users["boss"] = admin.user("boss", PASSWORD, {shop: "admin"})
        admin.grant_system(users["boss"], "admin")
        try:
            yield Identities(keystone, admin, shop, garden, users)
        finally:
            admin.close()


@pytest.fixture(scope="module")
def placement(cloud: Identities, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`moor run placement-api` with upstream's newer rules, and its password in a file."""
    place = tmp_path_factory.mktemp("placement")
    file = place / "password"
    file.write_text(f"{SERVICE_PASSWORD}\n")
    file.chmod(0o600)
    account = {
        "MOOR_OPENSTACK_KEYSTONE_URL": cloud.keystone.url,
        "MOOR_OPENSTACK_USER": "placement",
        "MOOR_OPENSTACK_PASSWORD_FILE": str(file),
    }
    database = f"sqlite:///{place}/placement.db"
    with our_server(database, auth="keystone", options=("--policy", "secure"), settings=account) as server:
        yield server.url


async def status(url: str, token: str, method: str = "GET", path: str = "/resource_providers") -> int:
    headers = {**VERSION, **({"x-auth-token": token} if token else {})}
    async with httpx.AsyncClient(timeout=60) as client:
        body = {"name": uuid4().hex} if method == "POST" else None
        return (await client.request(method, f"{url}{path}", headers=headers, json=body)).status_code


async def test_each_role_may_do_at_placement_what_upstreams_rules_say(
    cloud: Identities, placement: str
) -> None:
    own, others = USAGES.format(cloud.shop), USAGES.format(cloud.garden)
    seen = {}
    for user in ("reader", "member", "manager", "service", "boss"):
        token = cloud.token(user)
        seen[user] = [
            await status(placement, token),
            await status(placement, token, "POST"),
            await status(placement, token, path=own),
            await status(placement, token, path=others),
        ]

    assert seen == {
        "reader": [403, 403, 200, 403],
        "member": [403, 403, 200, 403],
        "manager": [403, 403, 200, 403],
        "service": [200, 200, 200, 200],
        "boss": [200, 200, 200, 200],
    }


async def test_a_token_of_another_scope_is_no_token_of_the_project(cloud: Identities, placement: str) -> None:
    own = USAGES.format(cloud.shop)
    of_nothing = cloud.token("reader", project="")
    of_the_system = cloud.token("boss", project="", system=True)
    reader, its_id = cloud.new_user("reader")
    cloud.admin.grant(its_id, cloud.garden, "reader")
    of_garden = cloud.token(reader, project="garden")

    assert await status(placement, of_nothing, path=own) == 403
    # All of upstream's rules are for projects.
    assert await status(placement, of_the_system) == 403
    assert await status(placement, of_garden, path=own) == 403
    assert await status(placement, of_garden, path=USAGES.format(cloud.garden)) == 200


async def test_rights_that_end_in_keystone_end_here(cloud: Identities) -> None:
    """A role that is taken away, a user that is disabled, a password that is changed: each ends the user's tokens."""
    token = ""
    ends = (
        lambda _: cloud.admin.revoke(token),
        lambda user: cloud.admin.withdraw(user, cloud.shop, "admin"),
        lambda user: cloud.admin.change_user(user, enabled=False),
        lambda user: cloud.admin.change_user(user, password="another"),
    )
    clock = [time.time()]
    auth = KeystoneAuthentication(cloud.account, httpx.AsyncClient(), lambda: clock[0])
    async with guarded(auth) as server:
        for end in ends:
            name, user = cloud.new_user("admin")
            token = cloud.token(name)
            assert await status(server.url, token) == 200
            await asyncio.to_thread(end, user)
            assert await status(server.url, token) == 200, "it is remembered"
            clock[0] += 301
            assert await status(server.url, token) == 401


# The client of Ironic


class Ironic:
    """An Ironic that asks the real Keystone about each token, and takes those of a service or an administrator."""

    def __init__(self, cloud: Identities) -> None:
        self.auth = KeystoneAuthentication(cloud.account, httpx.AsyncClient())
        self.callers: list[frozenset[str]] = []
        self.app = Starlette(routes=[Route("/baremetal/v1/nodes/{id}", self._node)])

    async def _node(self, request: Request) -> Response:
        try:
            caller = await self.auth.caller(request.headers)
        except Exception:  # noqa: BLE001 - whatever Keystone says of it
            return Response(status_code=401)
        self.callers.append(caller.roles)
        return JSONResponse(told(), status_code=200 if caller.roles & {"service", "admin"} else 403)


async def test_the_client_of_ironic_logs_in_in_every_way_and_finds_it_in_the_catalogue(
    cloud: Identities, tmp_path: Path
) -> None:
    ironic = Ironic(cloud)
    secret = tmp_path / "secret"
    secret.write_text("of the credential")
    credential = cloud.admin.application_credential(
        cloud.users["service"], cloud.token("service"), secret.read_text(), "service"
    )
    by = partial(OpenStackSettings, keystone_url=cloud.keystone.url)
    of_shop = partial(by, user="service", password=PASSWORD, project="shop")
    ways = (
        of_shop(),
        by(user="boss", password=PASSWORD, scope="system"),
        by(application_credential_id=credential, password_file=str(secret)),
    )
    async with served(ironic.app) as server:
        cloud.admin.endpoint("baremetal", f"{server.url}/baremetal")
        for account in ways:
            api = HttpIronicApi("keystone", account, limits=RestLimits(tries_max=1))
            node = await api.node(NODE)
            assert node is not None
            assert node.id == NODE
            await api.close()
    await ironic.auth.close()
    assert ["service" in roles for roles in ironic.callers] == [True, False, True]


# TLS


async def test_keystones_certificate_is_checked_and_the_error_says_what_is_wrong(
    cloud: Identities, tmp_path: Path
) -> None:
    authority, another = trustme.CA(), trustme.CA()
    ca, other_ca, shown = (tmp_path / name for name in ("ca.pem", "other.pem", "shown.pem"))
    authority.cert_pem.write_to_path(str(ca))
    another.cert_pem.write_to_path(str(other_ca))

    async def login(file: Path) -> str:
        client = httpx.AsyncClient(verify=client_tls(str(file)))
        try:
            await KeystoneTokens(cloud.account, client).current()
        except Unavailable as problem:
            return str(problem)
        finally:
            await client.aclose()
        return ""

    said = {}
    try:
        for name, issued in {
            "right": authority.issue_cert("127.0.0.1"),
            "another name": authority.issue_cert("elsewhere.example"),
            "expired": authority.issue_cert("127.0.0.1", not_after=datetime.now(UTC) - timedelta(days=1)),
        }.items():
            issued.private_key_and_cert_chain_pem.write_to_path(str(shown))
            cloud.keystone.stop()
            cloud.keystone.certificate = shown
            cloud.keystone.start()
            said[name] = await login(ca)
            if name == "right":
                said["another authority"] = await login(other_ca)
    finally:
        cloud.keystone.stop()
        cloud.keystone.certificate = None
        cloud.keystone.start()

    assert said.pop("right") == ""
    assert all("Keystone at https://127.0.0.1:" in text for text in said.values())
    assert "IP address mismatch" in said["another name"]
    assert "certificate has expired" in said["expired"]
    assert (
        "unable to get local issuer" in said["another authority"]
        or "self-signed" in said["another authority"]
    )
