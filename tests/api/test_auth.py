"""Authentication: which caller sends a request?"""

import asyncio
import base64
from collections import Counter
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from time import process_time

import bcrypt
import httpx
import pytest
from msgspec import structs

from kit.errors import Unavailable
from kit.keystone import KeystoneRefused, OpenStackSettings
from placement_worker.api.auth import (
    BadPasswordFileError,
    BasicAuthentication,
    BelievedToken,
    KeystoneAuthentication,
    User,
    users_in,
)
from placement_worker.api.values import ApiError, Headers
from tests.api.asking_app import app_with, asked
from tests.api.fake_keystone import OUR_PASSWORD, FakeKeystone
from tests.api.test_server import serving

ACCOUNT = OpenStackSettings(keystone_url="http://keystone/identity", user="placement", password=OUR_PASSWORD)
# The cheapest hash that bcrypt allows.
HASHED = bcrypt.hashpw(b"s3cret:with a colon", bcrypt.gensalt(4))
# One whose checks take much longer than what surrounds them.
COSTLY = User(bcrypt.hashpw(b"x", bcrypt.gensalt(11)))


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def basic_header(user: str, password: str) -> Headers:
    encoded = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"authorization": f"Basic {encoded}"}


class TestBelievedTokens:
    """The requests of upstream's test suite in its noauth2 mode."""

    @pytest.mark.asyncio
    @pytest.mark.parametrize(
        ("headers", "user", "project", "roles"),
        [
            ({"x-auth-token": "admin"}, "admin", "admin", {"admin"}),
            ({"x-auth-token": "ann"}, "ann", "ann", set()),
            ({"x-auth-token": "ann:p-1"}, "ann", "p-1", set()),
            ({"x-auth-token": "ann", "x-roles": "Admin, reader"}, "ann", "ann", {"admin", "reader"}),
            ({"x-auth-token": "ann", "x-project-id": "p-2"}, "ann", "p-2", set()),
            ({"x-auth-token": "ann", "openstack-system-scope": "all"}, "ann", "", set()),
        ],
    )
    async def test_say_user_project_and_roles(
        self, headers: dict[str, str], user: str, project: str, roles: set[str]
    ) -> None:
        caller = await BelievedToken().caller(headers)

        assert (caller.user, caller.project, caller.roles) == (user, project, frozenset(roles))
        assert caller.system_scope == headers.get("openstack-system-scope", "")

    @pytest.mark.asyncio
    async def test_are_asked_for_with_a_body_that_clients_can_read(self) -> None:
        answer = await asked(app_with(auth=BelievedToken()), "GET", "/things")

        assert answer.status_code == HTTPStatus.UNAUTHORIZED
        assert answer.json()["errors"][0]["title"] == "Unauthorized"
        assert not {"vary", "openstack-api-version"} & set(answer.headers)

    @pytest.mark.asyncio
    async def test_policy_goes_by_what_they_say(self) -> None:
        app = app_with(auth=BelievedToken())

        assert (await asked(app, "GET", "/things", headers={"x-auth-token": "ann"})).status_code == 403
        assert (await asked(app, "GET", "/things", headers={"x-auth-token": "admin"})).status_code == 200


