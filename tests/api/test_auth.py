"""Which caller sends a request, and what may they do?"""

import asyncio
import base64
from collections import Counter
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from time import process_time

import bcrypt
import pytest
from msgspec import structs

from kit.keystone import OpenStackSettings
from placement_worker.api import auth
from placement_worker.api.auth import (
    Authentication,
    BadPasswordFileError,
    BasicAuthentication,
    BelievedToken,
    KeystoneAuthentication,
    User,
    users_in,
)
from tests.api.fake_keystone import OUR_PASSWORD, FakeKeystone
from tests.api.whole_app import HOST, WEB, Server, server_over
from tests.stores_in_memory import MemoryPlacementStore
from tests.waiting import Clock
from tools.pages.placement_openapi import every_route

ACCOUNT = OpenStackSettings(keystone_url="http://keystone/identity", user="placement", password=OUR_PASSWORD)
PASSWORD = "s3cret:with a colon"  # noqa: S105
# The cheapest hash that bcrypt allows; and one whose checks take much longer than what surrounds them.
HASHED = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4))
COSTLY = User(b"$2b$11$G7qu0RdPWJwqQKllsgvh9.1IE6zpNIHKhipmLhlMw8hUywmYD/oNO")
PROVIDERS, OWN, OTHERS = "/resource_providers", "/usages?project_id=shop", "/usages?project_id=bank"
Headers = dict[str, str]


def basic(user: str, password: str = PASSWORD) -> Headers:
    encoded = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"authorization": f"Basic {encoded}"}


def guarded(login: Authentication, policy: str = "legacy") -> AbstractAsyncContextManager[Server]:
    return server_over(MemoryPlacementStore(), policy, login)


async def status(server: Server, headers: Headers, path: str = PROVIDERS, address: str = "") -> int:
    said = {"openstack-api-version": "placement 1.39", **headers}
    if address:
        said["x-forwarded-for"] = address
    return (await server.client.get(path, headers=said)).status_code


@pytest.mark.parametrize(
    ("headers", "statuses"),
    [
        ({"x-auth-token": "admin"}, [200, 200, 200]),
        ({"x-auth-token": "ann", "x-roles": "Admin, reader"}, [200, 200, 200]),
        ({"x-auth-token": "ann"}, [403, 403, 403]),
        ({"x-auth-token": "ann:shop", "x-roles": "reader"}, [403, 200, 403]),
        ({"x-auth-token": "ann", "x-project-id": "bank", "x-roles": "reader"}, [403, 403, 200]),
        ({"x-auth-token": "ann:shop", "x-roles": "reader", "openstack-system-scope": "all"}, [403, 403, 403]),
        ({}, [401, 401, 401]),
    ],
)
async def test_believed_tokens_say_user_project_and_roles(headers: Headers, statuses: list[int]) -> None:
    """As in the requests of upstream's test suite."""
    async with guarded(BelievedToken()) as server:
        assert [await status(server, headers, path) for path in (PROVIDERS, OWN, OTHERS)] == statuses


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer x"},
        {"authorization": "Basic"},
        {"authorization": "Basic %%%"},
        {"authorization": "Basic " + base64.b64encode(b"no colon").decode()},
        {"authorization": "Basic " + base64.b64encode(b"\xff:x").decode()},
        basic("ann", "wrong"),
        basic("ann", f"{PASSWORD}{'x' * 100}"),
        basic("ann", f"{PASSWORD}\0"),
        basic("bob", "nobody"),
    ],
)
async def test_a_wrong_login_is_refused_and_told_how_to_ask(headers: Headers) -> None:
    async with guarded(BasicAuthentication({"ann": User(HASHED)})) as server:
        refused = await server.client.get(PROVIDERS, headers=headers)

        assert (refused.status_code, refused.headers["www-authenticate"][:12]) == (401, "Basic realm=")
        assert await status(server, basic("ann")) == 200


