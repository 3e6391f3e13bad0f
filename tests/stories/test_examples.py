"""The programs of docs/examples and docs/bus.md, each run as a person runs it, with the rights of their users; the cloud's books say whether it did
what it printed.
"""

import asyncio
import json
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from msgspec import Struct

from bus.messages.build import InstanceState
from bus.messages.projects import SetApplication
from bus.topology import objects_of_application, user_of
from engine.flavors import RequestId, instance_id_of
from engine.inventories import ProviderId
from moor.client import Client, Flavor, SyncClient
from tests.adversity.real_cloud import RealCloud, real_cloud
from tests.contracts.broker_under_test import ADMIN, SHOP
from tests.contracts.rabbitmq_under_test import RabbitMQUnderTest
from tests.contracts.small_world import connected
from tests.contracts.stage import dead_letters
from tests.narrowing import must_be, present
from tests.stories.metal.test_nodes import nodes_setup
from tests.stories.moor.moor_process import up
from tests.waiting import PATIENCE_S, until

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
TWENTY = sorted(f"web-{number}" for number in range(1, 21))
NODE = ProviderId(UUID(int=77))


class Ran(Struct, frozen=True):
    code: int
    lines: list[str]
    err: str


async def start_example(program: str, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLES / program),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"PATH": os.environ["PATH"]},
    )


async def run_example(program: str, *arguments: str) -> Ran:
    process = await start_example(program, *arguments)
    async with asyncio.timeout(120):
        out, err = await process.communicate()
    return Ran(present(process.returncode), out.decode().splitlines(), err.decode())


@pytest.mark.timeout(240)
def test_every_example_is_in_the_list_and_is_run_here() -> None:
    page = (EXAMPLES / "README.md").read_text()
    here = Path(__file__).read_text()
    programs = [each.name for each in EXAMPLES.glob("*.py")]
    assert len(programs) == 7
    assert [name for name in programs if f"[{name}]({name})" not in page] == []
    assert [name for name in programs if f'("{name}"' not in here] == []


@pytest.mark.timeout(240)
async def test_the_engine_alone_prints_what_its_page_says_and_loads_no_other_room() -> None:
    page = (EXAMPLES.parent / "engine.md").read_text()

    ran = await run_example("engine_alone.py")

    assert (ran.code, ran.err) == (0, "")
    assert ran.lines == page.split("```")[1].split("\n")[1:-1]
    rooms = [each.name for each in EXAMPLES.parents[1].iterdir() if (each / "py.typed").exists()]
    imported = re.findall(r"^from (\w+)", (EXAMPLES / "engine_alone.py").read_text(), re.MULTILINE)
    assert {*imported} & {*rooms} == {"engine"}


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


@pytest.mark.timeout(240)
async def test_the_programs_with_the_client_say_what_was_built_and_why_the_rest_was_not(
    home: Path,
) -> None:
    async with up(home, "--cells", CELL, "--hosts", "6") as cloud:
        url = cloud.url
        async with Client(url) as client:
            # One more of them fits on each host.
            await (await client.boot(Flavor(vcpus=127), count=6)).until_done()
            ran = await run_example("twenty_boots_client.py", url)
            assert (ran.code, ran.lines[-1]) == (1, "6 of 20 are active")
            assert sum("removed by capacity" in line for line in ran.lines) == 14
            states = Counter(each.state for each in await instances_at(url) if each.name in TWENTY)
            assert states == {"active": 6, "error": 14}
            await (await client.delete(*(each.id for each in await instances_at(url)))).until_ended()

        ran = await run_example("twenty_boots_client.py", url)
        check_twenty(ran, [each for each in await instances_at(url) if each.state == "active"])
        await asyncio.to_thread(without_asyncio, url)

        kept = await run_example("load_test.py", url, "--boots", "60", "--at-once", "20", "--keep")
        assert kept.code == 0, kept
        assert re.fullmatch(r"60 active in [\d.]+ s: \d+ boots/s", kept.lines[0])
        assert [line.split()[0] for line in kept.lines[1:]] == ["ms", "accepted", "placed", "active"]
        deleted = await run_example("load_test.py", url, "--boots", "40")
        assert (deleted.code, deleted.lines[-1]) == (0, "40 deleted")
        assert Counter(each.state for each in await instances_at(url))["active"] == 20 + 60
        await cloud.says(0, "", "audit", "--settle", "0")


