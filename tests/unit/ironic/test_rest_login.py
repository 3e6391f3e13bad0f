"""How the client logs in to Ironic: Keystone's tokens, basic authentication and certificates, on real TLS connections."""

# ruff: noqa: S105, S106 - these passwords are for servers inside the tests

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from msgspec import structs
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from bus.addresses import Addresses
from ironic_sync.rest import HttpIronicApi, ironic_api
from kit.errors import CredentialsRefused, Unavailable, WrongAnswer
from kit.keystone import (
    OPENSTACK,
    REFUSED_S,
    RENEW_BEFORE_S,
    KeystoneRefused,
    KeystoneTokens,
    OpenStackSettings,
)
from kit.login import tls_of
from kit.parts import Pauses
from kit.rest import RestLimits
from kit.settings import BadSetting
from kit.tls import server_tls
from tests.api.fake_keystone import OUR_PASSWORD, FakeKeystone
from tests.running import closing
from tests.served import served
from tests.unit.ironic.test_rest import NODE, told
from tests.waiting import Clock

QUICK = RestLimits(pauses=Pauses(0.001, 0.002), tries_max=3)
IDENTITY = "http://cloud/identity/v3/"
NOBODY = OpenStackSettings()
BY_PASSWORD = OpenStackSettings(user="moor", password="of the service", keystone_url=IDENTITY)


class Cloud:
    """Keystone, and an Ironic that believes its tokens, as one application. `took` are the tokens that Ironic was sent."""

    def __init__(self) -> None:
        self.keystone = FakeKeystone()
        self.keystone.service_user = "moor"
        self.took: list[str] = []
        self.opened: list[HttpIronicApi] = []
        self.app = Starlette(
            routes=[
                Route("/baremetal/v1/nodes/{id}", self._node),
                Mount("/", self.keystone.app),
            ]
        )

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.ASGITransport(self.app))

    def api(self, account: OpenStackSettings, url: str = "http://cloud/baremetal") -> HttpIronicApi:
        self.opened.append(HttpIronicApi(url, account, limits=QUICK, transport=httpx.ASGITransport(self.app)))
        return self.opened[-1]

    async def _node(self, request: Request) -> Response:
        token = request.headers.get("x-auth-token", "")
        self.took.append(token)
        if token not in self.keystone.service_tokens:
            return Response(status_code=401)
        return JSONResponse(told())


def in_catalogue(**changed: object) -> dict[str, object]:
    endpoint = {"interface": "public", "region_id": "north", "url": "http://cloud/baremetal/v1", "id": "e1"}
    return {"type": "baremetal", "name": "ironic", "endpoints": [endpoint | changed]}


@pytest.fixture
async def cloud() -> AsyncIterator[Cloud]:
    made = Cloud()
    yield made
    for each in made.opened:
        await each.close()


# Keystone


async def test_requests_carry_a_token_that_is_asked_for_once(cloud: Cloud) -> None:
    api = cloud.api(BY_PASSWORD)
    nodes = await asyncio.gather(*(api.node(NODE) for _ in range(5)))

    assert all(node is not None and node.id == NODE for node in nodes)
    assert len(cloud.keystone.authenticated) == 1
    assert set(cloud.took) == cloud.keystone.service_tokens


async def test_a_token_that_was_revoked_is_replaced_and_the_request_sent_again(cloud: Cloud) -> None:
    api = cloud.api(BY_PASSWORD)
    await api.node(NODE)
    cloud.keystone.service_tokens.clear()

    assert await api.node(NODE) is not None
    assert len(cloud.keystone.authenticated) == 2
    assert len(cloud.took) == 3


async def test_a_token_that_ironic_refuses_even_when_new_is_told_with_the_settings(cloud: Cloud) -> None:
    # Another Ironic, which asks another Keystone.
    cloud.keystone.service_tokens = Forgetful()

    with pytest.raises(
        CredentialsRefused, match=r"401.*check MOOR_OPENSTACK_USER, MOOR_OPENSTACK_PASSWORD.*roles"
    ):
        await cloud.api(BY_PASSWORD).node(NODE)
    assert len(cloud.took) == 2