async def test_who_passed_is_remembered_for_a_while_and_who_did_not_never() -> None:
    clock, users = Clock(1_000.0), {"ann": User(HASHED)}
    async with guarded(BasicAuthentication(users, clock)) as server:
        assert await status(server, basic("ann")) == 200
        del users["ann"]
        clock.now += 299
        assert [await status(server, basic("ann", each)) for each in (PASSWORD, "wrong")] == [200, 401]
        clock.now += 2
        assert await status(server, basic("ann")) == 401


async def test_a_file_of_users_is_what_htpasswd_writes_and_a_project_and_a_role(tmp_path: Path) -> None:
    file, hashed = tmp_path / "users", HASHED.decode()
    file.write_text(
        f"# operators\n\nann:{hashed}\nbob:$2y${hashed[4:]}:shop\ncai:{hashed}:shop:reader\ndee:{hashed}:shop:member\n"
    )
    login = BasicAuthentication(users_in(file))

    callers = [await login.caller(basic(name)) for name in ("ann", "bob", "cai", "dee")]

    assert {"admin", "service"} <= callers[0].roles
    assert [each.roles for each in callers[1:]] == [{"reader"}, {"reader"}, {"reader", "member"}]
    assert {each.project for each in callers[1:]} == {"shop"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ann", "line 1: write user:hash"),
        ("\nann:$apr1$abc$def", "line 2: the password of 'ann' is not hashed by bcrypt"),
        ("ann:$2y$05$short", "not hashed by bcrypt"),
        ("ann:HASHED:", "the second colon is not followed by a project"),
        ("ann:HASHED:shop:admin", "the role of 'ann' is 'admin'"),
        ("ann:HASHED::member", "the second colon is not followed by a project"),
        ("# nobody", "has no users"),
        (None, "cannot be read"),
    ],
)
async def test_a_file_with_anything_else_in_it_is_refused(tmp_path: Path, text: str | None, why: str) -> None:
    file = tmp_path / "users"
    if text is not None:
        file.write_text(text.replace("HASHED", HASHED.decode()))

    with pytest.raises(BadPasswordFileError, match=why):
        users_in(file)


@pytest.mark.parametrize("policy", ["legacy", "secure"])
@pytest.mark.parametrize(
    "headers",
    [
        basic("ron"),
        {"x-auth-token": "ron:shop", "x-roles": "reader"},
        {"x-auth-token": "ron:shop", "x-roles": "reader,member"},
    ],
    ids=["basic", "token", "member"],
)
async def test_a_project_reads_its_own_usages_and_nothing_else(headers: Headers, policy: str) -> None:
    store = MemoryPlacementStore()
    login = BasicAuthentication({"ron": User(HASHED, "shop")}) if "authorization" in headers else None
    async with server_over(store) as admin, server_over(store, policy, login) as server:
        await admin.fill()
        headers = {**headers, "openstack-api-version": "placement 1.39"}
        own = await server.client.get(OWN, headers=headers)
        assert own.json() == {"usages": {"INSTANCE": {"VCPU": 1, "consumer_count": 1}}}
        for query in (
            "=bank",
            "=shop&project_id=bank",
            "=bank&project_id=shop",
            "=shop&project%5Fid=bank",
            "=",
        ):
            assert await status(server, headers, f"/usages?project_id{query}") == 403, query

        for route in every_route():
            path = route.path.replace("{uuid}", HOST).replace("{consumer_uuid}", WEB)
            path = path.replace("{resource_class}", "VCPU").replace("{name}", "CUSTOM_X")
            version = {"openstack-api-version": "placement {}.{}".format(*route.until)}
            for suffix in ("", "?project_id=shop") if route.rule and path != "/usages" else ():
                answer = await server.client.request(
                    route.method,
                    f"{path}{suffix}",
                    headers=headers | version,
                    json=None if route.body is None else {},
                )
                assert (answer.status_code, HOST in answer.text) == (403, False), (route.method, path)