def without_asyncio(url: str) -> None:
    with SyncClient(url) as moorage:
        request = moorage.boot(Flavor(vcpus=1), name="sync")
        assert [each.state for each in request.follow()][-1] == "active"
        (instance,) = request.until_done()
        (moved,) = moorage.migrate(instance.id).until_done()
        assert (moved.state, moved.host != instance.host) == ("moved", True)
        assert moorage.revert(instance.id).until_done()[0].host == instance.host
        assert moorage.delete(instance.id).until_done()[0].state == "deleted"
        assert [each.id for each in moorage.list_instances(name="sync")] == [instance.id]


async def shop_is_fed(setup: RealCloud) -> None:
    """Register the application, and wait until the schedulers publish its feed."""
    await setup.under_test.add_users((SHOP.user,), (CELL,))
    await setup.under_test.declare(objects_of_application(SHOP))
    await setup.client.ask(SetApplication(name="shop", projects=SHOP.projects))
    async with listening(setup, SHOP.user, "shop") as heard:

        async def is_fed() -> bool:
            wrong = {"type": "build.request", "project": "shop", "request_id": str(uuid4())}
            assert (await ask(setup, wrong, SHOP.user))["type"] == "build.rejected"
            return bool(heard)

        await until(is_fed, "the schedulers know of it")


@pytest.mark.timeout(240)
@pytest.mark.rabbitmq
@pytest.mark.postgresql
async def test_twenty_boots_on_servers_with_aio_pika_alone_and_with_the_client() -> None:
    async with a_cloud() as setup:
        as_admin, as_shop = setup.under_test.url(ADMIN.user), setup.under_test.url(SHOP.user)
        ran = await run_example("twenty_boots_aio_pika.py", as_admin)
        check_twenty(ran, await setup.instances())

        await shop_is_fed(setup)
        ran = await run_example("twenty_boots_aio_pika.py", as_shop, "shop")
        check_twenty(ran, [each for each in await setup.instances() if each.project == "shop"])
        known = {each.id for each in await setup.instances()}
        ran = await run_example("twenty_boots_client.py", as_shop, "shop")
        check_twenty(ran, [each for each in await setup.instances() if each.id not in known])

        foreign = await run_example("twenty_boots_client.py", as_shop, "bank")
        assert foreign.code == 1
        assert sum(" NotAllowed the broker refused" in line for line in foreign.lines) == 20
        assert len(await setup.instances()) == 60


@pytest.mark.timeout(240)
@pytest.mark.rabbitmq
@pytest.mark.postgresql
@pytest.mark.parametrize(
    ("program", "files"), [("own_compute.py", ()), ("own_compute_pika.py", ("attempts.db",))]
)
async def test_a_compute_of_the_bus_alone_has_the_rights_of_computes_and_obeys_every_order_once(
    program: str, files: tuple[str, ...], tmp_path: Path
) -> None:
    async with real_cloud(CELL) as setup:
        await setup.start("placement-1", "scheduler-1", f"conductor-{CELL}")
        url = setup.under_test.url(user_of("compute", CELL))
        compute = await start_example(
            program, url, CELL, *(str(tmp_path / each) for each in files), "shed-1", "shed-2"
        )
        await setup.until_up(2)
        async with Client(setup.under_test.url(ADMIN.user)) as client:
            request = await client.boot(Flavor(vcpus=1, ram_mb=512), count=6, name="web")
            instances = await request.until_done()
            moved = await (await client.live_migrate(instances[0].id)).until_done()
            assert moved[0].host != instances[0].host
            await (await client.confirm(instances[0].id)).until_done()

            async with connected(setup.under_test.broker(user_of("operator"))) as connection:
                assert await connection.depth("dead") == 0
            for each in instances:
                await (await client.delete(each.id)).until_ended()
        await setup.until_nothing_is_held()
        compute.send_signal(signal.SIGINT)
        out, err = await compute.communicate()
        assert "cannot read" not in err.decode()
        said = Counter(line.partition(" ")[0] for line in out.decode().splitlines())
        assert (said["spawn"], said["receive"]) == (6, 1), said
        assert said["destroy"] >= 7


