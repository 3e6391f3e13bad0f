"""Who gets into the dashboard: by a password, by Keystone, by the address that was printed; who is kept out; and how sessions end."""

import asyncio
from collections.abc import AsyncIterator

import bcrypt
import httpx
import pytest

from moor.dashboard.access import (
    IDLE_S_MAX,
    SessionStore,
)
from placement_worker.api.values import Caller
from tests.api.fake_keystone import FakeKeystone
from tests.unit.moor.dashboard_visits import PASSWORD, Visit, Visited, hidden
from tests.waiting import Clock

HOST_MODE = "/orders/set-host?host=h1&mode=down"


async def test_a_person_is_sent_to_the_form_and_then_to_the_page_they_wanted(visited: Visited) -> None:
    browser = visited.browser()

    sent = await browser.get("/instances?state=active")
    assert (sent.status_code, sent.headers["location"]) == (303, "/login?next=%2Finstances%3Fstate%3Dactive")
    page = await browser.get(sent.headers["location"])
    then = await browser.send_form("/login", {**hidden(page), "user": "ann", "password": PASSWORD})

    assert (then.status_code, then.headers["location"]) == (303, "/instances?state=active")
    assert (await browser.get("/instances")).status_code == 200


async def test_a_program_is_not_sent_to_a_form(visited: Visited) -> None:
    browser = visited.browser()
    asked = await browser.get("/", headers={"accept": "text/event-stream"})
    tried = await browser.get("/", auth=("ann", "wrong"))

    assert (asked.status_code, tried.status_code) == (401, 401)
    assert asked.headers["www-authenticate"].startswith("Basic")
    assert (await browser.get("/instances", auth=("ann", PASSWORD))).status_code == 200


@pytest.mark.parametrize(
    "then", ["//evil.example", "https://evil.example/", "/\\evil.example", "evil", "/a\tb", "/ö"]
)
async def test_the_form_leads_nowhere_else(then: str, visited: Visited) -> None:
    browser = visited.browser()
    page = await browser.get("/login", params={"next": then})
    fields = {**hidden(page), "next": then, "user": "root", "password": PASSWORD}

    assert 'name="next" value="/"' in page.text
    assert (await browser.send_form("/login", fields)).headers["location"] == "/"


@pytest.mark.parametrize(("scheme", "prefix"), [("http", ""), ("https", "__Host-")])
async def test_the_cookie_is_for_this_dashboard_alone(scheme: str, prefix: str, visited: Visited) -> None:
    browser = visited.browser(scheme=scheme)
    page = await browser.get("/login")
    # By HTTP, a browser would not return what is for HTTPS.
    name, _, value = page.headers["set-cookie"].partition(";")[0].partition("=")
    browser.cookies.set(name, value, domain="127.0.0.1", path="/")
    answer = await browser.send_form("/login", {**hidden(page), "user": "ann", "password": PASSWORD})

    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"{prefix}{visited.cookie}=")
    assert {"HttpOnly", "SameSite=strict", "Path=/", "Max-Age=28800"} <= {*cookie.split("; ")}
    assert ("Secure" in cookie.split("; ")) is (scheme == "https")
    assert "domain" not in cookie.lower()


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "ann", "password": "wrong"},
        {"user": "nobody", "password": PASSWORD},
        {"user": "", "password": ""},
        {"user": "ann", "password": "x" * 5_000},
        {"user": "ann", "password": "a\0b"},
        {},
    ],
)
async def test_nobody_else_gets_in_and_the_form_says_why(fields: dict[str, str], visited: Visited) -> None:
    browser = visited.browser()
    answer = await browser.log_in(**fields)

    assert answer.status_code == 401
    assert "The user is not known, or the password is wrong" in answer.text
    assert (await browser.get("/instances")).status_code == 303