class TestBasic:
    @pytest.mark.asyncio
    async def test_lets_in_who_is_in_the_file_as_an_administrator(self) -> None:
        auth = BasicAuthentication({"ann": User(HASHED)})

        caller = await auth.caller(basic_header("ann", "s3cret:with a colon"))

        assert caller.user == "ann"
        assert {"admin", "service"} <= caller.roles

    @pytest.mark.asyncio
    @pytest.mark.parametrize(
        "headers",
        [
            {},
            {"authorization": "Bearer x"},
            {"authorization": "Basic"},
            {"authorization": "Basic %%%"},
            {"authorization": "Basic " + base64.b64encode(b"no colon").decode()},
            {"authorization": "Basic " + base64.b64encode(b"\xff:x").decode()},
            basic_header("ann", "wrong"),
            basic_header("ann", "s3cret:with a colon" + "x" * 100),
            basic_header("ann", "s3cret:with a colon\0"),
            basic_header("bob", "nobody"),
        ],
    )
    async def test_refuses_everyone_else_and_says_how_to_ask(self, headers: Headers) -> None:
        with pytest.raises(ApiError) as refused:
            await BasicAuthentication({"ann": User(HASHED)}).caller(headers)

        assert refused.value.status is HTTPStatus.UNAUTHORIZED
        assert refused.value.headers["www-authenticate"].startswith("Basic realm=")

    @pytest.mark.asyncio
    async def test_remembers_who_passed_for_a_while_and_never_who_did_not(self) -> None:
        clock = Clock()
        users = {"ann": User(HASHED)}
        auth = BasicAuthentication(users, clock)
        await auth.caller(basic_header("ann", "s3cret:with a colon"))
        del users["ann"]

        clock.now += 299
        assert (await auth.caller(basic_header("ann", "s3cret:with a colon"))).user == "ann"
        with pytest.raises(ApiError):
            await auth.caller(basic_header("ann", "wrong"))
        clock.now += 2
        with pytest.raises(ApiError):
            await auth.caller(basic_header("ann", "s3cret:with a colon"))

    def test_reads_what_htpasswd_writes(self, tmp_path: Path) -> None:
        file = tmp_path / "users"
        file.write_text(f"# operators\n\nann:{HASHED.decode()}\nbob:$2y${HASHED.decode()[4:]}:shop\n")

        assert users_in(file) == {"ann": User(HASHED), "bob": User(b"$2y$" + HASHED[4:], "shop")}

    @pytest.mark.asyncio
    async def test_a_user_of_a_project_reads_unless_the_file_says_member(self, tmp_path: Path) -> None:
        file = tmp_path / "users"
        hashed = HASHED.decode()
        file.write_text(f"bob:{hashed}:shop\ncai:{hashed}:shop:reader\ndee:{hashed}:shop:member\n")
        auth = BasicAuthentication(users_in(file))

        callers = [
            await auth.caller(basic_header(name, "s3cret:with a colon")) for name in ("bob", "cai", "dee")
        ]

        assert [each.roles for each in callers] == [{"reader"}, {"reader"}, {"reader", "member"}]
        assert {each.project for each in callers} == {"shop"}

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("ann", "line 1: write user:hash"),
            ("\nann:$apr1$abc$def", "line 2: the password of 'ann' is not hashed by bcrypt"),
            ("ann:$2y$05$short", "not hashed by bcrypt"),
            (f"ann:{HASHED.decode()}:", "the second colon is not followed by a project"),
            (f"ann:{HASHED.decode()}:shop:admin", "the role of 'ann' is 'admin'"),
            (f"ann:{HASHED.decode()}::member", "the second colon is not followed by a project"),
            ("# nobody", "has no users"),
        ],
        # Hashes differ in each process, and parallel test processes need equal test ids.
        ids=[
            "no hash",
            "another hash",
            "a short hash",
            "no project",
            "no role",
            "a role without a project",
            "nobody",
        ],
    )
    def test_refuses_a_file_with_anything_else_in_it(self, tmp_path: Path, text: str, why: str) -> None:
        file = tmp_path / "users"
        file.write_text(text)

        with pytest.raises(BadPasswordFileError, match=why):
            users_in(file)

    def test_refuses_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(BadPasswordFileError, match="cannot be read"):
            users_in(tmp_path / "users")


