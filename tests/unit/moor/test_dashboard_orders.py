"""What may be ordered by the dashboard, by whom, and how often; and what forged, foreign and odd forms do."""

import asyncio
import logging
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from msgspec import structs

from bus.messages.build import BuildRejected, DeleteInstance
from bus.messages.hosts import SetHost
from engine.hosts import NODE
from moor.dashboard.access import FORM_BYTES_MAX, IDLE_S_MAX, SessionStore
from moor.dashboard.actions import UNDER_WAY_MAX
from placement_worker.api.auth import REMEMBERED_S, BasicAuthentication, KeystoneAuthentication, User
from tests.api.fake_keystone import FakeKeystone
from tests.unit.moor.dashboard_visits import (
    GARDENS,
    HASHED,
    PASSWORD,
    SCRIPT,
    SHOPS,
    FakeBrowser,
    Visited,
    an_instance,
    hidden,
)
from tests.unit.moor.test_dashboard_logins import ACCOUNT

pytestmark = pytest.mark.asyncio

DOWN = "/orders/set-host?host=c1%2Fh1&mode=down"
DELETE = f"/orders/delete?instance={SHOPS}"


async def test_an_order_is_asked_about_then_sent_and_says_who_sent_it() -> None:
    visited = Visited()
    root = await visited.logged_in("root")

    page = await root.get(DOWN)
    assert "Set c1/h1 down?" in page.text
    assert "<b>2</b> instances are concerned" in page.text
    assert visited.cloud.ordered == []
    done = await root.order(DOWN, reason="a disk burns")

    assert visited.cloud.ordered == [
        SetHost(host="c1/h1", mode="down", reason="a disk burns", for_user="root")
    ]
    assert (done.status_code, "c1/h1 is set down, by root." in done.text) == (200, True)
    assert "Ordered by root" in done.text


async def test_a_second_press_does_nothing_twice_at_once_or_later() -> None:
    visited = Visited()
    root = await visited.logged_in("root")
    form = await root.form_of(DOWN)
    visited.cloud.may_answer.clear()

    presses = [asyncio.create_task(root.send_form("/orders/set-host", form)) for _ in range(5)]
    while not visited.cloud.ordered:
        await asyncio.sleep(0)
    visited.cloud.may_answer.set()
    places = {(await each).headers["location"] for each in presses}
    later = await root.send_form("/orders/set-host", form)

    assert len(visited.cloud.ordered) == 1
    assert places == {later.headers["location"]} == {f"/jobs/{form['form_id']}"}


async def test_a_second_page_about_the_same_host_waits_for_the_first_order() -> None:
    visited = Visited()
    root, other = await visited.logged_in("root"), await visited.logged_in("root")
    first, second = await root.form_of(DOWN), await other.form_of(DOWN)
    visited.cloud.may_answer.clear()
    sent = asyncio.create_task(root.send_form("/orders/set-host", first))
    while not visited.cloud.ordered:
        await asyncio.sleep(0)

    refused = await other.send_form("/orders/set-host", second)
    visited.cloud.may_answer.set()
    await sent

    assert (refused.status_code, "root has ordered this already" in refused.text) == (400, True)
    assert len(visited.cloud.ordered) == 1


async def test_a_refusal_is_shown_with_the_words_of_the_worker() -> None:
    visited = Visited()
    root = await visited.logged_in("root")
    visited.cloud.refusal = BuildRejected(
        request_id=None, field="mode", value="down", reason="not on a Sunday"
    )

    answer = await root.order(DOWN)

    assert answer.status_code == 409
    assert "rejected: mode is &#39;down&#39;: not on a Sunday" in answer.text


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"])
async def test_nothing_but_a_form_orders_anything(method: str) -> None:
    visited = Visited()
    root = await visited.logged_in("root")
    form = await root.form_of(DOWN)

    for path in ("/orders/set-host", "/logout", f"/jobs/{uuid4()}/stop"):
        await root.request(method, path, params=form, headers={"origin": root.origin})
    await root.post("/orders/set-host", params=form, headers={"origin": root.origin})

    assert visited.cloud.ordered == []
    assert (await root.get("/hosts")).status_code == 200


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", None, "http://testserver:8080", "file://"]
)
async def test_a_form_of_another_site_does_not_count(origin: str | None) -> None:
    visited = Visited()
    root = await visited.logged_in("root")

    refused = await root.send_form("/orders/set-host", await root.form_of(DOWN), origin)

    assert (refused.status_code, "another site" in refused.text) == (403, True)
    assert visited.cloud.ordered == []


