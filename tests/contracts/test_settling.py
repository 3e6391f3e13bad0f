"""Contract of settling on all brokers: each message is handled, retried or buried by itself, whatever its neighbours do."""

import asyncio
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from operator import not_
from uuid import UUID

import pytest
from msgspec import structs

from bus import message
from bus.broker import Broker
from bus.message import PARCEL_BYTES_MAX, PLAIN, Parcel
from bus.messages.cell import RemoveFromCell
from bus.settings import BusSettings
from bus.topology import (
    DEAD,
    PLACEMENT,
    Limits,
    application_queue,
    objects_of,
    objects_of_application,
    retry_exchange_of,
    user_of,
)
from bus.unreadable import Unreadable
from bus.workers.connections import Station
from bus.workers.consuming import Subscription
from bus.workers.dead_letters import open_dead_letters
from bus.workers.handlers import Received, Said
from bus.workers.set_aside import FailedRows, RowWork
from bus.workers.worker import Worker
from engine.flavors import InstanceId, RequestId
from kit.errors import Poison, Transient, Unavailable
from kit.health import About, Health
from kit.health_server import Metrics
from kit.parts import PartState
from tests.contracts.broker_under_test import SHOP, BrokerUnderTest
from tests.contracts.stage import (
    CELLS,
    SETTINGS,
    WORK,
    Remembering,
    dead_letters,
    declared,
    failing,
    line,
    order,
    parcel,
    send,
    station,
    tried,
    until_empty,
    working,
)
from tests.running import closing, running
from tests.varied import varied
from tests.waiting import until


@pytest.mark.hits(
    "a batch has failed: its messages are handled one by one",
    "a message has failed, and returns to its queue",
)
async def test_one_that_fails_is_tried_again_by_itself(broker: Broker) -> None:
    tries: list[int] = []

    def fail_twice(number: int) -> None:
        if number == 3:
            tries.append(number)
            if (
                len(tries) < 4
            ):  # with its neighbours, then alone in the same worker, and once more from the queue
                raise RuntimeError("not yet")

    memory = Remembering(fail_twice)

    async with working(broker, memory) as worker:
        await send(broker, parcel(*(line(order(n)) for n in range(6))))
        await until(lambda: len(memory.handled) == 6)
        assert worker.intake.put_back == 2

    assert memory.handled == [0, 1, 2, 4, 5, 3]
    await until_empty(broker)


async def test_a_poison_is_buried_with_reason_attempts_and_where(broker: Broker) -> None:
    memory = failing(Poison("asks for minus one host"), 2)

    async with working(broker, memory, name="placement-7"):
        await send(broker, *(tried(line(order(n)), 3) for n in range(4)))
        (letter,) = await dead_letters(broker, 1)
        await until(lambda: len(memory.handled) == 3)

    assert sorted(memory.handled) == [0, 1, 3]
    assert (letter.queue, letter.reason, letter.attempts, letter.where, letter.type) == (
        WORK,
        "asks for minus one host",
        3,
        "placement-7",
        "release",
    )


@pytest.mark.hits("dead letter from %s: %s")
async def test_one_that_always_fails_is_buried_when_its_attempts_are_used_up(broker: Broker) -> None:
    memory = failing(RuntimeError("a bug of ours"), 1)

    async with working(broker, memory, settings=varied(SETTINGS, ATTEMPTS_MAX=3)):
        await send(broker, parcel(line(order(0)), line(order(1))))
        (letter,) = await dead_letters(broker, 1)

    assert memory.handled == [0]
    assert letter.reason.splitlines()[0] == "RuntimeError: a bug of ours; 3 attempts, none is left"
    assert letter.attempts == 2