@pytest.mark.timeout(240)
@pytest.mark.rabbitmq
@pytest.mark.postgresql
async def test_an_event_as_ironic_sends_it_changes_the_books() -> None:
    async with nodes_setup("rabbitmq", "postgresql") as setup, setup.daemon("d1"):
        broker = must_be(RabbitMQUnderTest, setup.cloud.brokers.api)
        gold = (broker.url(), str(NODE), "--resource-class", "gold", "--trait", "CUSTOM_FAST")

        told = await run_example("ironic_event.py", *gold)
        assert (told.code, told.lines) == (0, [f"told: {NODE} is available"]), told
        await setup.until_stocks(NODE, {"CUSTOM_GOLD": 0})
        assert "CUSTOM_FAST" in (await setup.cloud.providers())[str(NODE)].traits

        await run_example("ironic_event.py", *gold, "--maintenance")
        await setup.until_stocks(NODE, {"CUSTOM_GOLD": 1})

        wrong = await run_example("ironic_event.py", broker.url(), "node-7", "--resource-class", "gold")
        assert (wrong.code, "argument NODE: invalid UUID value: 'node-7'" in wrong.err) == (2, True)


PAGE = Path(__file__).parents[2] / "docs" / "bus.md"


def programs_of(page: Path) -> dict[str, str]:
    """The programs that a page has, by their names."""
    found = re.findall(r"```python\n(# (\w+\.py).*?)```", page.read_text(), re.DOTALL)
    return {name: text for text, name in found}


SMALL = {"name": "small", "vcpus": 1, "ram_mb": 1024, "root_gb": 1}
ID = str(UUID(int=77))
CELL = "harbour"


@asynccontextmanager
async def a_cloud(**sizes: str) -> AsyncIterator[RealCloud]:
    """Two hosts in one cell, and a user for each role."""
    async with real_cloud(CELL, has_nodes=False, HOSTS_PER_CELL="2", **sizes) as setup:
        await setup.start("placement-1", "scheduler-1", f"conductor-{CELL}", f"compute-{CELL}")
        await setup.until_up(2)
        yield setup


async def start(
    program: str, url: str, *arguments: str, project: str = "", page: Path = PAGE, **more: str
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        programs_of(page)[program],
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={"PATH": os.environ["PATH"], "MOOR_BUS_URL": url, "MOOR_PROJECT": project, **more},
    )


async def run(program: str, url: str, *arguments: str, stdin: object = None, **more: Any) -> str:
    """Run a program of the page to its end; returns what it printed."""
    process = await start(program, url, *arguments, **more)
    async with asyncio.timeout(PATIENCE_S):
        out, _ = await process.communicate(json.dumps(stdin).encode())
    assert process.returncode == 0
    return out.decode()


async def ask(setup: RealCloud, message: dict[str, Any], user: str = ADMIN.user, **more: str) -> Any:
    return json.loads(await run("ask.py", setup.under_test.url(user), stdin=message, **more))


@asynccontextmanager
async def listening(
    setup: RealCloud, user: str = ADMIN.user, project: str = ""
) -> AsyncIterator[list[dict[str, Any]]]:
    """The output of the listening program of the page."""
    process = await start("listen.py", setup.under_test.url(user), project=project)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"listening\n"
    heard: list[dict[str, Any]] = []

    async def hear(out: asyncio.StreamReader) -> None:
        while line := await out.readline():
            heard.append(json.loads(line))

    hearing = asyncio.create_task(hear(process.stdout))
    try:
        yield heard
    finally:
        process.kill()
        await process.wait()
        await hearing


@pytest.mark.rabbitmq
@pytest.mark.postgresql
@pytest.mark.timeout(240)
async def test_an_application_boots_asks_deletes_and_hears_of_its_project() -> None:
    async with a_cloud() as setup:
        await shop_is_fed(setup)
        url = setup.under_test.url(SHOP.user)
        async with listening(setup, SHOP.user, "shop") as heard:
            other = (await run("boot.py", setup.under_test.url(ADMIN.user), project="p2")).strip()
            request = (await run("boot.py", url, project="shop", MOOR_EXCHANGE=SHOP.exchange)).strip()
            instance = str(instance_id_of(RequestId(UUID(request)), 0))
            hidden = str(instance_id_of(RequestId(UUID(other)), 0))

            def types() -> list[str]:
                return [each["type"] for each in heard if each.get("request_id", request) == request]

            await until(lambda: "instance.active" in types(), "heard as active")
            question = {"type": "instance.query", "instances": [instance, hidden], "project": "shop"}
            found = await ask(setup, question, SHOP.user, MOOR_EXCHANGE=SHOP.exchange)
            assert [each["id"] for each in found["instances"]] == [instance]
            await ask(setup, {"type": "instance.delete", "instance": instance, "project": "shop"}, SHOP.user)
            await until(lambda: "instance.deleted" in types(), "heard as deleted")

        # An event may come twice.
        assert [each for each in dict.fromkeys(types()) if each != "build.rejected"] == [
            *("build.accepted", "instance.placed", "instance.active", "instance.deleted")
        ]
        assert {each.get("project") or each["instance"]["project"] for each in heard} == {"shop"}


