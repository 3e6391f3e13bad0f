"""The programs of docs/examples, each run as a person runs it; the cloud's books say whether it did what it printed."""

import asyncio
import os
import re
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest
from msgspec import Struct

from bus.messages.build import InstanceState
from bus.topology import user_of
from engine.inventories import ProviderId
from moor.client import Client, Flavor
from tests.adversity.real_cloud import real_cloud
from tests.contracts.broker_under_test import ADMIN, SHOP
from tests.contracts.rabbitmq_under_test import RabbitMQUnderTest
from tests.stories.metal.test_nodes import nodes_setup
from tests.stories.moor.moor_process import moor, started
from tests.stories.test_plain_amqp import CELL, a_cloud, shop_is_fed

pytestmark = pytest.mark.timeout(240)

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
TWENTY = sorted(f"web-{number}" for number in range(1, 21))
NODE = ProviderId(UUID(int=77))


class Ran(Struct, frozen=True):
    code: int
    lines: list[str]
    err: str


async def start(program: str, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLES / program),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"PATH": os.environ["PATH"]},
    )


async def run(program: str, *arguments: str) -> Ran:
    process = await start(program, *arguments)
    async with asyncio.timeout(120):
        out, err = await process.communicate()
    assert process.returncode is not None
    return Ran(process.returncode, out.decode().splitlines(), err.decode())


def test_every_example_is_in_the_list_and_is_run_here() -> None:
    page = (EXAMPLES / "README.md").read_text()
    here = Path(__file__).read_text()
    programs = [each.name for each in EXAMPLES.glob("*.py")]
    assert len(programs) == 7
    assert [name for name in programs if f"[{name}]({name})" not in page] == []
    assert [name for name in programs if f'("{name}"' not in here] == []


@pytest.mark.asyncio
async def test_the_engine_alone_prints_what_its_page_says_and_loads_no_other_room() -> None:
    page = (EXAMPLES.parent / "engine.md").read_text()

    ran = await run("engine_alone.py")

    assert (ran.code, ran.err) == (0, "")
    assert ran.lines == page.split("```")[1].split("\n")[1:-1]
    rooms = [each.name for each in EXAMPLES.parents[1].iterdir() if (each / "py.typed").exists()]
    imported = re.findall(r"^from (\w+)", (EXAMPLES / "engine_alone.py").read_text(), re.MULTILINE)
    assert {*imported} & {*rooms} == {"engine"}


@asynccontextmanager
async def up() -> AsyncIterator[tuple[str, str]]:
    """The URL and the home of a `moor up`."""
    with tempfile.TemporaryDirectory(prefix="moor-") as home:
        async with started("up", "--cells", CELL, "--hosts", "6", XDG_STATE_HOME=home) as process:
            await process.until_printed("ready")
            yield f"unix://{home}/moorage/bus.sock", home


async def instances_at(url: str) -> list[InstanceState]:
    async with Client(url) as client:
        return [each async for each in client.list_instances()]


def check_twenty(ran: Ran, instances: list[InstanceState]) -> None:
    """The program has printed what the books have: twenty instances, each active."""
    assert ran.code == 0, ran
    assert ran.lines[-1] == "20 of 20 are active"
    assert sorted(ran.lines[:-1]) == sorted(f"{e.name} {e.id} {e.state} {e.host}" for e in instances)
    assert sorted(each.name for each in instances) == TWENTY
    assert Counter(each.state for each in instances) == {"active": 20}


@pytest.mark.asyncio
async def test_twenty_boots_with_the_client() -> None:
    async with up() as (url, home):
        ran = await run("twenty_boots_client.py", url)

        check_twenty(ran, await instances_at(url))
        audited = await moor("audit", "--settle", "0", XDG_STATE_HOME=home)
        assert audited.code == 0, audited.out


@pytest.mark.asyncio
async def test_twenty_boots_with_the_client_where_there_is_room_for_six_say_which_and_why() -> None:
    async with up() as (url, _):
        async with Client(url) as client:
            # One more of them fits on each host.
            filling = await client.boot(Flavor(vcpus=127), count=6)
            await filling.until_done()

        ran = await run("twenty_boots_client.py", url)

        assert (ran.code, ran.lines[-1]) == (1, "6 of 20 are active")
        assert sum("removed by capacity" in line for line in ran.lines) == 14
        states = Counter(each.state for each in await instances_at(url) if each.name in TWENTY)
        assert states == {"active": 6, "error": 14}


