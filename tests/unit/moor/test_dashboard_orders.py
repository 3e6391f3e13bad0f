"""What may be ordered by the dashboard, by whom, and how often; and what forged, foreign and odd forms do."""

import asyncio
from uuid import uuid4

import pytest

from bus.messages.build import DeleteInstance
from bus.messages.hosts import SetHost
from tests.unit.moor.dashboard_visits import (
    GARDENS,
    PASSWORD,
    SCRIPT,
    SHOPS,
    FakeBrowser,
    Visited,
    hidden,
)
from tests.waiting import until

DOWN = "/orders/set-host?host=c1%2Fh1&mode=down"
DELETE = f"/orders/delete?instance={SHOPS}"


async def test_an_order_is_asked_about_then_sent_and_says_who_sent_it(
    visited: Visited, root: FakeBrowser
) -> None:
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


async def test_a_second_press_does_nothing_twice_at_once_or_later(
    visited: Visited, root: FakeBrowser
) -> None:
    form = await root.form_of(DOWN)
    visited.cloud.may_answer.clear()

    presses = [asyncio.create_task(root.send_form("/orders/set-host", form)) for _ in range(5)]
    await until(lambda: visited.cloud.ordered, "the first press is ordered")
    visited.cloud.may_answer.set()
    places = {(await each).headers["location"] for each in presses}
    later = await root.send_form("/orders/set-host", form)

    assert len(visited.cloud.ordered) == 1
    assert places == {later.headers["location"]} == {f"/jobs/{form['form_id']}"}


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"])
async def test_nothing_but_a_form_orders_anything(method: str, visited: Visited, root: FakeBrowser) -> None:
    form = await root.form_of(DOWN)

    for path in ("/orders/set-host", "/logout", f"/jobs/{uuid4()}"):
        await root.request(method, path, params=form, headers={"origin": root.origin})
    await root.post("/orders/set-host", params=form, headers={"origin": root.origin})

    assert visited.cloud.ordered == []
    assert (await root.get("/hosts")).status_code == 200


async def test_a_form_of_another_site_name_or_session_does_not_count(visited: Visited) -> None:
    root, other = await visited.logged_in("root"), await visited.logged_in("root")
    form, foreign = await root.form_of(DOWN), await other.form_of(DOWN)

    for origin in ("https://evil.example", "null", None, "http://127.0.0.1:1", "file://"):
        refused = await root.send_form("/orders/set-host", form, origin)
        assert (refused.status_code, "another site" in refused.text) == (403, True), origin
    elsewhere = {"host": "evil.example", "origin": "http://evil.example"}
    assert (await root.post("/orders/set-host", data=form, headers=elsewhere)).status_code == 400
    for token in ("", "x", foreign["form_token"], form["form_token"][:-1], "ö"):
        refused = await root.send_form("/orders/set-host", {**form, "form_token": token})
        assert (refused.status_code, "not of your session" in refused.text) == (403, True), token
    without = {name: value for name, value in form.items() if name != "form_token"}
    assert (await root.send_form("/orders/set-host", without)).status_code == 403
    assert visited.cloud.ordered == []

    # A page by HTTPS is of this dashboard where a proxy ends TLS.
    sent = await root.send_form("/orders/set-host", form, root.origin.replace("http", "https"))
    assert (sent.status_code, len(visited.cloud.ordered)) == (303, 1)


async def test_a_password_alone_reads_and_orders_nothing(visited: Visited) -> None:
    form = await (await visited.logged_in("root")).form_of(DOWN)
    program = visited.browser()
    program.auth = ("root", PASSWORD)

    assert (await program.get("/hosts")).status_code == 200
    assert (await program.get(DOWN)).status_code == 403
    refused = await program.send_form("/orders/set-host", form)
    assert (refused.status_code, "You are not logged in" in refused.text) == (403, True)
    assert visited.cloud.ordered == []