# Keystone


async def test_keystone_is_asked_once_about_a_token_and_again_after_a_while_or_its_end() -> None:
    for lasts_s, again_after_s in ((3600.0, 300), (60.0, 60)):
        keystone, clock = FakeKeystone(), Clock(1_000.0)
        token = keystone.issue(lasts_s=lasts_s)
        clock.now = keystone.ends_at(token) - lasts_s
        headers = {"x-auth-token": token}
        async with guarded(KeystoneAuthentication(ACCOUNT, keystone.client(), clock)) as server:
            answers = await asyncio.gather(*(status(server, headers) for _ in range(20)))
            clock.now += again_after_s - 1
            assert {*answers, await status(server, headers)} == {200}
            assert keystone.asked == [token]

            del keystone.tokens[token]
            clock.now += 2
            assert await status(server, headers) == 401


async def test_of_too_many_tokens_keystone_is_asked_about_the_oldest_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auth, "REMEMBERED_MAX", 2)
    keystone = FakeKeystone()
    first, *_, last = tokens = [keystone.issue() for _ in range(3)]
    async with guarded(KeystoneAuthentication(ACCOUNT, keystone.client())) as server:
        for token in (*tokens, last, first):
            assert await status(server, {"x-auth-token": token}) == 200

    assert keystone.asked == [*tokens, first]


async def test_keystone_tells_project_and_roles_and_no_made_up_token_is_known() -> None:
    keystone = FakeKeystone()
    keystone.people["ann", "of ann", "demo"] = {"roles": [{"id": "r-2", "name": "admin"}]}
    login = KeystoneAuthentication(ACCOUNT, keystone.client())
    async with guarded(login) as server:
        by_password = await login.token_by_password("ann", "of ann", "demo", "")
        assert await status(server, {"x-auth-token": by_password}) == 200
        token = {
            "x-auth-token": keystone.issue(project={"id": "shop"}, roles=[{"id": "r", "name": "reader"}])
        }
        assert [await status(server, token, path) for path in (PROVIDERS, OWN, OTHERS)] == [403, 200, 403]
        # Our own token has run out.
        keystone.service_tokens.clear()
        for headers in ({}, {"x-auth-token": ""}, {"x-auth-token": "made up"}):
            refused = await server.client.get(PROVIDERS, headers=headers)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == "Keystone uri='http://keystone/identity'"


@pytest.mark.hits("%s: not served for now: %s")
async def test_keystone_that_cannot_answer_is_a_503_and_is_found_again() -> None:
    keystone = FakeKeystone()
    wrong = structs.replace(ACCOUNT, password=OUR_PASSWORD + "?")
    async with (
        guarded(KeystoneAuthentication(ACCOUNT, keystone.client())) as server,
        guarded(KeystoneAuthentication(wrong, keystone.client())) as without_password,
    ):
        token = {"x-auth-token": keystone.issue()}
        keystone.is_down = True
        assert await status(server, token) == 503
        keystone.is_down = False
        assert await status(server, token) == 200
        assert await status(server, {"x-auth-token": keystone.issue(expires_at="tomorrow")}) == 503
        assert await status(without_password, token) == 503


# Floods: many logins at once, of names that are there or not, from one address or many


@pytest.mark.parametrize("name", ["ann", "nobody"])
async def test_floods_are_bounded_by_name_whether_it_exists_or_not(name: str) -> None:
    login = BasicAuthentication({"ann": User(HASHED)})
    tries = [login.caller(basic(name, f"guess-{number}")) for number in range(40)]

    answers = await asyncio.gather(*tries, return_exceptions=True)

    assert Counter(getattr(each, "status", 200) for each in answers) == {401: 16, 429: 24}
    assert (await login.caller(basic("ann"))).user == "ann"