class Forgetful(set[str]):
    def add(self, element: str, /) -> None:
        """Issue the token, and forget it."""


async def test_an_application_credential_logs_in_without_a_scope(cloud: Cloud) -> None:
    cloud.keystone.credential = {"id": "c-1", "secret": "s"}
    account = OpenStackSettings(keystone_url=IDENTITY, application_credential_id="c-1", password="s")

    assert await cloud.api(account).node(NODE) is not None
    with pytest.raises(
        CredentialsRefused, match="application credential 'c-1'; check MOOR_OPENSTACK_APPLICATION"
    ):
        await cloud.api(structs.replace(account, password="other")).node(NODE)


async def test_the_whole_system_can_be_the_scope(cloud: Cloud) -> None:
    assert await cloud.api(structs.replace(BY_PASSWORD, scope="system")).node(NODE) is not None
    assert cloud.keystone.authenticated[0]["scope"] == {"system": {"all": True}}


async def test_a_wrong_password_names_account_and_settings_and_never_itself(cloud: Cloud) -> None:
    with pytest.raises(CredentialsRefused) as refused:
        await cloud.api(structs.replace(BY_PASSWORD, password="hunter2")).node(NODE)

    assert (
        "Keystone at http://cloud/identity answers 401 to user 'moor' of project 'service'; check "
        "MOOR_OPENSTACK_USER, MOOR_OPENSTACK_PASSWORD" in str(refused.value)
    )
    assert "hunter2" not in str(refused.value)
    assert cloud.took == []


async def test_keystone_that_is_away_is_asked_again_and_ironic_is_sent_nothing(cloud: Cloud) -> None:
    cloud.keystone.is_down = True
    api = cloud.api(BY_PASSWORD)

    with pytest.raises(Unavailable, match="Keystone at http://cloud/identity answers 503"):
        await api.set_power_state(NODE, "power on")
    cloud.keystone.is_down = False
    assert await api.node(NODE) is not None
    assert len(cloud.took) == 1


@pytest.mark.parametrize(("lasts_s", "kept_s"), [(3600.0, 3600 - RENEW_BEFORE_S), (60.0, 30.0)])
async def test_a_token_is_replaced_before_it_ends_whatever_keystones_clock_says(
    lasts_s: float, kept_s: float, cloud: Cloud
) -> None:
    clock = Clock(1_000.0)
    cloud.keystone.lasts_s = lasts_s
    async with cloud.client() as client:
        tokens = KeystoneTokens(BY_PASSWORD, client, clock_s=clock)
        first = await tokens.current()
        clock.now += kept_s - 1
        assert await tokens.current() is first
        clock.now += 1

        assert (await tokens.current()).text != first.text
        # A late refusal of the old token does not drop the new one.
        tokens.forget(first)
        await tokens.current()

    assert len(cloud.keystone.authenticated) == 2


async def test_a_refused_account_is_not_tried_at_once_again(cloud: Cloud) -> None:
    # Keystone may lock an account after a few failures.
    clock = Clock(1_000.0)
    async with cloud.client() as client:
        tokens = KeystoneTokens(structs.replace(BY_PASSWORD, password="old"), client, clock_s=clock)
        for _ in range(3):
            with pytest.raises(KeystoneRefused, match="401 to user 'moor'"):
                await tokens.current()
        assert len(cloud.keystone.authenticated) == 1
        cloud.keystone.password = "old"
        clock.now += REFUSED_S

        await tokens.current()


@pytest.mark.parametrize(
    "answer",
    [
        Response(b"<html>", 201),
        JSONResponse({"token": {}}, 201, headers={"x-subject-token": "t"}),
        JSONResponse(
            {"token": {"issued_at": "2031-01-01T00:00:00Z", "expires_at": "2031-01-02T00:00:00Z"}}, 201
        ),
        JSONResponse(
            {"token": {"issued_at": "2031-01-01T00:00:00Z", "expires_at": "2031-01-02T00:00:00"}},
            201,
            headers={"x-subject-token": "t"},
        ),
    ],
    ids=["no json", "no times", "no token", "a time without a zone"],
)
async def test_an_answer_of_keystone_that_is_none_is_an_operational_error(answer: Response) -> None:
    app = Starlette(routes=[Route("/identity/v3/auth/tokens", lambda _: answer, methods=["POST"])])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as client:
        with pytest.raises(WrongAnswer, match="Keystone at http://cloud/identity"):
            await KeystoneTokens(BY_PASSWORD, client).current()