@pytest.mark.rabbitmq
@pytest.mark.postgresql
@pytest.mark.timeout(240)
@pytest.mark.parametrize("arguments", [("--envelope",), ()], ids=["enveloped", "plain"])
async def test_the_program_moves_a_node_from_maintenance_to_schedulable(arguments: tuple[str, ...]) -> None:
    """With another AMQP library, and without an Ironic."""
    node = {"uuid": str(NODE), "provision_state": "available", "resource_class": "gold"}
    async with nodes_setup("rabbitmq", "postgresql") as setup, setup.daemon("d1"):
        broker = must_be(RabbitMQUnderTest, setup.cloud.brokers.api)
        await run("node.py", broker.url(), *arguments, stdin={**node, "maintenance": True})
        await setup.until_stocks(NODE, {"CUSTOM_GOLD": 1})
        await run("node.py", broker.url(), *arguments, stdin=node)
        await setup.until_stocks(NODE, {"CUSTOM_GOLD": 0})


NONSENSE: list[tuple[dict[str, Any], str, str]] = [
    ({"flavor": SMALL}, "request_id", ""),
    ({"request_id": ID}, "flavor", ""),
    ({"request_id": ID, "flavor": {**SMALL, "vcpus": -4}}, "flavor.vcpus", "-4"),
    (
        {"request_id": ID, "flavor": {**SMALL, "extra_specs": {"resources:VGPUS": "1"}}},
        "flavor.extra_specs.resources:VGPUS",
        "VGPUS",
    ),
    ({"request_id": ID, "falvor": SMALL}, "falvor", json.dumps(SMALL, separators=(",", ":"))),
    ({"request_id": ID, "flavor": {**SMALL, "vcpu": 2}}, "flavor.vcpu", "2"),
    ({"request_id": ID, "flavor": {**SMALL, "vcpus": "two"}}, "flavor.vcpus", "two"),
    ({"request_id": "my-request", "flavor": SMALL}, "request_id", "my-request"),
    ({"request_id": ID, "flavor": SMALL, "count": 0}, "count", "0"),
]


@pytest.mark.rabbitmq
@pytest.mark.postgresql
@pytest.mark.timeout(240)
async def test_one_plain_message_becomes_an_instance_and_what_is_invalid_is_rejected_and_leaves_nothing() -> (
    None
):
    async with a_cloud() as setup:
        url = setup.under_test.url(ADMIN.user)
        async with listening(setup) as heard:
            request = (await run("boot.py", url)).strip()
            active = await setup.until_state(instance_id_of(RequestId(UUID(request)), 0), "active")
            assert (active.name, active.cell) == ("web-1", CELL)
            kinds = ["build.accepted", "instance.placed", "instance.active"]
            await until(
                lambda: [message["type"] for message in heard], "heard as active", lambda told: told == kinds
            )
            assert heard[-1]["instance"]["host"] == active.host

        async with listening(setup) as heard:
            for fields, field, value in NONSENSE:
                answer = await ask(setup, {"type": "build.request", **fields})
                assert answer.pop("reason")
                known_id = fields.get("request_id") if fields.get("request_id") == ID else None
                assert answer == {
                    "type": "build.rejected",
                    "request_id": known_id,
                    "field": field,
                    "value": value,
                }
            await until(lambda: len(heard) == len(NONSENSE), "each of them is heard by whoever listens")
            assert [(message["field"], message["value"]) for message in heard] == [
                case[1:] for case in NONSENSE
            ]
            assert len(await setup.rows("SELECT 1 FROM requested_instances")) == 1
            async with connected(setup.under_test.broker()) as connection:
                assert await connection.depth("dead") == 0

        # Bytes that are no message are kept as a dead letter.
        async with listening(setup) as heard:
            broken = programs_of(PAGE)["boot.py"].replace(
                'json.dumps({"message": request})', '"vcpus=1, please"'
            )
            environment = {"PATH": os.environ["PATH"], "MOOR_BUS_URL": url}
            process = await asyncio.create_subprocess_exec(sys.executable, "-c", broken, env=environment)
            assert await process.wait() == 0
            await until(lambda: len(heard) == 1, "the rejection is heard")
            assert (heard[0]["type"], heard[0]["field"]) == ("build.rejected", "message")
            (letter,) = await dead_letters(setup.under_test.broker(), 1)
            assert (letter.parcel.body, letter.reason) == (b"vcpus=1, please", heard[0]["reason"])
