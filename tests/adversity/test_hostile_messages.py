"""Every type of message comes in hostile forms to a whole cloud. Each is answered or buried, both with a reason; no worker
fails; and the next instance is built.
"""

import asyncio
import itertools
import logging
import random
import traceback
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from operator import not_
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import msgspec
import pytest
import pytest_asyncio
from msgspec import Raw, structs

from bus.addresses import broker_at
from bus.broker import Connection, Receipt
from bus.codec import CODEC, known_messages
from bus.memory import MemoryBroker
from bus.message import PLAIN, Envelope, Kind, Message, Parcel, type_of
from bus.messages import ALL
from bus.messages.build import (
    BuildAccepted,
    BuildInstance,
    BuildRejected,
    InstanceState,
)
from bus.messages.placement import ProvidersChanged
from bus.queues import DEAD_QUEUE, Objects, QueueKind, answers_queue, in_cell
from bus.topology import QUEUES, destination_of
from bus.workers.connections import Station
from bus.workers.dead_letters import open_dead_letters
from engine.flavors import Flavor, InstanceId, RequestId
from engine.hosts import NODE, HostState
from kit.errors import Failure
from moor.client.bus_client import answer_of, hosts_of, station_on, until_choosable
from moor.clouds.cloud import BareMetalPlan, CloudPlan, RunningCloud, cells_of_groups, cloud
from tests.asking import until_state
from tests.contracts.small_world import publish
from tests.contracts.stage import SETTINGS
from tests.json_places import Path, places_in, with_replaced
from tests.stories.moves.books_stage import CELLS, SIZE, TUNED
from tests.stories.real_servers import real_servers
from tests.unit.examples import EXAMPLES
from tests.unit.examples.values import CONSUMER, REQUEST, ROOT
from tests.waiting import PATIENCE_S, until

DEEP = 1_200
MANY = 3_000

_MOMENTS = ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59-23:59")
_TEXTS = (
    *("", " ", "-", "a.b.#", "\u00c4\u00d6\u00fc MiXed \U0001f4a5", "\x1b[2J\x07", "a\0b", "x" * MANY),
    *("HOST-1", "00000000-0000-4000-8000-0000000000FF", *_MOMENTS),
)
_NUMBERS = (-1, 0, 1, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63, 10**40, 1.5)
_OTHERS: tuple[object, ...] = (
    None,
    True,
    [],
    [[]],
    {},
    {"": ""},
    Raw(b"1e400"),
    Raw(b"[" * DEEP + b"]" * DEEP),
)


class Line(msgspec.Struct, frozen=True):
    """A hostile message and the id in its envelope."""

    id: str
    body: bytes


def hostile_lines(example: Message, names: Mapping[str, str]) -> list[Line]:
    """The first one is the good message. `names` replaces names and ids of the example, so that it is about what exists; each
    of them also stands where another one is expected.
    """
    text = msgspec.json.encode(example).decode()
    for old, new in names.items():
        text = text.replace(f'"{old}"', f'"{new}"')
    message = msgspec.json.decode(text)
    # Each position gets one value of another type, by turns.
    others = itertools.cycle(_OTHERS)
    made = [message]
    for path, value in places_in(message):
        if path == ("type",):
            continue
        odd = (next(others), *_odd_of_its_type(value, names.values()))
        made += [with_replaced(message, path, each) for each in odd]
        if path:
            made.append(_without(message, path))
    return [_line(each, number) for number, each in enumerate(made)]


def _line(message: object, number: int) -> Line:
    id_ = f"hostile-{number}"
    return Line(id_, msgspec.json.encode(Envelope(message=message, id=id_)))


def _odd_of_its_type(value: object, names: Iterable[str]) -> Iterator[object]:
    """Values at the limits of its range, and beyond."""
    match value:
        case str():
            yield from (0, *_TEXTS, *names)
        case bool():
            yield not value
        case int() | float():
            yield from ("1", *_NUMBERS)
        case list() if value:
            yield from (value * 2, value * MANY, value[::-1])
        case dict() if value:
            key, inner = next(iter(value.items()))
            yield value | {"no_such_field": 1}
            yield value | {"\u00e4 \0": inner}
            yield value | {f"{key}{number}": inner for number in range(MANY)}