def test_the_systems_authorities_are_read_once_for_all_clients(tmp_path: Path) -> None:
    own = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(own))

    assert tls_of(NOBODY) is tls_of(BY_PASSWORD)
    assert tls_of(structs.replace(NOBODY, ca_file=str(own))) is not tls_of(NOBODY)


# The catalogue


async def test_keystone_as_the_url_means_that_its_catalogue_says_where_ironic_is(cloud: Cloud) -> None:
    other = in_catalogue(interface="internal", url="http://elsewhere/")
    cloud.keystone.catalogue = [{"type": "compute", "endpoints": []}, other, in_catalogue()]

    assert await at_catalogue(cloud, BY_PASSWORD).node(NODE) is not None


@pytest.mark.parametrize(
    ("catalogue", "has"),
    [
        ([], "none"),
        ([in_catalogue(interface="admin")], "admin in north"),
        ([in_catalogue(region_id="south")], "public in south"),
    ],
)
async def test_a_catalogue_without_ironic_names_the_settings_and_what_it_has(
    catalogue: list[dict[str, object]], has: str, cloud: Cloud
) -> None:
    cloud.keystone.catalogue = catalogue

    with pytest.raises(
        WrongAnswer, match=rf"\(it has: {has}\): set MOOR_IRONIC_URL, or correct MOOR_OPENSTACK_INT"
    ):
        await at_catalogue(cloud, structs.replace(BY_PASSWORD, region="north")).node(NODE)


def at_catalogue(cloud: Cloud, account: OpenStackSettings) -> HttpIronicApi:
    return cloud.api(account, url="keystone")


def test_there_is_no_client_without_url() -> None:
    assert ironic_api(Addresses(), BY_PASSWORD) is None


def test_the_catalogue_needs_a_keystone() -> None:
    with pytest.raises(
        BadSetting,
        match=r"ironic_url is 'keystone' \(MOOR_IRONIC_URL\): this needs MOOR_OPENSTACK_KEYSTONE_URL",
    ):
        HttpIronicApi("keystone")


# Settings


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        (
            {"KEYSTONE_URL": "http://k"},
            r"openstack.keystone_url is 'http://k' \(MOOR_OPENSTACK_KEYSTONE_URL\): this needs MOOR_OPENSTACK_USER",
        ),
        ({"USER": "moor"}, "this needs MOOR_OPENSTACK_PASSWORD or MOOR_OPENSTACK_PASSWORD_FILE"),
        (
            {"KEYSTONE_URL": "http://k", "APPLICATION_CREDENTIAL_ID": "c"},
            r"openstack.application_credential_id is .* this needs MOOR_OPENSTACK_PASSWORD",
        ),
        (
            {
                "KEYSTONE_URL": "http://k",
                "USER": "moor",
                "APPLICATION_CREDENTIAL_ID": "c",
                "PASSWORD": "hunter2",
            },
            "application_credential_id is set too",
        ),
        ({"APPLICATION_CREDENTIAL_ID": "c", "PASSWORD": "hunter2"}, "this needs MOOR_OPENSTACK_KEYSTONE_URL"),
        ({"USER": "moor", "PASSWORD": "hunter2", "PASSWORD_FILE": "/p"}, "password is set too"),
        (
            {"KEY_FILE": "/k"},
            r"openstack.key_file is '/k' \(MOOR_OPENSTACK_KEY_FILE\): a key without a certificate",
        ),
        ({"SCOPE": "cloud"}, "must be project or system"),
        ({"PASSWORD": "hunter2"}, r"openstack.password is \*\*\* .* this needs MOOR_OPENSTACK_USER"),
    ],
)
def test_settings_that_cannot_sign_in_are_told_before_the_start(
    environment: dict[str, str], why: str
) -> None:
    with pytest.raises(BadSetting, match=why) as wrong:
        ironic_api(
            Addresses(ironic_url="http://ironic"),
            OPENSTACK.read({f"MOOR_OPENSTACK_{key}": value for key, value in environment.items()}),
        )

    assert "hunter2" not in str(wrong.value)