async def test_one_at_which_two_processes_meet_a_bug_is_given_up_with_its_traceback(broker: Broker) -> None:
    memory = failing(RuntimeError("a bug of ours " + "é" * 500), 1)
    # It ends before its pause does.
    patient = varied(SETTINGS, RETRY_DELAY_MS_FIRST=60_000, RETRY_DELAY_MS_MAX=60_000)
    async with working(broker, memory, name="first", settings=patient) as first:
        await send(broker, parcel(line(order(0)), line(order(1)), line(order(2))))
        await until(lambda: first.intake.put_back > 0, "the first process has failed at it")
        assert not first.intake.buried
    async with working(broker, memory, name="second"):
        (letter,) = await dead_letters(broker, 1)

    assert sorted(memory.handled) == [0, 2]
    assert letter.reason.splitlines()[0].endswith("; two processes failed at it")
    assert "in trouble" in letter.reason
    assert letter.where == "second"
    assert letter.attempts == 1


async def test_a_row_at_which_a_process_has_met_a_bug_is_tried_by_another_one(broker: Broker) -> None:
    retried = asyncio.Queue[str]()
    async with station(broker, "first") as first:
        rows = FailedRows(first, WORK)
        await rows.of("count rows", RowWork(retried.put)).met_bug("row 7", RuntimeError("a bug of ours"))
        async with working(broker, Remembering(), name="second", handlers=rows.handlers):
            assert await asyncio.wait_for(retried.get(), 30) == "row 7"


PAUSE_MS = 200


class Even(random.Random):
    """Draws every pause as long as it may be, so that messages which took turns take the same turns again."""

    def uniform(self, a: float, b: float) -> float:
        return max(a, b)


@pytest.mark.hits("a message has met a bug in this process: it is passed on to another")
async def test_messages_that_take_turns_do_not_come_to_the_process_that_failed_at_them_alone(
    broker: Broker,
) -> None:
    memory = failing(RuntimeError("a bug of ours"))
    even = varied(SETTINGS, RETRY_DELAY_MS_FIRST=PAUSE_MS, RETRY_DELAY_MS_MAX=PAUSE_MS)
    clock = asyncio.get_running_loop().time
    async with (
        working(broker, memory, name="first", settings=even, chance=Even()) as first,
        working(broker, memory, name="second", settings=even, chance=Even()) as second,
    ):
        # The second comes in the middle of the pause of the first: one of each process, in turn.
        await send(broker, parcel(line(order(1))))
        await until(lambda: first.intake.put_back + second.intake.put_back == 1, "a process has failed at it")
        middle_s = clock() + PAUSE_MS / 2000
        await until(lambda: clock() >= middle_s, "half of the pause is over")
        await send(broker, parcel(line(order(2))))
        letters = await dead_letters(broker, 2)

    assert not memory.handled
    for letter in letters:
        assert letter.reason.splitlines()[0].endswith("; two processes failed at it")


@pytest.mark.parametrize("value", [b"1", b"19", b"20", b"25", b"-1", b"1.5", b"null", b'"20"', b"9" * 30])
async def test_a_client_does_not_choose_how_often_its_message_counts_as_tried(
    broker: Broker, value: bytes
) -> None:
    memory = Remembering()
    tried_often = line(order(1))[:-1] + b',"attempts":' + value + b"}"
    headers: dict[str, str | int] = {message.ATTEMPTS: 19, message.WAITS: 19, "x-delivery-count": 19}

    async with working(broker, memory) as worker:
        await send(
            broker,
            structs.replace(parcel(tried_often, line(order(2))), headers=headers),
            structs.replace(parcel(line(order(3))), headers={**headers, message.ATTEMPTS: value.decode()}),
        )
        await until(lambda: len(memory.handled) == 3)
        assert (worker.intake.put_back, worker.intake.buried) == (0, 0)

    assert memory.attempts == [0, 0, 0]
    await until_empty(broker)