class TestKeystone:
    @pytest.mark.asyncio
    async def test_tells_user_project_and_roles(self) -> None:
        keystone = FakeKeystone()
        auth = KeystoneAuthentication(ACCOUNT, keystone.client())

        caller = await auth.caller({"x-auth-token": keystone.issue()})

        assert (caller.user, caller.project, caller.system_scope) == ("u-1", "p-1", "")
        assert caller.roles == {"admin", "reader"}
        await auth.close()

    @pytest.mark.asyncio
    async def test_tells_who_acts_on_the_whole_system(self) -> None:
        keystone = FakeKeystone()
        auth = KeystoneAuthentication(ACCOUNT, keystone.client())
        token = keystone.issue(system={"all": True})
        del keystone.tokens[token]["project"]

        caller = await auth.caller({"x-auth-token": token})

        assert (caller.project, caller.system_scope) == ("", "all")

    @pytest.mark.asyncio
    @pytest.mark.parametrize(
        "headers", [{}, {"x-auth-token": ""}, {"x-auth-token": "made up"}, {"x-auth-token": "\xff"}]
    )
    async def test_does_not_know_a_made_up_token(self, headers: dict[str, str]) -> None:
        auth = KeystoneAuthentication(ACCOUNT, FakeKeystone().client())

        with pytest.raises(ApiError) as refused:
            await auth.caller(headers)

        assert refused.value.status is HTTPStatus.UNAUTHORIZED
        assert refused.value.headers["www-authenticate"] == "Keystone uri='http://keystone/identity'"

    @pytest.mark.asyncio
    async def test_is_asked_once_for_many_requests_with_one_token(self) -> None:
        keystone = FakeKeystone()
        auth = KeystoneAuthentication(ACCOUNT, keystone.client())
        token = keystone.issue()

        callers = await asyncio.gather(*(auth.caller({"x-auth-token": token}) for _ in range(20)))
        await auth.caller({"x-auth-token": token})

        assert keystone.asked == [token]
        assert {caller.user for caller in callers} == {"u-1"}

    @pytest.mark.asyncio
    @pytest.mark.parametrize(("lasts_s", "asked_again_after_s"), [(3600, 300), (60, 60)])
    async def test_is_asked_again_after_a_while_and_when_the_token_has_run_out(
        self, lasts_s: float, asked_again_after_s: float
    ) -> None:
        keystone, clock = FakeKeystone(), Clock()
        token = keystone.issue(lasts_s=lasts_s)
        until = str(keystone.tokens[token]["expires_at"])
        clock.now = _timestamp(until) - lasts_s
        auth = KeystoneAuthentication(ACCOUNT, keystone.client(), clock)

        await auth.caller({"x-auth-token": token})
        clock.now += asked_again_after_s - 1
        await auth.caller({"x-auth-token": token})
        assert keystone.asked == [token]

        del keystone.tokens[token]
        clock.now += 2
        with pytest.raises(ApiError):
            await auth.caller({"x-auth-token": token})

    @pytest.mark.asyncio
    async def test_is_asked_again_about_the_oldest_of_too_many_tokens(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("placement_worker.api.auth.REMEMBERED_MAX", 2)
        keystone = FakeKeystone()
        auth = KeystoneAuthentication(ACCOUNT, keystone.client())
        first, *_, last = tokens = [keystone.issue() for _ in range(3)]

        for token in (*tokens, last, first):
            await auth.caller({"x-auth-token": token})

        assert keystone.asked == [*tokens, first]

    @pytest.mark.asyncio
    async def test_is_asked_with_a_new_token_of_ours_when_the_old_one_has_run_out(self) -> None:
        keystone = FakeKeystone()
        auth = KeystoneAuthentication(ACCOUNT, keystone.client())
        await auth.caller({"x-auth-token": keystone.issue()})
        keystone.service_tokens.clear()

        caller = await auth.caller({"x-auth-token": keystone.issue()})

        assert caller.user == "u-1"

    @pytest.mark.asyncio
    async def test_that_is_down_is_a_503_and_is_found_again(self) -> None:
        keystone = FakeKeystone()
        app = app_with(auth=KeystoneAuthentication(ACCOUNT, keystone.client()))
        token = {"x-auth-token": keystone.issue()}

        keystone.is_down = True
        assert (await asked(app, "GET", "/things", headers=token)).status_code == 503
        keystone.is_down = False
        assert (await asked(app, "GET", "/things", headers=token)).status_code == 200

    @pytest.mark.asyncio
    async def test_whose_answer_cannot_be_understood_is_as_if_it_were_down(self) -> None:
        keystone = FakeKeystone()
        auth = KeystoneAuthentication(ACCOUNT, keystone.client())

        with pytest.raises(Unavailable, match="not in the expected form"):
            await auth.caller({"x-auth-token": keystone.issue(expires_at="tomorrow")})

    @pytest.mark.asyncio
    async def test_that_does_not_take_our_own_password_is_an_error_that_names_the_user(self) -> None:
        keystone = FakeKeystone()
        account = structs.replace(ACCOUNT, password=OUR_PASSWORD + "?")
        auth = KeystoneAuthentication(account, keystone.client())

        with pytest.raises(Unavailable, match="401 to user 'placement' of project 'service'"):
            await auth.caller({"x-auth-token": keystone.issue()})

    @pytest.mark.asyncio
    async def test_gives_a_token_for_a_password_and_says_who_was_refused(self) -> None:
        keystone = FakeKeystone()
        keystone.people["ann", "of ann", "demo"] = {"roles": [{"id": "r-2", "name": "member"}]}
        auth = KeystoneAuthentication(ACCOUNT, keystone.client())

        token = await auth.token_by_password("ann", "of ann", "demo", "")
        with pytest.raises(KeystoneRefused, match="answers 401 to user 'ann' of project 'demo'"):
            await auth.token_by_password("ann", "wrong", "demo", "")

        assert (await auth.caller({"x-auth-token": token})).roles == {"member"}
        await auth.close()


def _timestamp(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


class TestFloods:
    """Many logins at once, of names that are there or not, from one address or many."""

    PASSWORD = "s3cret:with a colon"  # noqa: S105

    @pytest.mark.asyncio
    async def test_of_unknown_names_or_wrong_passwords_do_not_hold_up_a_right_one(self) -> None:
        auth = BasicAuthentication({name: User(HASHED) for name in ("ann", "bob")})
        unknown = [basic_header(f"nobody-{number % 25}", f"guess-{number}") for number in range(400)]
        wrong = [basic_header("bob", f"guess-{number}") for number in range(16)]
        flood = [asyncio.create_task(auth.caller(each)) for each in [*unknown, *wrong]]
        # All of them ask first.
        await asyncio.sleep(0)

        assert (await auth.caller(basic_header("ann", self.PASSWORD))).user == "ann"

        # Each name waits for its own checks alone.
        assert sum(not each.done() for each in flood) > len(flood) // 2
        refused = await asyncio.gather(*flood, return_exceptions=True)
        assert {each.status for each in refused if isinstance(each, ApiError)} == {HTTPStatus.UNAUTHORIZED}

    @pytest.mark.asyncio
    async def test_of_unknown_names_cost_no_checks(self) -> None:
        auth = BasicAuthentication({"ann": COSTLY})

        async def cpu_s(*headers: Headers) -> float:
            before_s = process_time()
            await asyncio.gather(*map(auth.caller, headers), return_exceptions=True)
            return process_time() - before_s

        one_s = await cpu_s(basic_header("ann", "wrong"))
        assert await cpu_s(*(basic_header(f"nobody-{number}", "x") for number in range(100))) < 10 * one_s

    @pytest.mark.asyncio
    @pytest.mark.parametrize("name", ["ann", "nobody"])
    async def test_are_bounded_by_name(self, name: str) -> None:
        """Whether the name exists cannot be seen."""
        answers = await self.tried([(basic_header(name, f"guess-{number}"), "") for number in range(40)])

        assert answers == {HTTPStatus.UNAUTHORIZED: 16, HTTPStatus.TOO_MANY_REQUESTS: 24}

    @pytest.mark.asyncio
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
            (["[2001:db8::1]:4000", "[2001:db8::1]:4001"], 8),
            (["what a proxy says"], 8),
            (["127.0.0.1", "::1", "::ffff:127.0.0.1", ""], 40),
        ],
    )
    async def test_are_bounded_by_address_but_for_this_machine(
        self, addresses: list[str], checked: int
    ) -> None:
        answers = await self.tried(
            [(basic_header(f"n-{number}", "x"), addresses[number % len(addresses)]) for number in range(40)]
        )

        assert answers[HTTPStatus.UNAUTHORIZED] == checked
        assert answers[HTTPStatus.TOO_MANY_REQUESTS] == 40 - checked

    @pytest.mark.asyncio
    @pytest.mark.parametrize(
        ("address", "was_there"), [("203.0.113.1", True), ("127.0.0.1", True), ("203.0.113.1", False)]
    )
    async def test_of_ones_own_name_do_not_lock_out(self, address: str, *, was_there: bool) -> None:
        clock = Clock()
        auth = BasicAuthentication({"ann": User(HASHED)}, clock)
        right = basic_header("ann", self.PASSWORD)
        await auth.caller(right, address if was_there else "203.0.113.99")
        clock.now += 301
        others = ["203.0.113.7", "203.0.113.8"] * 8
        flood = [
            asyncio.create_task(auth.caller(basic_header("ann", f"guess-{number}"), other))
            for number, other in enumerate(others)
        ]
        await asyncio.sleep(0)

        assert (await auth.caller(right, address)).user == "ann"

        # From elsewhere it waits for its turn.
        assert all(each.done() for each in flood) is not was_there
        await asyncio.gather(*flood, return_exceptions=True)

    @pytest.mark.asyncio
    @pytest.mark.parametrize("name", ["cat", "nobody"])
    async def test_are_answered_after_as_long_whether_the_name_is_known(self, name: str) -> None:
        auth = BasicAuthentication(dict.fromkeys(("ann", "bob", "cat"), COSTLY))
        others = [asyncio.create_task(auth.caller(basic_header(each, "wrong"))) for each in ("ann", "bob")]
        await asyncio.sleep(0)

        with pytest.raises(ApiError):
            await auth.caller(basic_header(name, "wrong"))

        # Two are checked at once, and the third is one after another.
        assert any(each.done() for each in others)
        await asyncio.gather(*others, return_exceptions=True)

    @pytest.mark.asyncio
    async def test_of_one_right_user_share_a_check(self) -> None:
        auth = BasicAuthentication({"ann": User(HASHED)})
        header = basic_header("ann", self.PASSWORD)

        callers = await asyncio.gather(*(auth.caller(header, "203.0.113.7") for _ in range(200)))

        assert {each.user for each in callers} == {"ann"}

    async def tried(self, logins: list[tuple[Headers, str]]) -> Counter[HTTPStatus]:
        """All at once; and afterwards a right one passes from the same addresses."""
        auth = BasicAuthentication({"ann": User(HASHED)})
        tries = [auth.caller(headers, address) for headers, address in logins]
        answers = await asyncio.gather(*tries, return_exceptions=True)
        refused = [each for each in answers if isinstance(each, ApiError)]
        assert len(refused) == len(logins)
        assert all(each.headers["retry-after"] == "1" for each in refused if each.status == 429)
        for _, address in logins:
            assert (await auth.caller(basic_header("ann", self.PASSWORD), address)).user == "ann"
        return Counter(each.status for each in refused)

    @pytest.mark.asyncio
    @pytest.mark.parametrize("trusted", [(), ("127.0.0.0/8",)])
    async def test_behind_a_proxy_are_bounded_by_the_address_that_a_trusted_one_says(
        self, trusted: tuple[str, ...]
    ) -> None:
        """A client from 127.0.0.2 stands for a proxy on another machine."""
        app = app_with(auth=BasicAuthentication({"ann": COSTLY}))
        elsewhere = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
        async with (
            serving(app, proxies=trusted) as server,
            httpx.AsyncClient(base_url=server.url, transport=elsewhere) as proxy,
        ):

            async def tried(number: int) -> int:
                said = {**basic_header(f"n-{number}", "x"), "x-forwarded-for": "198.51.100.1, 203.0.113.7"}
                return (await proxy.get("/things", headers=said)).status_code

            answers = Counter(await asyncio.gather(*map(tried, range(40))))

        assert answers == ({401: 40} if not trusted else {401: answers[401], 429: 40 - answers[401]})
        assert answers[401] < 40 or not trusted