@pytest.mark.parametrize("field", ["ca_file", "cert_file"])
def test_a_file_that_is_not_there_names_its_setting(field: str, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.pem")
    with pytest.raises(
        BadSetting, match=rf"openstack.{field} is '{missing}' \(MOOR_OPENSTACK_{field.upper()}\)"
    ):
        HttpIronicApi("https://cloud/", structs.replace(NOBODY, **{field: missing}))


@pytest.mark.parametrize(
    ("url", "account"),
    [
        ("http://cloud", OpenStackSettings(user="moor", password="p:w")),
        # A user in the URL signs in there, in place of any other.
        ("http://moor:p%3Aw@cloud", BY_PASSWORD),
    ],
    ids=["by settings", "by the url"],
)
async def test_basic_authentication(url: str, account: OpenStackSettings) -> None:
    asked: list[tuple[str, str | None]] = []

    async def node(request: Request) -> Response:
        asked.append((request.headers["authorization"], request.headers.get("x-auth-token")))
        return JSONResponse(told())

    app = Starlette(routes=[Route("/v1/nodes/{id}", node)])
    api = HttpIronicApi(url, account, transport=httpx.ASGITransport(app))
    await api.node(NODE)
    await api.close()

    assert asked == [("Basic bW9vcjpwOnc=", None)]


# Certificates


class Files:
    """A certificate authority, and the files of a server and a client that it vouches for."""

    def __init__(self, at: Path) -> None:
        self.authority = authority = trustme.CA()
        self.ca = at / "ca.pem"
        authority.cert_pem.write_to_path(self.ca)
        self.chain, self.key = at / "client.pem", at / "client.key"
        client = authority.issue_cert("moor.example")
        client.private_key_pem.write_to_path(self.key)
        for pem in client.cert_chain_pems:
            pem.write_to_path(self.chain, append=True)
        # The server lets in only clients with a certificate of the authority.
        shown = str(at / "shown.pem")
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(shown)
        self.of_server = server_tls(shown, "", str(self.ca))

    def known_to(self, account: OpenStackSettings) -> OpenStackSettings:
        return structs.replace(
            account, ca_file=str(self.ca), cert_file=str(self.chain), key_file=str(self.key)
        )


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


async def test_keystone_and_ironic_are_reached_by_the_certificates_in_the_settings(
    cloud: Cloud, files: Files
) -> None:
    async with served(cloud.app, files.of_server) as server:
        account = structs.replace(BY_PASSWORD, keystone_url=f"{server.url}/identity")
        cloud.keystone.catalogue = [in_catalogue(url=f"{server.url}/baremetal")]
        async with closing(HttpIronicApi("keystone", files.known_to(account))) as (api,):
            assert await api.node(NODE) is not None

    assert len(cloud.took) == 1


@pytest.mark.parametrize("without", ["ca_file", "cert_file"])
async def test_without_the_right_certificates_nobody_is_reached(
    without: str, cloud: Cloud, files: Files
) -> None:
    changed: dict[str, Any] = {without: ""} | ({"key_file": ""} if without == "cert_file" else {})
    async with served(cloud.app, files.of_server) as server:
        account = structs.replace(
            files.known_to(BY_PASSWORD), keystone_url=f"{server.url}/identity", **changed
        )
        async with closing(HttpIronicApi(f"{server.url}/baremetal", account, limits=QUICK)) as (api,):
            with pytest.raises(Unavailable, match=r"Keystone at https://127\.0\.0\.1") as raised:
                await api.node(NODE)
            assert f"MOOR_OPENSTACK_{without.upper()} names the" in str(raised.value)

    assert cloud.keystone.authenticated == []


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        ("", "it refuses a client without a certificate: it wants a client certificate, and none was shown"),
        ("stranger", "it is of an authority that the server does not trust"),
        ("late", "it has expired"),
    ],
)
async def test_a_server_that_refuses_the_certificate_is_told_with_its_reason(
    shown: str, why: str, tmp_path: Path, cloud: Cloud, files: Files
) -> None:
    """Servers of TLS 1.3 refuse it after the handshake, which HTTP's client does not take for an error of HTTP."""
    past = datetime.now(UTC) - timedelta(days=1)
    for name, issued in {
        "stranger": trustme.CA().issue_cert("moor.example"),
        "late": files.authority.issue_cert("moor.example", not_after=past),
        "server": files.authority.issue_cert("127.0.0.1"),
    }.items():
        issued.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / name))
    certificate = str(tmp_path / shown) if shown else ""
    of_server = server_tls(str(tmp_path / "server"), "", str(files.ca))
    async with served(cloud.app, of_server) as server:
        known = structs.replace(NOBODY, ca_file=str(files.ca), cert_file=certificate)
        keystone = structs.replace(BY_PASSWORD, ca_file=str(files.ca), cert_file=certificate)
        for account, name in (
            (known, "Ironic at"),
            (structs.replace(keystone, keystone_url=f"{server.url}/identity"), "Keystone at"),
        ):
            api = HttpIronicApi(f"{server.url}/baremetal", account, limits=QUICK)
            with pytest.raises(Unavailable) as refused:
                await api.node(NODE)
            await api.close()
            assert name in str(refused.value)
            assert why in str(refused.value)
            assert certificate in str(refused.value)

    assert cloud.keystone.authenticated == []