async def test_a_message_that_cannot_be_read_is_counted_too(broker: Broker) -> None:
    async def on_unread(_asks: Sequence[Received[Unreadable]], _: None) -> Sequence[Said]:
        raise RuntimeError("a bug of ours")

    few = varied(SETTINGS, ATTEMPTS_MAX=3)
    async with working(broker, Remembering(), settings=few, handlers={Unreadable: on_unread}):
        await send(broker, parcel(b'{"attempts": 1.5'), parcel(b'{"message":{"type":1},"attempts":-1}'))
        letters = await dead_letters(broker, 2)

    assert {letter.reason.splitlines()[0] for letter in letters} == {
        "RuntimeError: a bug of ours; 3 attempts, none is left"
    }


@pytest.mark.hits("a message is refused, and its sender is told why")
async def test_each_message_of_a_parcel_counts_by_its_own_type_and_cell(broker: Broker) -> None:
    memory = Remembering()
    removal = RemoveFromCell(
        cell="c1",
        instance=InstanceId(UUID(int=3)),
        request_id=RequestId(UUID(int=3)),
        sequence=3,
        issued_at=datetime(2026, 1, 1, tzinfo=UTC),
    )

    async with working(broker, memory):
        messages = (order(0), order(1, "c2"), order(2), removal, order(4))
        await send(broker, parcel(*(line(each) for each in messages)))
        letters = await dead_letters(broker, 2)
        await until(lambda: len(memory.handled) == 3)

    assert sorted(memory.handled) == [0, 2, 4]
    reasons = sorted(letter.reason for letter in letters)
    assert "'release' counts only under the key 'release.c2'" in reasons[0]
    assert "'remove' counts only under the key 'remove.c1'" in reasons[1]


async def test_malformed_unknown_and_oversized_messages_are_buried_with_reasons(broker: Broker) -> None:
    memory = Remembering()
    good = [line(order(n)) for n in range(3)]
    wrong_field = line(order(9)).replace(b'"attempt":1', b'"attempt":"one"')
    unknown = b'{"message":{"type":"make.coffee"}}'

    async with working(broker, memory):
        await send(
            broker,
            parcel(good[0], b'{"message": {"type": "rel', good[1], unknown, wrong_field, good[2]),
            Parcel(
                PLACEMENT, "release.c1", b" " * (PARCEL_BYTES_MAX + 1), content_type=PLAIN, mandatory=True
            ),
            parcel(*[line(order(n)) for n in range(201)]),
            Parcel(PLACEMENT, "release.c1", b"", content_type=PLAIN, mandatory=True),
        )
        letters = await dead_letters(broker, 6)
        await until(lambda: len(memory.handled) == 3)

    assert memory.handled == [0, 1, 2]
    assert sorted(letter.reason for letter in letters) == [
        'Expected `int`, got `str` - at `$.message.attempt`: got "one"',
        "Input data was truncated",
        "Input data was truncated",
        "oversized: 201 messages, at most 200 are allowed",
        f"oversized: {PARCEL_BYTES_MAX + 1} bytes, at most {PARCEL_BYTES_MAX} are allowed",
        "unknown message type 'make.coffee'",
    ]
    await until_empty(broker)


class Killed(BaseException):
    """As sudden as a kill -9: nothing in the loop catches it."""


async def die(
    broker: Broker, memory: Remembering, settings: BusSettings, number: int, queue: str = WORK
) -> None:
    """The worker of this number takes from the queue until it is killed."""
    async with closing(Station(broker, "a-mortal", settings=settings, chance=random.Random(number))) as (
        here,
    ):
        with pytest.raises(BaseExceptionGroup):
            await Worker(here, Subscription(queue, memory.handlers, memory)).run()


