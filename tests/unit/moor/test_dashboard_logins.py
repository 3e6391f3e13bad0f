"""Who gets into the dashboard: by a password, by Keystone, by the address that was printed; and who is kept out."""

import asyncio
from collections import Counter

import bcrypt
import httpx
import pytest

from kit.health import Listen
from kit.keystone import OpenStackSettings
from moor.dashboard.access import SessionStore
from moor.dashboard.service import DashboardOptions, access_of
from placement_worker.api.auth import (
    Authentication,
    BasicAuthentication,
    KeystoneAuthentication,
    NoAuthentication,
    User,
)
from tests.api.fake_keystone import OUR_PASSWORD, FakeKeystone
from tests.unit.moor.dashboard_visits import PASSWORD, USERS, Visited, hidden
from tests.unit.moor.test_dashboard_sessions import HandClock

pytestmark = pytest.mark.asyncio

ACCOUNT = OpenStackSettings(keystone_url="http://keystone/identity", user="placement", password=OUR_PASSWORD)
HOST_MODE = "/orders/set-host?host=h1&mode=down"


async def test_a_person_is_sent_to_the_form_and_then_to_the_page_they_wanted() -> None:
    browser = Visited().browser()

    sent = await browser.get("/instances?state=active")
    assert (sent.status_code, sent.headers["location"]) == (303, "/login?next=%2Finstances%3Fstate%3Dactive")
    page = await browser.get(sent.headers["location"])
    then = await browser.send_form("/login", {**hidden(page), "user": "ann", "password": PASSWORD})

    assert (then.status_code, then.headers["location"]) == (303, "/instances?state=active")
    assert (await browser.get("/instances")).status_code == 200


async def test_members_begin_with_their_instances_and_administrators_with_the_whole_cloud() -> None:
    for user, first in (("ann", "/instances"), ("root", "/")):
        answer = await Visited().browser().log_in(user=user, password=PASSWORD)
        assert answer.headers["location"] == first


async def test_a_program_is_not_sent_to_a_form() -> None:
    browser = Visited().browser()
    asked = await browser.get("/", headers={"accept": "text/event-stream"})
    tried = await browser.get("/", auth=("ann", "wrong"))

    assert (asked.status_code, tried.status_code) == (401, 401)
    assert asked.headers["www-authenticate"].startswith("Basic")
    assert (await browser.get("/instances", auth=("ann", PASSWORD))).status_code == 200


@pytest.mark.parametrize(
    "then", ["//evil.example", "https://evil.example/", "/\\evil.example", "evil", "/a\tb", "/ö"]
)
async def test_the_form_leads_nowhere_else(then: str) -> None:
    browser = Visited().browser()
    page = await browser.get("/login", params={"next": then})
    fields = {**hidden(page), "next": then, "user": "root", "password": PASSWORD}

    assert 'name="next" value="/"' in page.text
    assert (await browser.send_form("/login", fields)).headers["location"] == "/"


@pytest.mark.parametrize(
    ("scheme", "name", "secure"), [("http", "moorage-8781", False), ("https", "__Host-moorage-8781", True)]
)
async def test_the_cookie_is_for_this_dashboard_alone(scheme: str, name: str, secure: bool) -> None:  # noqa: FBT001
    visited = Visited(port=8781, scheme=scheme)
    browser = visited.browser()
    answer = await browser.log_in(user="ann", password=PASSWORD)

    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"{name}=")
    assert {"HttpOnly", "SameSite=strict", "Path=/", "Max-Age=28800"} <= {*cookie.split("; ")}
    assert ("Secure" in cookie.split("; ")) is secure
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
async def test_nobody_else_gets_in_and_the_form_says_why(fields: dict[str, str]) -> None:
    visited = Visited()
    browser = visited.browser()
    answer = await browser.log_in(**fields)

    assert answer.status_code == 401
    assert "The user is not known, or the password is wrong" in answer.text
    assert len(visited.sessions) == 0
    assert (await browser.get("/instances")).status_code == 303


@pytest.mark.parametrize("address", ["127.0.0.1", "203.0.113.7"])
async def test_of_a_flood_of_logins_most_are_told_to_try_again(address: str) -> None:
    """By name, and from elsewhere by address: other people are let in."""
    costly = User(bcrypt.hashpw(b"x", bcrypt.gensalt(10)))
    visited = Visited(BasicAuthentication({**USERS, "slow": costly}))
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