@pytest.mark.parametrize("address", ["127.0.0.1", "203.0.113.7"])
async def test_of_a_flood_of_logins_most_are_told_to_try_again(address: str, visit: Visit) -> None:
    """By name, and from elsewhere by address: other people are let in."""
    costly = bcrypt.hashpw(b"x", bcrypt.gensalt(10)).decode()
    visited = await visit(more_users=f"slow:{costly}\n")
    browser = visited.browser(address)
    form = hidden(await browser.get("/login"))

    async def tried(number: int) -> httpx.Response:
        return await browser.send_form("/login", {**form, "user": "slow", "password": f"guess-{number}"})

    flood = [asyncio.create_task(tried(number)) for number in range(40)]
    other = await visited.browser("203.0.113.8").log_in(user="ann", password=PASSWORD)
    answers = await asyncio.gather(*flood)

    assert other.status_code == 303
    assert {each.status_code for each in answers} == {401, 429}
    (told, *_) = [each.text for each in answers if each.status_code == 429]
    assert "try again in a second" in told
    assert ("logins of this address" in told) is (address != "127.0.0.1")


async def test_another_site_cannot_log_a_browser_in(visited: Visited) -> None:
    browser, others = visited.browser(), visited.browser()
    right = {"user": "ann", "password": PASSWORD}
    own = hidden(await browser.get("/login"))
    foreign = hidden(await others.get("/login"))

    for origin in (
        "https://evil.example",
        "null",
        None,
        f"{visited.url}0",
        "http://127.0.0.1.evil.example",
    ):
        refused = await browser.send_form("/login", {**own, **right}, origin)
        assert (refused.status_code, "another site" in refused.text) == (403, True), origin
    for token in ({"form_token": foreign["form_token"]}, {"form_token": ""}, {}):
        refused = await browser.send_form("/login", {"next": "/", **right, **token})
        assert (refused.status_code, "not made for your browser" in refused.text) == (403, True)
    assert (await browser.send_form("/login", {**own, **right})).status_code == 303


async def test_a_secret_that_was_planted_before_opens_nothing_after_a_login(visited: Visited) -> None:
    attacker = await visited.logged_in("bob")
    planted = attacker.cookies[visited.cookie]
    victim = visited.browser()
    victim.cookies.set(visited.cookie, planted, domain="127.0.0.1", path="/")
    made_up = visited.browser()
    made_up.cookies.set(visited.cookie, "made-up", domain="127.0.0.1", path="/")

    answers = [await browser.log_in(user="root", password=PASSWORD) for browser in (victim, made_up)]
    secrets = [each.headers["set-cookie"].partition("=")[2].partition(";")[0] for each in answers]

    assert [each.status_code for each in answers] == [303, 303]
    assert not {*secrets} & {planted, "made-up"}
    # The attacker's own session has ended with the login that replaced it.
    assert (await attacker.get("/hosts")).status_code == 303


async def test_after_a_logout_the_cookie_and_its_forms_are_void(visited: Visited) -> None:
    browser = await visited.logged_in("root")
    form = await browser.form_of(HOST_MODE)
    secret = browser.cookies[visited.cookie]

    assert (await browser.send_form("/logout", {"form_token": "guessed"})).status_code == 403
    out = await browser.send_form("/logout", form)
    assert (out.status_code, out.headers["location"]) == (303, "/login")
    browser.cookies.set(visited.cookie, secret, domain="127.0.0.1", path="/")

    assert (await browser.get("/hosts")).status_code == 303
    assert (await browser.send_form("/orders/set-host", form)).status_code == 401
    assert visited.cloud.ordered == []


async def test_the_cookie_of_another_dashboard_opens_nothing(visit: Visit) -> None:
    one, other = await visit(), await visit()
    browser = await one.logged_in("root")
    foreign = other.browser()
    for name in (one.cookie, other.cookie):
        foreign.cookies.set(name, browser.cookies[one.cookie], domain="127.0.0.1", path="/")

    assert (await foreign.get("/hosts")).status_code == 303
    refused = await foreign.send_form("/orders/set-host", await browser.form_of(HOST_MODE))
    assert refused.status_code == 401
    assert other.cloud.ordered == one.cloud.ordered == []