async def test_a_form_for_another_name_of_the_server_does_not_count() -> None:
    visited = Visited()
    root = await visited.logged_in("root")
    form = await root.form_of(DOWN)

    refused = await root.post(
        "/orders/set-host", data=form, headers={"host": "evil.example", "origin": "http://evil.example"}
    )

    assert refused.status_code == 400
    assert visited.cloud.ordered == []


async def test_a_page_by_https_is_of_this_dashboard_where_a_proxy_ends_tls() -> None:
    visited = Visited()
    root = await visited.logged_in("root")

    sent = await root.send_form("/orders/set-host", await root.form_of(DOWN), "https://testserver")

    assert (sent.status_code, len(visited.cloud.ordered)) == (303, 1)


async def test_a_form_without_the_token_of_its_own_session_does_not_count() -> None:
    visited = Visited()
    root, other = await visited.logged_in("root"), await visited.logged_in("root")
    form, foreign = await root.form_of(DOWN), await other.form_of(DOWN)

    for token in ("", "x", foreign["form_token"], form["form_token"][:-1], "ö"):
        refused = await root.send_form("/orders/set-host", {**form, "form_token": token})
        assert (refused.status_code, "not of your session" in refused.text) == (403, True), token
    del form["form_token"]
    assert (await root.send_form("/orders/set-host", form)).status_code == 403
    assert visited.cloud.ordered == []


async def test_a_password_alone_reads_and_orders_nothing() -> None:
    visited = Visited()
    form = await (await visited.logged_in("root")).form_of(DOWN)
    program = visited.browser()
    program.auth = ("root", PASSWORD)

    assert (await program.get("/hosts")).status_code == 200
    assert (await program.get(DOWN)).status_code == 403
    refused = await program.send_form("/orders/set-host", form)
    assert (refused.status_code, "You are not logged in" in refused.text) == (403, True)
    assert visited.cloud.ordered == []


async def test_members_delete_instances_of_their_own_project_only() -> None:
    visited = Visited()
    ann = await visited.logged_in("ann")

    for path in (
        DOWN,
        "/orders/drain?host=h1",
        "/orders/evacuate?host=h1",
        "/orders/replay?broker=api&letter=x",
    ):
        assert (await ann.get(path)).status_code == 403
    foreign = await ann.get(f"/orders/delete?instance={GARDENS}")
    assert (foreign.status_code, f"There is no instance {GARDENS}" in foreign.text) == (400, True)
    form = await ann.form_of(DELETE)
    for path, fields in (
        ("/orders/delete", {**form, "instance": str(GARDENS)}),
        ("/orders/set-host", {**form, "host": "h1", "mode": "dead", "sure": "yes"}),
        ("/orders/drain", {**form, "host": "h1"}),
    ):
        assert (await ann.send_form(path, fields)).status_code in (400, 403)
    assert visited.cloud.ordered == []

    done = await ann.order(DELETE)
    assert visited.cloud.ordered == [DeleteInstance(instance=SHOPS, project="shop", for_user="ann")]
    assert "The instance is deleting." in done.text
    assert "is deleting already" in (await ann.get(DELETE)).text