@pytest.mark.asyncio
async def test_a_load_test_of_concurrent_boots() -> None:
    async with up() as (url, home):
        kept = await run("load_test.py", url, "--boots", "60", "--at-once", "20", "--keep")
        assert kept.code == 0, kept
        assert re.fullmatch(r"60 active in [\d.]+ s: \d+ boots/s", kept.lines[0])
        assert [line.split()[0] for line in kept.lines[1:]] == ["ms", "accepted", "placed", "active"]
        assert Counter(each.state for each in await instances_at(url)) == {"active": 60}

        deleted = await run("load_test.py", url, "--boots", "40")
        assert (deleted.code, deleted.lines[-1]) == (0, "40 deleted")
        assert Counter(each.state for each in await instances_at(url)) == {"active": 60, "deleted": 40}
        audited = await moor("audit", "--settle", "0", XDG_STATE_HOME=home)
        assert audited.code == 0, audited.out


@pytest.mark.rabbitmq
@pytest.mark.postgresql
@pytest.mark.asyncio
async def test_twenty_boots_on_servers_with_aio_pika_alone_and_with_the_client() -> None:
    async with a_cloud() as setup:
        as_admin, as_shop = setup.under_test.url(ADMIN.user), setup.under_test.url(SHOP.user)
        ran = await run("twenty_boots_aio_pika.py", as_admin)
        check_twenty(ran, await setup.instances())

        await shop_is_fed(setup)
        ran = await run("twenty_boots_aio_pika.py", as_shop, "shop")
        check_twenty(ran, [each for each in await setup.instances() if each.project == "shop"])
        known = {each.id for each in await setup.instances()}
        ran = await run("twenty_boots_client.py", as_shop, "shop")
        check_twenty(ran, [each for each in await setup.instances() if each.id not in known])

        foreign = await run("twenty_boots_client.py", as_shop, "bank")
        assert foreign.code == 1
        assert sum(" NotAllowed the broker refused" in line for line in foreign.lines) == 20
        assert len(await setup.instances()) == 60


@pytest.mark.rabbitmq
@pytest.mark.postgresql
@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("program", "files"), [("own_compute.py", ()), ("own_compute_pika.py", ("attempts.db",))]
)
async def test_a_compute_of_the_bus_alone_has_the_rights_of_computes_and_obeys_every_order_once(
    program: str, files: tuple[str, ...], tmp_path: Path
) -> None:
    async with real_cloud(CELL) as setup:
        await setup.start("placement-1", "scheduler-1", f"conductor-{CELL}")
        url = setup.under_test.url(user_of("compute", CELL))
        compute = await start(
            program, url, CELL, *(str(tmp_path / each) for each in files), "shed-1", "shed-2"
        )
        await setup.until_up(2)
        async with Client(setup.under_test.url(ADMIN.user)) as client:
            request = await client.boot(Flavor(vcpus=1, ram_mb=512), count=6, name="web")
            instances = await request.until_done()
            moved = await (await client.live_migrate(instances[0].id)).until_done()
            assert moved[0].host != instances[0].host
            await (await client.confirm(instances[0].id)).until_done()

            connection = await setup.under_test.broker(user_of("operator")).connect()
            assert await connection.depth("dead") == 0
            await connection.close()
            for each in instances:
                await (await client.delete(each.id)).until_ended()
        await setup.until_nothing_is_held()
        compute.send_signal(signal.SIGINT)
        out, err = await compute.communicate()
        assert "cannot read" not in err.decode()
        said = Counter(line.partition(" ")[0] for line in out.decode().splitlines())
        assert (said["spawn"], said["receive"]) == (6, 1), said
        assert said["destroy"] >= 7


@pytest.mark.rabbitmq
@pytest.mark.postgresql
@pytest.mark.asyncio
async def test_an_event_as_ironic_sends_it_changes_the_books() -> None:
    async with nodes_setup("rabbitmq", "postgresql") as setup, setup.daemon("d1"):
        broker = setup.cloud.brokers.api
        assert isinstance(broker, RabbitMQUnderTest)
        gold = (broker.url(), str(NODE), "--resource-class", "gold", "--trait", "CUSTOM_FAST")

        told = await run("ironic_event.py", *gold)
        assert (told.code, told.lines) == (0, [f"told: {NODE} is available"]), told
        await setup.until_stocks(NODE, {"CUSTOM_GOLD": 0})
        provider = (await setup.cloud.providers())[str(NODE)]
        assert "CUSTOM_FAST" in provider.traits

        await run("ironic_event.py", *gold, "--maintenance")
        await setup.until_stocks(NODE, {"CUSTOM_GOLD": 1})

        wrong = await run("ironic_event.py", broker.url(), "node-7", "--resource-class", "gold")
        assert (wrong.code, "argument NODE: invalid UUID value: 'node-7'" in wrong.err) == (2, True)