@pytest.mark.parametrize(
    ("addresses", "checked"),
    [
        (["203.0.113.7"], 8),
        (["203.0.113.7", "203.0.113.8"], 16),
        (["2001:db8::1", "2001:db8::2:3"], 8),
        (["2001:db8::1", "2001:db8:0:1::1"], 16),
        (["203.0.113.7", "::ffff:203.0.113.7"], 8),
        # Some proxies add the port.
        (["203.0.113.7:4000", "203.0.113.7:4001"], 8),
        (["what a proxy says"], 8),
        (["127.0.0.1", "::1", "::ffff:127.0.0.1", ""], 40),
    ],
)
async def test_floods_are_bounded_by_address_but_for_this_machine(addresses: list[str], checked: int) -> None:
    login = BasicAuthentication({"ann": User(HASHED)})
    logins = [(basic(f"n-{number}", "x"), addresses[number % len(addresses)]) for number in range(40)]

    answers = await asyncio.gather(*(login.caller(*each) for each in logins), return_exceptions=True)

    assert Counter(getattr(each, "status", 200) for each in answers) == Counter(
        {401: checked, 429: 40 - checked}
    )
    assert (await login.caller(basic("ann"), addresses[0])).user == "ann"


async def test_behind_a_proxy_floods_are_bounded_by_the_address_that_it_says() -> None:
    where = "198.51.100.1, 203.0.113.7"
    async with guarded(BasicAuthentication({"ann": User(HASHED)})) as server:
        tries = [status(server, basic(f"n-{number}", "x"), address=where) for number in range(40)]
        answers = Counter(await asyncio.gather(*tries))
        assert await status(server, basic("ann"), address=where) == 200

    assert (answers[401] < 40, answers.total()) == (True, answers[401] + answers[429])


async def test_a_flood_holds_up_no_right_login_and_unknown_names_cost_no_checks() -> None:
    login = BasicAuthentication({"ann": COSTLY, "bob": User(HASHED)})

    async def cpu_s(*headers: Headers) -> float:
        before_s = process_time()
        await asyncio.gather(*map(login.caller, headers), return_exceptions=True)
        return process_time() - before_s

    one_s = await cpu_s(basic("ann", "wrong"))
    assert await cpu_s(*(basic(f"nobody-{number}", "x") for number in range(100))) < 10 * one_s
    guesses = [basic(f"nobody-{number % 25}", f"{number}") for number in range(400)]
    guesses += [basic("ann", f"{number}") for number in range(16)]
    flood = [asyncio.create_task(login.caller(each)) for each in guesses]
    await asyncio.sleep(0)

    assert (await login.caller(basic("bob"))).user == "bob"

    assert sum(not each.done() for each in flood) > len(flood) // 2
    await asyncio.gather(*flood, return_exceptions=True)


@pytest.mark.parametrize(
    ("address", "was_there"), [("203.0.113.1", True), ("127.0.0.1", True), ("203.0.113.1", False)]
)
async def test_a_flood_of_ones_own_name_does_not_lock_out(
    address: str, *, was_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[bytes] = []

    def noted(password: bytes, hashed: bytes) -> bool:
        checked.append(password)
        return check(password, hashed)

    check = bcrypt.checkpw
    monkeypatch.setattr(bcrypt, "checkpw", noted)
    clock = Clock(1_000.0)
    login = BasicAuthentication({"ann": User(HASHED)}, clock)
    await login.caller(basic("ann"), address if was_there else "203.0.113.99")
    clock.now += 301
    others = ["203.0.113.7", "203.0.113.8"] * 8
    flood = [
        asyncio.create_task(login.caller(basic("ann", f"guess-{number}"), other))
        for number, other in enumerate(others)
    ]
    await asyncio.sleep(0)

    assert (await login.caller(basic("ann"), address)).user == "ann"
    await asyncio.gather(*flood, return_exceptions=True)

    # From elsewhere it waits for its turn.
    *_, last = checked
    assert last.startswith(b"guess") is was_there