async def test_a_reader_of_a_project_deletes_nothing_and_sees_no_button() -> None:
    visited = Visited()
    reader, ann = await visited.logged_in("reader"), await visited.logged_in("ann")

    assert (await reader.get(DELETE)).status_code == 403
    form = {**await ann.form_of(DELETE), **hidden(await reader.get("/instances"))}
    assert (await reader.send_form("/orders/delete", form)).status_code == 403
    assert visited.cloud.ordered == []


async def test_what_became_of_an_order_is_for_its_user_and_administrators() -> None:
    visited = Visited()
    ann, bob, root, same_project = [
        await visited.logged_in(name) for name in ("ann", "bob", "root", "reader")
    ]
    done = await ann.order(DELETE)

    assert (await ann.get(done.url.path)).status_code == 200
    assert (await root.get(done.url.path)).status_code == 200
    assert (await bob.get(done.url.path)).status_code == 404
    assert (await same_project.get(done.url.path)).status_code == 404
    stop = {**hidden(await bob.get("/instances")), **await bob.form_of(f"/orders/delete?instance={GARDENS}")}
    assert (await bob.send_form(f"{done.url.path}/stop", stop)).status_code == 404


@pytest.mark.parametrize(
    ("changed", "status", "said"),
    [
        ({"form_id": "x"}, 400, "it is no id"),
        ({"form_id": ""}, 400, "it is no id"),
        ({"form_id": "é" * 2_000}, 400, "it is no id"),
        ({"host": ""}, 400, "There is no host"),
        ({"host": "c1/none"}, 400, "There is no host"),
        ({"host": SCRIPT}, 400, "There is no host"),
        ({"mode": "off"}, 400, "it must be one of"),
        ({"mode": ""}, 400, "it must be one of"),
        ({"reason": "x" * 256}, 400, "has 256 characters"),
        ({"reason": "a\nb"}, 400, "control characters"),
        ({"reason": "a\0b"}, 400, "control characters"),
        ({"reason": "\u202egnp"}, 400, "control characters"),
        ({"mode": "dead"}, 400, "not confirmed"),
        ({"mode": "dead", "sure": "no"}, 400, "not confirmed"),
        ({"reason": "x" * FORM_BYTES_MAX}, 413, "more than"),
        ({f"field{number}": "" for number in range(50)}, 400, "cannot be read"),
    ],
)
async def test_odd_fields_are_refused_with_what_is_wrong(
    changed: dict[str, str], status: int, said: str
) -> None:
    visited = Visited()
    root = await visited.logged_in("root")

    refused = await root.send_form("/orders/set-host", {**await root.form_of(DOWN), **changed})

    assert (refused.status_code, said in refused.text) == (status, True), refused.text
    assert SCRIPT not in refused.text
    assert visited.cloud.ordered == []


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"reason=%ff", "application/x-www-form-urlencoded", 400),
        (b"\xff\xfe", "application/x-www-form-urlencoded", 400),
        (b"host=h1&host=h2", "application/x-www-form-urlencoded", 400),
        (b"", "application/x-www-form-urlencoded", 403),
        (b'{"host": "h1"}', "application/json", 415),
        (b"--x\r\n\r\n", "multipart/form-data; boundary=x", 415),
        (b"host=h1", "text/plain", 415),
        (b"host=h1", "", 415),
    ],
)
async def test_a_body_that_is_no_form_is_refused(body: bytes, kind: str, status: int) -> None:
    visited = Visited()
    root = await visited.logged_in("root")

    headers = {"origin": root.origin, "content-type": kind}
    assert (await root.post("/orders/set-host", content=body, headers=headers)).status_code == status
    assert visited.cloud.ordered == []