async def test_the_printed_address_opens_one_browser_once(visit: Visit) -> None:
    visited = await visit(auth="none")
    (shown,) = visited.shown
    token = shown.rpartition("token=")[2]
    browser, late = visited.browser(), visited.browser()

    refused = await browser.get(HOST_MODE)
    assert (refused.status_code, "You only read here" in refused.text) == (403, True)
    assert "Set it down" not in (await browser.get("/hosts/c1/h1")).text
    # What only looks at an address must not use it up.
    assert (await browser.head("/open", params={"token": token})).status_code == 405
    assert (await browser.get("/open", params={"token": f"{token}x"})).status_code == 403
    assert (await browser.get("/open")).status_code == 403

    opened = await browser.get("/open", params={"token": token})
    assert (opened.status_code, opened.headers["location"]) == (303, "/")
    assert "Set it down" in (await browser.get("/hosts/c1/h1")).text
    second = await late.get("/open", params={"token": token})
    assert (second.status_code, "This address is void" in second.text) == (403, True)
    assert "set-cookie" not in second.headers
    assert len(visited.shown) == 2
    assert "is set down" in (await browser.order(HOST_MODE)).text
    assert (await late.get("/login")).status_code == 404


@pytest.fixture
async def keystone(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeKeystone]:
    """It is served, and dashboards with the authentication `keystone` ask it."""
    keystone = FakeKeystone()
    async with keystone.served() as asks:
        for name, value in asks.items():
            monkeypatch.setenv(name, value)
        yield keystone


async def test_a_token_logs_in_until_it_ends(
    keystone: FakeKeystone, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moor.dashboard.resource_pages.LOOK_S", 0.05)
    visited = await visit(auth="keystone")
    token = keystone.issue(lasts_s=2)
    browser = visited.browser()

    assert (await browser.log_in(token=f" {token}\n")).status_code == 303
    async with browser.stream("GET", "/instances/live", timeout=30) as stream:
        form = await browser.form_of(HOST_MODE)
        del keystone.tokens[token]
        async for _ in stream.aiter_raw():
            """The open page ends with the token."""
    assert (await browser.send_form("/orders/set-host", form)).status_code == 401
    assert visited.cloud.ordered == []


async def test_a_password_logs_in_as_a_member_of_the_project(keystone: FakeKeystone, visit: Visit) -> None:
    said = {"roles": [{"id": "r", "name": "member"}], "project": {"id": "shop", "name": "demo"}}
    keystone.people["ann", "of ann", "demo"] = said
    browser = (await visit(auth="keystone")).browser()

    wrong = await browser.log_in(user="ann", password="wrong", project="demo")  # noqa: S106
    assert (wrong.status_code, "answers 401 to user &#39;ann&#39;" in wrong.text) == (401, True)
    assert (await browser.log_in(user="ann", password="of ann", project="demo")).status_code == 303  # noqa: S106
    assert (await browser.get("/instances")).status_code == 200
    assert (await browser.get("/hosts")).status_code == 403


async def test_one_without_a_project_reads_nothing_and_keystone_that_is_away_says_so(
    keystone: FakeKeystone, visit: Visit
) -> None:
    browser = (await visit(auth="keystone")).browser()
    token = keystone.issue(project={}, roles=[{"id": "r", "name": "member"}])

    nothing = await browser.log_in(token=token)
    assert (nothing.status_code, "acts for no project" in nothing.text) == (403, True)
    assert (await browser.get("/instances", headers={"x-auth-token": token})).status_code == 403
    keystone.is_down = True
    away = await browser.log_in(token="unknown")  # noqa: S106
    assert (away.status_code, "Keystone" in away.text) == (503, True)


ANN = Caller(user="ann", roles=frozenset(("admin",)))


def test_a_session_is_found_by_its_secret_until_its_time_is_over() -> None:
    clock = Clock(100.0)
    store = SessionStore(lasts_s=5_000, clock=clock)
    secret = store.begin(ANN)

    for _ in range(4):
        assert store.find(secret) is not None
        clock.now += 1_200
    assert store.find(secret) is not None
    clock.now += 201

    assert store.find(secret) is None
    assert store.find("") is None
    assert len(store) == 0


def test_a_session_that_is_not_used_ends_and_to_peek_is_no_use() -> None:
    clock = Clock(100.0)
    store = SessionStore(clock=clock)
    secret = store.begin(ANN)

    clock.now += IDLE_S_MAX - 1
    assert store.peek(secret) is not None
    clock.now += 2

    assert store.peek(secret) is None
    assert store.find(secret) is None
