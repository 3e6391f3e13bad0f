"""Dead letters in the dashboard: who looks at them sees why they died and from whom, changes nothing, and sees no secrets."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import httpx
import pytest
import pytest_asyncio

from bus import message
from bus.addresses import Addresses, broker_at
from bus.message import Parcel
from bus.topology import DEAD, DEAD_QUEUE
from moor.broker.deployments import deployments_of
from moor.dashboard.letters import BODY_SHOWN_MAX, LETTERS_MAX, LetterReader
from tests.contracts.memory_under_test import UnixUnderTest
from tests.contracts.rabbitmq_under_test import RabbitMQUnderTest
from tests.contracts.stage import Remembering, dead_letters, declared, line, order, parcel, send, working
from tests.stories.moor.moor_process import moor
from tests.stories.moor.test_moor_dashboard import SCRIPT, a_cloud

pytestmark = pytest.mark.asyncio

Served = UnixUnderTest | RabbitMQUnderTest


@pytest_asyncio.fixture(params=["unix", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
async def served(request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    under_test = await (UnixUnderTest if request.param == "unix" else RabbitMQUnderTest).start()
    yield under_test
    await under_test.close()


def reader_of(*urls: str) -> LetterReader:
    api, *cells = urls
    addresses = Addresses(bus_url=api, cell_bus_urls={f"c{at}": url for at, url in enumerate(cells)})
    return LetterReader(lambda: deployments_of(addresses, addresses.cell_bus_urls))


async def depth(served: Served) -> int:
    connection = await served.broker().connect()
    try:
        return await connection.depth(DEAD_QUEUE)
    finally:
        await connection.close()


async def test_readers_at_one_time_all_see_the_letters_and_the_letters_stay(served: Served) -> None:
    broker = await declared(served)
    began = datetime.now(UTC)

    def refuse(_: int) -> None:
        raise AssertionError("a bug that the next release mends")

    async with working(broker, Remembering(refuse)):
        await send(broker, parcel(line(order(1)), b"{broken"))
        await dead_letters(broker, 2)
    reader = reader_of(served.url())

    seen = []
    for _ in range(3):
        reader.forget()
        seen = await asyncio.gather(*(reader.read() for _ in range(5)))
        assert [len(each[0].letters) for each in seen] == [2] * 5
    assert await depth(served) == 2
    by_type = {letter["type"]: letter for letter in seen[0][0].letters}
    release = by_type["release"]
    assert (release["queue"], release["attempts"], release["broker"]) == ("placement.work", 19, "api")
    assert "a bug that the next release mends" in release["reason"]
    assert release["buried_at"] is not None
    assert began <= release["buried_at"] <= datetime.now(UTC)
    assert by_type["?"]["bytes"] == len(b"{broken")
    assert await reader.letter("api", release["handle"]) == release
    assert await reader.letter("nowhere", release["handle"]) is None


async def test_of_many_and_large_letters_the_oldest_are_read_and_shortened() -> None:
    served = await UnixUnderTest.start()
    try:
        broker = await declared(served)
        body = b'{"name": "' + b"x" * 100_000 + b'", "password": "hush"}'
        await send(broker, *(Parcel(DEAD, f"q{at}", body) for at in range(LETTERS_MAX + 5)))

        (found,) = await reader_of(served.url()).read()

        assert (len(found.letters), found.count) == (LETTERS_MAX, LETTERS_MAX + 5)
        assert found.letters[0]["queue"] == "q0"
        assert {(len(each["body"]), each["is_cut"], each["bytes"]) for each in found.letters} == {
            (BODY_SHOWN_MAX, True, len(body))
        }
        assert await depth(served) == LETTERS_MAX + 5
    finally:
        await served.close()


async def test_a_broker_that_is_away_is_named_and_the_others_are_read() -> None:
    served = await UnixUnderTest.start()
    try:
        broker = await declared(served)
        await send(broker, Parcel(DEAD, "placement.work", b"{}"))

        here, away = await reader_of(served.url(), "unix:///nowhere/bus.sock").read()

        assert (len(here.letters), here.trouble) == (1, "")
        assert (away.broker, away.letters) == ("c0", ())
        assert "nowhere" in away.trouble
    finally:
        await served.close()


async def test_the_pages_escape_what_strangers_sent_and_hide_secrets() -> None:
    async with a_cloud() as (environment, url, _), httpx.AsyncClient(base_url=url, timeout=30) as client:
        assert "No dead letters" in (await client.get("/dead")).text
        odd = Parcel(
            DEAD,
            SCRIPT,
            b'{"user_data": "hush", "name": "' + SCRIPT.encode() + b'"}',
            headers={message.REASON: SCRIPT, message.SENDER: SCRIPT, message.BURIED_AT: "no time"},
        )
        await send(broker_at(f"unix://{environment['XDG_STATE_HOME']}/moorage/bus.sock"), odd, odd)

        async with asyncio.timeout(30):
            while "/dead/api/" not in (listed := (await client.get("/dead")).text):
                await asyncio.sleep(0.1)
        assert SCRIPT not in listed
        handle = listed.partition("/dead/api/")[2].partition('"')[0]
        letter = (await client.get(f"/dead/api/{handle}")).text
        assert "&lt;script&gt;" in letter
        assert (SCRIPT in letter, "hush" in letter) == (False, False)
        for path in (f"/dead/none/{handle}", "/dead/api/none", "/dead/api/%3Cscript%3E"):
            gone = await client.get(path)
            assert (gone.status_code, "may have been replayed or dropped" in gone.text) == (404, True)

        listed = (await moor("dead", "list", "-o", "json", **environment)).out
        assert listed.count('"handle"') == 2