async def test_names_that_strangers_chose_are_text() -> None:
    user = f"root{SCRIPT}"
    visited = Visited(BasicAuthentication({user: User(HASHED)}))
    cloud = visited.cloud
    name = f'{SCRIPT}"onx=y'
    setting = structs.replace(cloud.hosts["h1"].setting, reason=SCRIPT)
    cloud.hosts[name] = structs.replace(cloud.hosts["h1"], name=name, setting=setting)
    cloud.instances[SHOPS] = an_instance(SHOPS, "shop", name=SCRIPT, reason=SCRIPT)
    root = await visited.logged_in(user)

    pages = [await root.get("/orders/drain", params={"host": name}), await root.get(DELETE)]
    pages.append(await root.get("/orders/set-host", params={"host": name, "mode": "down"}))
    form = hidden(pages[-1])
    assert form["host"] == f"c1/{name}"
    pages.append(await root.send_form("/orders/set-host", {**form, "reason": f"a\0{SCRIPT}"}))
    cloud.refusal = BuildRejected(request_id=None, field=SCRIPT, value=SCRIPT, reason=SCRIPT)
    pages.append(await root.order(DELETE))

    for page in pages:
        assert SCRIPT not in page.text
        assert '"onx' not in page.text
        assert "&lt;script&gt;" in page.text
        assert "unsafe" not in page.headers["content-security-policy"]


async def test_the_log_has_each_order_and_its_end_and_no_forged_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    visited = Visited()
    visited.cloud.instances[SHOPS] = an_instance(SHOPS, "shop", name="web\nroot deletes everything")
    ann = await visited.logged_in("ann")
    with caplog.at_level(logging.INFO):
        await ann.order(DELETE)

    told = [str(each.msg) for each in caplog.records if each.name == "moor.dashboard.actions"]
    assert [line.partition(" project")[0] for line in told] == [
        "order of the dashboard",
        "order of the dashboard done",
    ]
    assert all("by=ann" in line and "\n" not in line for line in told)
    assert str(SHOPS) in told[0]


async def test_what_cannot_be_done_is_said_before_it_is_sent() -> None:
    visited = Visited()
    root = await visited.logged_in("root")
    cloud = visited.cloud

    assert "set it down first" in (await root.get("/orders/evacuate?host=h1")).text
    cloud.hosts["h1"] = structs.replace(cloud.hosts["h1"], kind=NODE)
    assert "which cannot be dead" in (await root.get("/orders/set-host?host=h1&mode=dead")).text
    cloud.hosts["again"] = structs.replace(cloud.hosts["h1"], cell="c2")
    assert "hosts of cells c1 and c2 have this name" in (await root.get("/orders/drain?host=h1")).text
    assert (await root.get("/orders/reboot?host=h1")).status_code == 404
    assert (await root.get("/orders/delete?instance=x")).status_code == 400
    assert (await root.get("/orders/delete")).status_code == 400
    assert "There is no dead letter" in (await root.get("/orders/replay?broker=api&letter=x")).text
    assert (await root.get(f"/jobs/{uuid4()}")).status_code == 404
    assert cloud.ordered == []


async def test_the_id_of_another_users_order_cannot_be_taken() -> None:
    visited = Visited()
    ann, root = await visited.logged_in("ann"), await visited.logged_in("root")
    visited.cloud.may_answer.clear()
    going = await root.order(DOWN)
    id_ = going.url.path.rpartition("/")[2]

    taken = await ann.send_form("/orders/delete", {**await ann.form_of(DELETE), "form_id": id_})
    assert (await ann.get(taken.headers["location"])).status_code == 404
    assert "Set c1/h1 down" in (await root.get(going.url.path)).text
    assert len(visited.cloud.ordered) == 1
    visited.cloud.may_answer.set()


async def test_a_form_that_does_not_arrive_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moor.dashboard.access.FORM_S_MAX", 0.05)
    visited = Visited()
    root = await visited.logged_in("root")

    async def slow() -> AsyncIterator[bytes]:
        yield b"host=h1"
        await asyncio.sleep(60)

    headers = {"origin": root.origin, "content-type": "application/x-www-form-urlencoded"}
    answer = await root.post("/orders/set-host", content=slow(), headers=headers)

    assert (answer.status_code, "did not arrive within" in answer.text) == (408, True)