async def test_another_site_cannot_log_a_browser_in() -> None:
    visited = Visited()
    browser, others = visited.browser(), visited.browser()
    right = {"user": "ann", "password": PASSWORD}
    own = hidden(await browser.get("/login"))
    foreign = hidden(await others.get("/login"))

    for origin in (
        "https://evil.example",
        "null",
        None,
        "http://testserver.evil.example",
        "http://testserver:81",
    ):
        refused = await browser.send_form("/login", {**own, **right}, origin)
        assert (refused.status_code, "another site" in refused.text) == (403, True), origin
    for token in ({"form_token": foreign["form_token"]}, {"form_token": ""}, {}):
        refused = await browser.send_form("/login", {"next": "/", **right, **token})
        assert (refused.status_code, "not made for your browser" in refused.text) == (403, True)
    assert len(visited.sessions) == 0
    assert (await browser.send_form("/login", {**own, **right})).status_code == 303


async def test_a_secret_that_was_planted_before_opens_nothing_after_a_login() -> None:
    visited = Visited(port=1)
    attacker = await visited.logged_in("bob")
    planted = attacker.cookies["moorage-1"]
    victim = visited.browser()
    victim.cookies.set("moorage-1", planted, domain="testserver.local", path="/")
    made_up = visited.browser()
    made_up.cookies.set("moorage-1", "made-up", domain="testserver.local", path="/")

    answers = [await browser.log_in(user="root", password=PASSWORD) for browser in (victim, made_up)]
    secrets = [each.headers["set-cookie"].partition("=")[2].partition(";")[0] for each in answers]

    assert [each.status_code for each in answers] == [303, 303]
    assert not {*secrets} & {planted, "made-up"}
    # The attacker's own session has ended with the login that replaced it.
    assert visited.sessions.peek(planted) is None
    assert visited.sessions.peek("made-up") is None
    assert (await attacker.get("/hosts")).status_code == 303


async def test_after_a_logout_the_cookie_and_its_forms_are_void() -> None:
    visited = Visited(port=1)
    browser = await visited.logged_in("root")
    form = await browser.form_of(HOST_MODE)
    secret = browser.cookies["moorage-1"]

    assert (await browser.send_form("/logout", {"form_token": "guessed"})).status_code == 403
    out = await browser.send_form("/logout", form)
    assert (out.status_code, out.headers["location"]) == (303, "/login")
    browser.cookies.set("moorage-1", secret, domain="testserver.local", path="/")

    assert (await browser.get("/hosts")).status_code == 303
    assert (await browser.send_form("/orders/set-host", form)).status_code == 401
    assert visited.cloud.ordered == []


async def test_a_session_ends_with_its_time_and_with_the_process() -> None:
    clock = HandClock()
    visited = Visited(port=1, sessions=SessionStore(lasts_s=100, clock=clock))
    browser = await visited.logged_in("root")
    form = await browser.form_of(HOST_MODE)
    restarted = Visited(port=1, cloud=visited.cloud).browser()
    restarted.cookies = browser.cookies

    assert (await restarted.send_form("/orders/set-host", form)).status_code == 401
    clock.now_s += 101
    assert (await browser.send_form("/orders/set-host", form)).status_code == 401
    assert visited.cloud.ordered == []


async def test_an_old_form_of_the_same_user_does_not_count_in_a_new_session() -> None:
    visited = Visited()
    browser = await visited.logged_in("root")
    old = await browser.form_of(HOST_MODE)
    await browser.log_in(user="root", password=PASSWORD)

    refused = await browser.send_form("/orders/set-host", old)
    assert (refused.status_code, "not of your session" in refused.text) == (403, True)
    assert visited.cloud.ordered == []


async def test_the_cookie_of_another_dashboard_opens_nothing() -> None:
    one, other = Visited(port=1), Visited(port=2)
    browser = await one.logged_in("root")
    foreign = other.browser()
    foreign.cookies.set("moorage-1", browser.cookies["moorage-1"], domain="testserver.local", path="/")
    foreign.cookies.set("moorage-2", browser.cookies["moorage-1"], domain="testserver.local", path="/")

    assert (await foreign.get("/hosts")).status_code == 303
    refused = await foreign.send_form("/orders/set-host", await browser.form_of(HOST_MODE))
    assert refused.status_code == 401
    assert other.cloud.ordered == one.cloud.ordered == []


async def test_the_printed_address_opens_one_browser_once() -> None:
    visited = Visited(NoAuthentication(), opens=True)
    (token,) = visited.shown
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


async def test_where_people_log_in_no_address_opens_a_session() -> None:
    visited = Visited()
    assert (await visited.browser().get("/open", params={"token": ""})).status_code == 403
    assert visited.shown == []