@pytest.mark.hits("a message that has come back often is handled alone")
@pytest.mark.parametrize(("each_parcel", "attempts_max"), [(10, 12), (1, 20)])
async def test_one_that_kills_its_worker_is_found_without_its_neighbours(
    broker: Broker, each_parcel: int, attempts_max: int
) -> None:
    memory = failing(Killed(), 13)
    few = varied(SETTINGS, ATTEMPTS_MAX=attempts_max)
    starts = range(0, 30, each_parcel)
    await send(broker, *(parcel(*(line(order(n)) for n in range(s, s + each_parcel))) for s in starts))

    for number in range(attempts_max):
        await die(broker, memory, few, number)
    async with working(broker, memory, settings=few):
        (letter,) = await dead_letters(broker, 1)
        await until(lambda: len(set(memory.handled)) == 29)

    assert (
        letter.reason == f"came back {attempts_max} times: the worker that had it died or lost its connection"
    )
    assert sorted(set(memory.handled)) == [n for n in range(30) if n != 13]


@pytest.mark.parametrize("items_per_parcel", [1, 20])
async def test_ten_workers_that_die_with_all_they_may_hold_lose_and_bury_nothing(
    broker: Broker, items_per_parcel: int
) -> None:
    settings, never = varied(SETTINGS, prefetch=200), asyncio.Event()
    count = settings.prefetch
    starts = range(0, count, items_per_parcel)
    await send(broker, *[parcel(*(line(order(at + n)) for n in range(items_per_parcel))) for at in starts])
    for number in range(10):
        here = Station(broker, f"dies-{number}", settings=settings)
        worker = Worker(here, Subscription(WORK, (holding := Remembering(gate=never)).handlers, holding))
        async with running((worker,), here, killed=True):
            await until(partial(getattr, worker.intake, "in_hand"), "it has some")
            await until_empty(broker)
    memory = Remembering()
    async with working(broker, memory, settings=settings):
        await until(lambda: len(set(memory.handled)) == count, "all are handled")
        await until_empty(broker)

    assert (sorted(set(memory.handled)), await dead_letters(broker, 0)) == ([*range(count)], [])
    # A parcel of several is taken apart in between, and counts where it is then.
    assert items_per_parcel > 1 or memory.attempts == [10] * count


@pytest.mark.hits("a batch has failed for the moment, and is handled again", "waiting for a server: %s")
async def test_what_is_transient_is_tried_where_it_is(broker: Broker) -> None:
    problems = [
        Transient("deadlock"),
        Unavailable("no database"),
        Unavailable("still none"),
        Transient("deadlock"),
    ]

    def trouble(_: int) -> None:
        if problems:
            raise problems.pop(0)

    memory = Remembering(trouble)

    async with working(broker, memory) as worker:
        await send(broker, parcel(*(line(order(n)) for n in range(3))))
        await until(lambda: len(memory.handled) == 3)
        assert (worker.intake.put_back, worker.intake.buried) == (0, 0)

    assert memory.handled == [0, 1, 2]


@pytest.mark.hits("%s: left for a newer worker on %s")
async def test_a_newer_version_from_a_worker_waits_for_a_newer_worker(broker: Broker) -> None:
    memory = Remembering()
    newer = line(order(1), version=2)
    await send(broker, parcel(line(order(0))), parcel(newer, line(order(2))), parcel(line(order(3))))

    async with working(broker, memory):
        await until(lambda: memory.handled == [0, 2, 3])

    # Its neighbours before and behind it are acknowledged: they do not come again.
    async with closing(await broker.connect()) as (connection,):
        (left,) = await (await connection.open_consuming(WORK, prefetch=10)).receive()
    assert left.parcel.body == newer


async def test_the_end_of_a_batch_whose_connection_is_gone_settles_nothing_that_came_since(
    under_test: BrokerUnderTest, broker: Broker
) -> None:
    opens = asyncio.Event()
    memory = Remembering(gate=opens)
    await send(broker, *(parcel(line(order(number))) for number in range(3)))

    async with working(broker, memory) as worker:
        await until(lambda: memory.batches == [[0, 1, 2]])
        await under_test.cut_connections()
        # They are here again, by the tags that the first three had.
        await until(lambda: worker.intake.interruptions == 1 and worker.intake.in_hand == 3)
        opens.set()
        await until(lambda: len(memory.handled) == 6)
        await until(lambda: worker.intake.in_hand == 0)

    await until_empty(broker)