async def test_members_delete_instances_of_their_own_project_only(visited: Visited) -> None:
    ann = await visited.logged_in("ann")

    for path in (
        DOWN,
        "/orders/drain?host=h1",
        "/orders/evacuate?host=h1",
        "/orders/replay?broker=api&letter=x",
    ):
        assert (await ann.get(path)).status_code == 403
    foreign = await ann.get(f"/orders/delete?instance={GARDENS}")
    assert (foreign.status_code, "There is no instance and no request" in foreign.text) == (404, True)
    form = await ann.form_of(DELETE)
    for path, fields in (
        ("/orders/delete", {**form, "instance": str(GARDENS)}),
        ("/orders/set-host", {**form, "host": "h1", "mode": "dead", "sure": "yes"}),
        ("/orders/drain", {**form, "host": "h1"}),
    ):
        assert (await ann.send_form(path, fields)).status_code in (403, 404)
    assert visited.cloud.ordered == []

    done = await ann.order(DELETE)
    assert visited.cloud.ordered == [DeleteInstance(instance=SHOPS, project="shop", for_user="ann")]
    assert "The instance is deleting." in done.text
    assert "is deleting already" in (await ann.get(DELETE)).text


async def test_a_reader_of_a_project_deletes_nothing_and_sees_no_button(visited: Visited) -> None:
    reader, ann = await visited.logged_in("reader"), await visited.logged_in("ann")

    assert (await reader.get(DELETE)).status_code == 403
    form = {**await ann.form_of(DELETE), **hidden(await reader.get("/instances"))}
    assert (await reader.send_form("/orders/delete", form)).status_code == 403
    assert visited.cloud.ordered == []


async def test_what_became_of_an_order_is_for_its_user_and_administrators(visited: Visited) -> None:
    ann, bob, root, same_project = [
        await visited.logged_in(name) for name in ("ann", "bob", "root", "reader")
    ]
    done = await ann.order(DELETE)

    assert (await ann.get(done.url.path)).status_code == 200
    assert (await root.get(done.url.path)).status_code == 200
    assert (await bob.get(done.url.path)).status_code == 404
    assert (await same_project.get(done.url.path)).status_code == 404


@pytest.mark.parametrize(
    ("changed", "status", "said"),
    [
        ({"form_id": "x"}, 400, "it is no id"),
        ({"form_id": ""}, 400, "it is no id"),
        ({"form_id": "é" * 2_000}, 400, "it is no id"),
        ({"host": ""}, 404, "There is no host"),
        ({"host": "c1/none"}, 404, "There is no host"),
        ({"host": SCRIPT}, 404, "There is no host"),
        ({"mode": "off"}, 400, "it must be one of"),
        ({"mode": ""}, 400, "it must be one of"),
        ({"reason": "x" * 256}, 400, "has 256 characters"),
        ({"reason": "a\nb"}, 400, "control characters"),
        ({"reason": "a\0b"}, 400, "control characters"),
        ({"reason": "\u202egnp"}, 400, "control characters"),
        ({"mode": "dead"}, 400, "not confirmed"),
        ({"mode": "dead", "sure": "no"}, 400, "not confirmed"),
        ({"reason": "x" * (1 << 20)}, 413, "more than"),
        ({f"field{number}": "" for number in range(50)}, 400, "cannot be read"),
    ],
)
async def test_odd_fields_are_refused_with_what_is_wrong(
    changed: dict[str, str], status: int, said: str, visited: Visited, root: FakeBrowser
) -> None:
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
async def test_a_body_that_is_no_form_is_refused(
    body: bytes, kind: str, status: int, visited: Visited, root: FakeBrowser
) -> None:
    headers = {"origin": root.origin, "content-type": kind}
    assert (await root.post("/orders/set-host", content=body, headers=headers)).status_code == status
    assert visited.cloud.ordered == []


async def test_the_id_of_another_users_order_cannot_be_taken(visited: Visited) -> None:
    ann, root = await visited.logged_in("ann"), await visited.logged_in("root")
    visited.cloud.may_answer.clear()
    going = await root.order(DOWN)
    id_ = going.url.path.rpartition("/")[2]

    taken = await ann.send_form("/orders/delete", {**await ann.form_of(DELETE), "form_id": id_})
    assert (await ann.get(taken.headers["location"])).status_code == 404
    assert "Set c1/h1 down" in (await root.get(going.url.path)).text
    assert len(visited.cloud.ordered) == 1
    visited.cloud.may_answer.set()


@pytest.mark.parametrize("path", ["/live", "/instances/live"])
async def test_an_open_stream_ends_with_the_session(path: str, root: FakeBrowser) -> None:
    form = await root.form_of(DOWN)

    async with root.stream("GET", path) as stream:
        parts = stream.aiter_raw()
        assert await anext(parts)
        await root.send_form("/logout", form)
        async for _ in parts:
            """What was sent before."""
    assert (await root.get(path)).status_code == 303