def _without(value: Any, path: Path) -> Any:
    changed = value.copy()
    if len(path) == 1:
        del changed[path[0]]
    else:
        changed[path[0]] = _without(value[path[0]], path[1:])
    return changed


pytestmark = pytest.mark.asyncio(loop_scope="module")

PROJECT = "p"
# test_hostile_parcels.py has hostile answers. `ProvidersChanged` is placement's own word about its books, which schedulers
# must believe: the broker lets nobody else say it.
EXEMPT = {ProvidersChanged}
SENT = [kind for kind in ALL if kind.ROUTE.kind is not Kind.ANSWER and kind not in EXEMPT]
# A hostile order may be a good one, which sets a host down or takes its disks away: there are hosts to spare.
HOSTS_PER_CELL = 12
WITHOUT_POOLS = structs.replace(TUNED, compute=structs.replace(TUNED.compute, pools=()))
# The real servers need a second for a hundred.
LINES_ON_SERVERS_MAX = 60
BY_TYPE = {type(example): example for example in EXAMPLES}
WORKED_OFF = [
    in_cell(queue.name, cell)
    for queue in QUEUES
    for cell in CELLS
    if queue.kind in (QueueKind.WORK, QueueKind.QUESTIONS)
]


class Surprises(logging.Handler):
    """Failures that a worker has logged, and that are none of those in kit/errors.py."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        problem = record.exc_info[1] if record.exc_info else None
        if problem is not None and not isinstance(problem, Failure):
            self.seen.append("".join(traceback.format_exception(problem))[-1500:])


class Target:
    """A whole cloud with an active instance, and a client that sends hostile messages about it."""

    def __init__(
        self,
        connection: Connection,
        client: Station,
        cloud: RunningCloud,
        kind: str,
    ) -> None:
        self.connection = connection
        self.client = client
        self.cloud = cloud
        self.is_real = kind == "real"
        self.answers: dict[str, Message] = {}
        self.reply_to = answers_queue("anyone", "hostile").name
        self.surprises = Surprises()
        self._booted = 0

    async def boot(self) -> InstanceState:
        self._booted += 1
        instance = InstanceId(UUID(int=(1 << 96) + self._booted))
        build = BuildInstance(
            request_id=RequestId(UUID(int=(2 << 96) + self._booted)),
            instance_ids=(instance,),
            flavor=Flavor(vcpus=1, ram_mb=64, root_gb=1),
            project=PROJECT,
            deadline_s=60,
        )
        await answer_of(self.client, build, BuildAccepted)
        return await until_state(self.client, instance, "active", project=PROJECT)

    async def send(self, example: Message, lines: list[Line]) -> None:
        destination = destination_of(example)
        parcels = [
            Parcel(
                destination.exchange,
                destination.routing_key,
                line.body,
                content_type=PLAIN,
                reply_to=self.reply_to,
            )
            for line in lines
        ]
        assert {*await publish(self.connection, *parcels)} == {Receipt.CONFIRMED}

    async def take_answers(self) -> None:
        consuming = await self.connection.open_consuming(self.reply_to, prefetch=1000)
        while True:
            for delivery in await consuming.receive():
                self.answers |= {each.cause: each.message for each in known_messages(delivery.parcel, CODEC)}
                await consuming.acknowledge(delivery.tag)

    async def buried(self) -> set[bytes]:
        """Look at the dead letters, and drop them."""
        bodies: set[bytes] = set()
        while await self.connection.depth(DEAD_QUEUE):
            async with open_dead_letters(self.connection, letters_max=1000) as opened:
                assert all(letter.reason for letter in opened.letters.values())
                bodies |= {letter.parcel.body for letter in opened.letters.values()}
                await opened.drop([*opened.letters])
        return bodies

    async def until_worked_off(self) -> None:
        async def depths() -> list[int]:
            return [await self.connection.depth(queue) for queue in WORKED_OFF]

        await until(depths, "all queues are worked off", lambda found: not any(found))


@asynccontextmanager
async def a_target(kind: str) -> AsyncIterator[Target]:
    plan = CloudPlan(
        cells=dict.fromkeys(CELLS, HOSTS_PER_CELL),
        host_size=SIZE,
        metal=BareMetalPlan(nodes=2, cells=cells_of_groups(CELLS)),
        settings=WITHOUT_POOLS,
    )
    async with AsyncExitStack() as stack:
        if kind == "real":
            bus_url, database_url = await stack.enter_async_context(real_servers())
            broker = broker_at(bus_url)
        else:
            broker = MemoryBroker().as_user()
            directory = stack.enter_context(TemporaryDirectory())
            database_url = f"sqlite+aiosqlite:///{directory}/moor.db"
        running_cloud = await stack.enter_async_context(cloud(plan, broker, database_url))
        client, _ = await stack.enter_async_context(station_on(broker, "client", SETTINGS))
        await asyncio.wait_for(
            until_choosable(client, lambda up: len(up) >= len(CELLS) * HOSTS_PER_CELL), PATIENCE_S
        )
        connection = await broker.connect()
        stack.push_async_callback(connection.close)
        target = Target(connection, client, running_cloud, kind)
        await connection.declare(Objects(queues=(answers_queue("anyone", "hostile"),)))
        taking = asyncio.create_task(target.take_answers())
        stack.callback(taking.cancel)
        logging.getLogger().addHandler(target.surprises)
        stack.callback(logging.getLogger().removeHandler, target.surprises)
        yield target


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=["embedded", pytest.param("real", marks=[pytest.mark.rabbitmq, pytest.mark.postgresql])],
)
async def target(request: pytest.FixtureRequest) -> AsyncIterator[Target]:
    async with a_target(request.param) as target:
        yield target


def names_for(good: InstanceState, hosts: list[HostState]) -> dict[str, str]:
    """The example's names, and what they stand for in this cloud."""
    # Hostile reports may have named others like it.
    (host, *_) = [each for each in hosts if each.name == good.host]
    (elsewhere, *_) = [each for each in hosts if each.cell != good.cell and each.kind != NODE]
    return {
        str(CONSUMER): str(good.id),
        str(REQUEST): str(good.request_id),
        str(ROOT): str(host.id),
        "host-1": host.name,
        "host-2": elsewhere.name,
        "c1": good.cell,
        "c2": elsewhere.cell,
    }