async def test_so_many_orders_go_on_and_no_more() -> None:
    visited = Visited()
    root = await visited.logged_in("root")
    cloud = visited.cloud
    for number in range(UNDER_WAY_MAX + 1):
        cloud.hosts[f"n{number}"] = structs.replace(cloud.hosts["h1"], name=f"n{number}")
    forms = [
        await root.form_of(f"/orders/set-host?host=n{number}&mode=down")
        for number in range(UNDER_WAY_MAX + 1)
    ]
    cloud.may_answer.clear()

    answers = await asyncio.gather(*(root.send_form("/orders/set-host", form) for form in forms))
    assert sorted(each.status_code for each in answers) == [303] * UNDER_WAY_MAX + [503]
    # An order that was not begun may be sent again.
    cloud.may_answer.set()
    late = forms[[each.status_code for each in answers].index(503)]
    for answer in answers:
        if answer.status_code == 303:
            await _until_ended(root, answer.headers["location"])
    sent = await root.send_form("/orders/set-host", late)

    assert (sent.status_code, len(cloud.ordered)) == (303, UNDER_WAY_MAX + 1)


async def _until_ended(browser: FakeBrowser, path: str) -> None:
    while "data-goes-on" in (await browser.get(path)).text:
        await asyncio.sleep(0)


async def test_an_order_that_is_stopped_says_so_and_the_end_of_the_process_stops_all() -> None:
    visited = Visited()
    root = await visited.logged_in("root")
    visited.cloud.may_answer.clear()

    going = await root.order(DOWN)
    assert "going on" in going.text
    stopped = await root.send_form(f"{going.url.path}/stop", hidden(going))
    assert (stopped.status_code, stopped.headers["location"]) == (303, going.url.path)
    assert "It was stopped" in (await root.get(going.url.path)).text
    other = await root.order(DELETE)
    await visited.actions.jobs.close()
    assert "It was stopped" in (await root.get(other.url.path)).text


@pytest.mark.parametrize("path", ["/live", "/instances/live"])
@pytest.mark.parametrize("end", ["logged out", "left open", "revoked"])
async def test_an_open_stream_ends_with_the_session(
    path: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that is only left open does not count as use of the session."""
    monkeypatch.setattr("moor.dashboard.instance_pages.LOOK_S", 0.02)
    now_s, asked = [4_000_000_000.0], asyncio.Event()
    keystone = FakeKeystone()
    token = keystone.issue(lasts_s=10**9)

    def clock() -> float:
        asked.set()
        return now_s[0]

    auth = KeystoneAuthentication(ACCOUNT, keystone.client(), clock)
    visited = Visited(auth, port=1, sessions=SessionStore(clock=clock))
    root = visited.browser()
    await root.log_in(token=token)
    secret = root.cookies["moorage-1"]
    sent: list[str] = []
    has_sent = asyncio.Event()
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "scheme": "http",
        "headers": [(b"host", b"testserver"), (b"cookie", f"moorage-1={secret}".encode())],
        "server": ("testserver", 80),
    }

    async def receive() -> dict[str, object]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: dict[str, object]) -> None:
        if body := message.get("body"):
            assert isinstance(body, bytes)
            sent.append(body.decode())
            has_sent.set()

    watching = asyncio.create_task(visited.watcher.run())
    streaming = asyncio.create_task(visited.app(scope, receive, send))  # type: ignore[arg-type]
    await has_sent.wait()
    assert not streaming.done()
    match end:
        case "logged out":
            visited.sessions.end(secret)
        case "left open":
            for _ in range(3):
                now_s[0] += IDLE_S_MAX / 3 + 1
                asked.clear()
                await asyncio.wait_for(asked.wait(), 5)
        case "revoked":
            del keystone.tokens[token]
            now_s[0] += REMEMBERED_S + 1
    told = len(sent)
    await asyncio.wait_for(streaming, 5)
    await visited.watcher.stop()
    await watching
    await visited.watcher.close()

    assert len(sent) == told