@pytest.mark.parametrize(
    ("auth", "host", "shown"),
    [
        (NoAuthentication(), "127.0.0.1", 1),
        (NoAuthentication(), "::1", 1),
        (NoAuthentication(), "0.0.0.0", 0),  # noqa: S104
        (NoAuthentication(), "10.0.0.1", 0),
        (BasicAuthentication(USERS), "127.0.0.1", 0),
    ],
)
async def test_an_address_is_printed_only_on_loopback_and_where_nobody_logs_in(
    auth: Authentication, host: str, shown: int
) -> None:
    tokens: list[str] = []
    access_of(DashboardOptions(listen=Listen(host, 8781), auth=auth), 8781, tokens.append)

    assert len(tokens) == shown


class TestKeystone:
    async def test_a_token_logs_in_and_its_end_ends_the_session(self) -> None:
        keystone, clock = FakeKeystone(), HandClock()
        clock.now_s = 4_000_000_000.0
        auth = KeystoneAuthentication(ACCOUNT, keystone.client(), clock)
        visited = Visited(auth)
        token = keystone.issue(lasts_s=10**9)
        browser = visited.browser()

        assert (await browser.log_in(token=f" {token}\n")).status_code == 303
        assert "is set down" in (await browser.order(HOST_MODE)).text
        assert visited.cloud.hosts["h1"].setting.by == "u-1"
        form = await browser.form_of("/orders/set-host?host=h1&mode=up")
        del keystone.tokens[token]
        clock.now_s += 301
        assert (await browser.send_form("/orders/set-host", form)).status_code == 401
        assert len(visited.cloud.ordered) == 1
        assert len(visited.sessions) == 0

    async def test_a_password_logs_in_as_a_member_of_the_project(self) -> None:
        keystone = FakeKeystone()
        said = {"roles": [{"id": "r", "name": "member"}], "project": {"id": "shop", "name": "demo"}}
        keystone.people["ann", "of ann", "demo"] = said
        browser = Visited(KeystoneAuthentication(ACCOUNT, keystone.client())).browser()

        wrong = await browser.log_in(user="ann", password="wrong", project="demo")  # noqa: S106
        assert (wrong.status_code, "answers 401 to user &#39;ann&#39;" in wrong.text) == (401, True)
        assert "wrong" not in wrong.text.replace("the password is wrong", "")
        assert (await browser.log_in(user="ann", password="of ann", project="demo")).status_code == 303  # noqa: S106
        assert (await browser.get("/instances")).status_code == 200
        assert (await browser.get("/hosts")).status_code == 403

    async def test_of_a_flood_of_passwords_few_are_asked_of_keystone_at_once(self) -> None:
        keystone = FakeKeystone()
        keystone.may_answer.clear()
        browser = Visited(KeystoneAuthentication(ACCOUNT, keystone.client())).browser("203.0.113.7")
        fields = {**hidden(await browser.get("/login")), "user": "ann", "password": "wrong", "project": "x"}
        logins = [asyncio.create_task(browser.send_form("/login", fields)) for _ in range(40)]

        while sum(each.done() for each in logins) < 32:
            await asyncio.sleep(0)
        keystone.may_answer.set()

        answers = Counter([(await each).status_code for each in logins])
        assert answers == {429: 32, 401: 8}
        assert len(keystone.authenticated) == 8

    @pytest.mark.parametrize("token", ["a\nx-auth-token: b", "a\0b", "é", "x" * 9_000])
    async def test_an_odd_token_is_refused(self, token: str) -> None:
        keystone = FakeKeystone()
        answer = (
            await Visited(KeystoneAuthentication(ACCOUNT, keystone.client())).browser().log_in(token=token)
        )

        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers or "moorage-1=" not in answer.headers["set-cookie"]

    async def test_one_without_a_project_reads_nothing_and_one_that_is_away_says_so(self) -> None:
        keystone = FakeKeystone()
        visited = Visited(KeystoneAuthentication(ACCOUNT, keystone.client()))
        browser = visited.browser()

        nothing = await browser.log_in(
            token=keystone.issue(project={}, roles=[{"id": "r", "name": "member"}])
        )
        assert (nothing.status_code, "acts for no project" in nothing.text) == (403, True)
        keystone.is_down = True
        away = await browser.log_in(token="unknown")  # noqa: S106
        assert (away.status_code, "Keystone" in away.text) == (503, True)
        assert len(visited.sessions) == 0