@pytest.mark.hits("a message of a newer version has waited for a newer worker in vain")
async def test_a_newer_version_is_offered_to_newer_workers_for_so_long_and_then_buried(
    broker: Broker,
) -> None:
    memory = Remembering()

    async with working(broker, memory, settings=varied(SETTINGS, NEWER_DELAY_MS=5, NEWER_WAITS_MAX=10)):
        await send(broker, tried(line(order(1), version=2), 3, broker.user), parcel(line(order(2))))
        (letter,) = await dead_letters(broker, 1)
        await until(lambda: memory.handled == [2])

    assert letter.reason == (
        "version 2 of 'release' is newer than what this worker reads; it was returned 10 times to wait for a newer one, and none came"
    )
    # The worker that reads it at last finds its attempts unchanged.
    assert letter.attempts == 3
    await until_empty(broker)


@pytest.mark.hits("a whole parcel is refused: its sender may not send it")
async def test_a_newer_version_from_anybody_but_a_worker_is_buried_at_once(
    under_test: BrokerUnderTest,
) -> None:
    await declared(under_test)
    await under_test.add_users((user_of("scheduler"), user_of("operator")), CELLS)
    person, worker = under_test.broker(user_of("operator")), under_test.broker(user_of("scheduler"))
    memory, queue = Remembering(), "scheduler.requests"
    newer = line(order(1), version=2)

    def first_said_by(user: str, body: bytes = newer) -> Parcel:
        said = {message.SENDER: user, message.EXCHANGE: PLACEMENT, message.KEY: "release.c1"}
        return Parcel(retry_exchange_of(queue), queue, body, mandatory=True, headers=said)

    async with working(worker, memory, queue=queue):
        await send(worker, *map(first_said_by, (user_of("operator"), SHOP.user, "", "moor-cellar")))
        letters = await dead_letters(person, 4)
        conductor = user_of("conductor", "c1")
        await send(worker, first_said_by(conductor), first_said_by(conductor, line(order(2))))
        await until(lambda: memory.handled == [2])

    # A message from an unknown user is not read at all.
    assert sorted(each.reason.partition(":")[0] for each in letters) == [
        "sent by the user 'moor-cellar', which the topology does not have",
        "sent without a user_id",
        *["version 2 of 'release' is newer than what this worker reads"] * 2,
    ]
    assert len(await dead_letters(person, 4)) == 4


@pytest.mark.hits(
    "a parcel has come back: each of its messages returns to the queue by itself",
    "a message without an attempt left is buried unread",
)
@pytest.mark.parametrize(
    "questions",
    ["placement.questions", "conductor.c1.questions", application_queue("scheduler.questions", SHOP.name)],
)
async def test_a_question_that_kills_is_buried_though_its_queue_does_not_count(
    under_test: BrokerUnderTest, broker: Broker, questions: str
) -> None:
    await under_test.declare(objects_of_application(SHOP))
    memory = failing(Killed(), 1)
    few = varied(SETTINGS, ATTEMPTS_MAX=4)
    said = {message.SENDER: broker.user, message.EXCHANGE: PLACEMENT, message.KEY: "release.c1"}
    await send(
        broker, Parcel(retry_exchange_of(questions), questions, line(order(1)), mandatory=True, headers=said)
    )

    for number in range(few.ATTEMPTS_MAX):
        await die(broker, memory, few, number, questions)
    async with working(broker, memory, settings=few, queue=questions):
        (letter,) = await dead_letters(broker, 1)

    assert letter.reason == "came back 4 times: the worker that had it died or lost its connection"