async def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_its_password(files: Files) -> None:
    files.key.write_bytes(encrypted(files.key.read_bytes()))

    with pytest.raises(BadSetting, match=r"openstack.cert_file is .* encrypted"):
        HttpIronicApi("https://cloud/", files.known_to(NOBODY))


def encrypted(pem: bytes) -> bytes:
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    key = load_pem_private_key(pem, None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"p"))


# Passwords in files


async def test_a_token_is_asked_for_by_the_password_that_the_file_has_then(
    tmp_path: Path, cloud: Cloud
) -> None:
    file = tmp_path / "password"
    file.write_text(f"{OUR_PASSWORD}\n")
    api = cloud.api(structs.replace(BY_PASSWORD, password="", password_file=str(file)))
    await api.node(NODE)
    cloud.keystone.password = "changed"
    cloud.keystone.service_tokens.clear()
    file.write_text("changed\n")

    assert await api.node(NODE) is not None
    cloud.keystone.service_tokens.clear()
    file.unlink()
    with pytest.raises(Unavailable, match=r"no login to Keystone at .* as user 'moor'.*cannot be read"):
        await api.node(NODE)


async def test_the_secret_of_an_application_credential_may_be_in_a_file(tmp_path: Path, cloud: Cloud) -> None:
    file = tmp_path / "secret"
    cloud.keystone.credential = {"id": "c-1", "secret": "s"}
    file.write_text("s")
    account = OpenStackSettings(
        keystone_url=IDENTITY, application_credential_id="c-1", password_file=str(file)
    )

    assert await cloud.api(account).node(NODE) is not None


async def test_basic_authentication_reads_its_file_for_each_request(tmp_path: Path) -> None:
    asked: list[str] = []
    file = tmp_path / "password"

    async def node(request: Request) -> Response:
        asked.append(request.headers["authorization"])
        return JSONResponse(told())

    app = Starlette(routes=[Route("/v1/nodes/{id}", node)])
    account = OpenStackSettings(user="moor", password_file=str(file))
    api = HttpIronicApi("http://cloud", account, transport=httpx.ASGITransport(app))
    with pytest.raises(Unavailable, match=r"password' cannot be read: No such file"):
        await api.node(NODE)
    file.write_text("p:w")
    await api.node(NODE)
    await api.close()

    assert asked == ["Basic bW9vcjpwOnc="]