@pytest.mark.parametrize("kind", SENT, ids=type_of)
async def test_hostile_messages_are_answered_or_buried_and_the_next_instance_is_built(
    target: Target, kind: type[Message]
) -> None:
    good = await target.boot()
    # A type without an example, and so without hostile forms, fails here.
    good_line, *lines = hostile_lines(BY_TYPE[kind], names_for(good, await hosts_of(target.client)))
    if target.is_real and len(lines) > LINES_ON_SERVERS_MAX:
        lines = random.Random(type_of(kind)).sample(lines, LINES_ON_SERVERS_MAX)
    read = CODEC.decode(good_line.body)
    assert isinstance(read, Envelope)
    target.answers.clear()

    await target.send(read.message, lines)

    if kind.ROUTE.answer:
        buried: set[bytes] = set()

        async def left() -> list[str]:
            buried.update(await target.buried())
            return [each.id for each in lines if each.body not in buried and each.id not in target.answers]

        await until(left, f"all hostile forms of {type_of(kind)} are answered or buried", not_)
        rejections = [each for each in target.answers.values() if isinstance(each, BuildRejected)]
        assert all(each.field and each.reason for each in rejections)
    await target.until_worked_off()
    assert (await target.boot()).state == "active"
    await target.buried()
    assert target.surprises.seen == []
    assert not target.cloud.task.done()
    assert await target.cloud.placement.audit() == ()