@pytest.mark.hits("a single parcel is refused: another channel is tried")
async def test_full_dead_letters_lose_nothing_hold_up_nobody_and_raise_an_alarm(
    under_test: BrokerUnderTest,
) -> None:
    """More dead letters than parcels may be unconfirmed: neighbours are still handled, and answers still leave."""
    broker = under_test.broker()
    connection = await broker.connect()
    await connection.declare(objects_of(CELLS, limits=Limits(dead_length_max=10)))
    at_once, neighbour, count = SETTINGS.PARCELS_UNCONFIRMED_MAX + 20, 1_000_000, 0

    def poison(number: int) -> None:
        if number < neighbour:
            raise Poison(f"never {number}")

    memory = Remembering(poison)
    here = Station(
        broker, "a-worker", settings=varied(SETTINGS, CONNECT_DELAY_MS_MAX=50.0), chance=random.Random(7)
    )
    worker = Worker(here, Subscription(WORK, memory.handlers, memory))
    running = asyncio.create_task(worker.run())
    health = Health(About("placement", "1"), (worker,))

    def is_full() -> bool:
        return worker.intake.burying.state is PartState.FAILING

    def is_full_or_done() -> bool:
        return is_full() or (worker.intake.buried == count and not worker.intake.burials_waiting)

    # RabbitMQ's limit is soft: it still takes what is on its way when the limit is reached, and on a busy machine that may be all.
    while not is_full():
        await send(broker, *(parcel(line(order(number))) for number in range(count, count + at_once)))
        count += at_once
        await until(is_full_or_done, "an alarm, or all are buried")
        assert count < 50 * at_once, "it is never full"
    await until(
        lambda: (
            [each["part"] for each in health.failing()] == [f"{WORK}: bury"]
            and f'moor_burials_waiting{{queue="{WORK}"}} 0.0'.encode() not in Metrics(health).page()
        ),
        "an alarm, and some wait",
    )
    await send(broker, parcel(line(order(neighbour))))
    await until(lambda: memory.handled == [neighbour], "a neighbour is handled")
    await asyncio.wait_for(here.publisher.send(order(neighbour + 1)), 60)

    reasons: set[str] = set()
    while len(reasons) < count:
        await dead_letters(broker, 1)
        async with open_dead_letters(connection, letters_max=1000) as opened:
            reasons |= {letter.reason for letter in opened.letters.values()}
            await opened.drop([*opened.letters])
    await until(lambda: worker.intake.in_hand == 0, "nothing is in hand")

    assert reasons == {f"never {number}" for number in range(count)}
    assert worker.intake.burying.state is PartState.WELL
    await worker.stop()
    await running
    await here.close()
    await connection.close()


async def test_hundreds_of_dead_letters_are_dropped_at_once_and_their_neighbours_stay(broker: Broker) -> None:
    await send(broker, *(Parcel(DEAD, ("a", "b")[n % 2], b"%d" % n) for n in range(600)))
    async with closing(await broker.connect()) as (connection,):

        async def drop(queue: str) -> list[int]:
            """Drop those of this queue, and return what was there."""
            async with open_dead_letters(connection, letters_max=1_000) as opened:
                there = sorted(int(letter.parcel.body) for letter in opened.letters.values())
                await opened.drop([tag for tag, letter in opened.letters.items() if letter.queue == queue])
            return there

        # If RabbitMQ stands still, it forgets acknowledgements, and letters come back.
        await until(lambda: drop("b"), "half is left", lambda found: found == [*range(0, 600, 2)])
        await until(lambda: drop("a"), "nothing is left", not_)
        assert await dead_letters(broker, 0) == []


async def test_stopping_finishes_what_is_in_hand_and_gives_the_rest_back(broker: Broker) -> None:
    first, second = Remembering(), Remembering()

    async with working(broker, first, settings=varied(SETTINGS, BATCH_ITEMS_MAX=10)) as worker:
        await send(broker, *(parcel(*(line(order(n)) for n in range(s, s + 10))) for s in range(0, 500, 10)))
        await until(lambda: len(first.handled) >= 10)
        await worker.stop()
    async with working(broker, second):
        await until(lambda: len(first.handled) + len(second.handled) >= 500)

    assert sorted(first.handled + second.handled) == list(range(500))
    await until_empty(broker)
