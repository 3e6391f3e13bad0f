"""Contract of settling on all brokers: each message is handled, retried or buried by itself, whatever its neighbours do."""

import asyncio
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID

import pytest
from msgspec import structs

from bus import message
from bus.broker import Broker, Connection
from bus.codec import Codec, NewerVersion
from bus.message import LINES, PARCEL_BYTES_MAX, PLAIN, Envelope, Message, Parcel
from bus.messages.build import DeleteInstance
from bus.messages.cell import RemoveFromCell
from bus.messages.placement import ReleaseClaim
from bus.topology import (
    API,
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
from bus.workers.dead_letters import open_dead_letters
from bus.workers.handling import Received, Said
from bus.workers.health_server import Metrics
from bus.workers.intake import SPENT_READS_MAX, TRIED_ALONE_FROM
from bus.workers.station import Station
from engine.flavors import InstanceId, RequestId
from kit.errors import ConnectionLost, Locked, Poison, Transient, Unavailable
from kit.health import About, Health
from kit.parts import PartState
from tests.contracts.broker_under_test import SHOP, BrokerUnderTest
from tests.contracts.stage import (
    CELLS,
    PATIENCE_S,
    SETTINGS,
    WORK,
    Remembering,
    dead_letters,
    declared,
    line,
    number_of,
    order,
    parcel,
    send,
    station,
    until,
    until_empty,
    working,
)
from tests.varied import varied

pytestmark = pytest.mark.asyncio


async def test_each_order_is_handled_once_and_then_gone(under_test: BrokerUnderTest) -> None:
    broker = await declared(under_test)
    memory = Remembering()

    async with station(broker) as client, working(broker, memory):
        await asyncio.gather(*(client.publisher.send(order(n)) for n in range(500)))
        await until(lambda: len(memory.handled) >= 500)

    assert memory.handled == list(range(500))
    await until_empty(broker)


async def test_many_messages_share_a_parcel_and_a_batch(under_test: BrokerUnderTest) -> None:
    broker = await declared(under_test)
    memory = Remembering()
    settings = varied(SETTINGS, BATCH_ITEMS_MAX=SETTINGS.PARCEL_ITEMS_MAX)

    async with station(broker) as client, working(broker, memory, settings=settings):
        await asyncio.gather(*(client.publisher.send(order(n)) for n in range(400)))
        await until(lambda: len(memory.handled) == 400)
        assert client.publisher.parcels_sent == 2

    assert max(map(len, memory.batches)) == settings.BATCH_ITEMS_MAX


async def test_messages_that_come_alone_fill_a_batch_too(under_test: BrokerUnderTest) -> None:
    broker = await declared(under_test)
    gate = asyncio.Event()
    memory = Remembering(gate=gate)
    alone = varied(SETTINGS, PARCEL_ITEMS_MAX=1)

    async with station(broker, settings=alone) as client, working(broker, memory, singly=True):
        await client.publisher.send(order(0))
        await until(lambda: len(memory.batches) == 1)
        await asyncio.gather(*(client.publisher.send(order(n)) for n in range(1, SETTINGS.BATCH_ITEMS_MAX)))
        try:
            # The worker has all of them.
            await until_empty(broker)
        finally:
            gate.set()
        await until(lambda: len(memory.handled) == SETTINGS.BATCH_ITEMS_MAX)

    assert [*map(len, memory.batches)] == [1, SETTINGS.BATCH_ITEMS_MAX - 1]


async def test_one_that_fails_is_tried_again_by_itself(under_test: BrokerUnderTest) -> None:
    broker = await declared(under_test)
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


async def test_a_poison_is_buried_with_reason_attempts_and_where(under_test: BrokerUnderTest) -> None:
    broker = await declared(under_test)

    def poison(number: int) -> None:
        if number == 2:
            raise Poison("asks for minus one host")

    memory = Remembering(poison)

    async with working(broker, memory, name="placement-7"):
        await send(broker, parcel(*(line(order(n), attempts=3) for n in range(4))))
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


async def test_one_that_always_fails_is_buried_when_its_attempts_are_used_up(
    under_test: BrokerUnderTest,
) -> None:
    broker = await declared(under_test)

    def always(number: int) -> None:
        if number == 1:
            raise RuntimeError("a bug of ours")

    memory = Remembering(always)
    few = varied(SETTINGS, ATTEMPTS_MAX=3)

    async with working(broker, memory, settings=few):
        await send(broker, parcel(line(order(0)), line(order(1))))
        (letter,) = await dead_letters(broker, 1)

    assert memory.handled == [0]
    assert letter.reason == "RuntimeError: a bug of ours; 3 attempts, none is left"
    assert letter.attempts == 2


async def test_each_message_of_a_parcel_counts_by_its_own_type_and_cell(under_test: BrokerUnderTest) -> None:
    broker = await declared(under_test)
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


async def test_malformed_unknown_and_oversized_messages_are_buried_with_reasons(
    under_test: BrokerUnderTest,
) -> None:
    broker = await declared(under_test)
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
    reasons = sorted(letter.reason for letter in letters)
    assert reasons[0] == 'Expected `int`, got `str` - at `$.message.attempt`: got "one"'
    assert reasons[1] == "Input data was truncated"
    assert reasons[2] == "Input data was truncated"
    assert reasons[3] == "oversized: 201 messages, at most 200 are allowed"
    assert reasons[4] == f"oversized: {PARCEL_BYTES_MAX + 1} bytes, at most {PARCEL_BYTES_MAX} are allowed"
    assert reasons[5] == "unknown message type 'make.coffee'"
    await until_empty(broker)


async def come_back(broker: Broker, messages: int, times: int) -> None:
    """So often a consumer takes all parcels and is lost."""
    for _ in range(times):
        connection = await broker.connect()
        consuming = await connection.open_consuming(WORK, prefetch=messages)
        taken = 0
        while taken < messages:
            taken += sum([len(each.parcel.body.splitlines()) for each in await consuming.receive()])
        await connection.close()


async def test_what_comes_back_once_is_handled_together(under_test: BrokerUnderTest) -> None:
    broker = await declared(under_test)
    await send(broker, parcel(*(line(order(n)) for n in range(5))), *(parcel(line(order(n))) for n in (5, 6)))
    await come_back(broker, 7, TRIED_ALONE_FROM - 1)
    memory = Remembering()

    async with working(broker, memory):
        await until(lambda: len(memory.handled) == 7)

    assert list(range(5)) in [batch[:5] for batch in memory.batches]
    assert sorted(memory.handled) == list(range(7))
    await until_empty(broker)


async def test_what_comes_back_more_often_is_taken_apart_and_each_message_is_handled_alone(
    under_test: BrokerUnderTest,
) -> None:
    broker = await declared(under_test)
    await send(broker, parcel(*(line(order(n)) for n in range(5))), *(parcel(line(order(n))) for n in (5, 6)))
    await come_back(broker, 7, TRIED_ALONE_FROM)
    memory = Remembering()

    async with working(broker, memory):
        await until(lambda: len(memory.handled) == 7)

    assert sorted(memory.batches) == [[n] for n in range(7)]
    assert memory.attempts == [TRIED_ALONE_FROM] * 7
    await until_empty(broker)


class Killed(BaseException):
    """As sudden as a kill -9: nothing in the loop catches it."""


@pytest.mark.parametrize(("each_parcel", "attempts_max"), [(10, 12), (1, 20)])
async def test_one_that_kills_its_worker_is_found_without_its_neighbours(
    under_test: BrokerUnderTest, each_parcel: int, attempts_max: int
) -> None:
    broker = await declared(under_test)
    deaths: list[int] = []

    def kill(number: int) -> None:
        if number == 13:
            deaths.append(number)
            raise Killed

    memory = Remembering(kill)
    few = varied(SETTINGS, ATTEMPTS_MAX=attempts_max)
    starts = range(0, 30, each_parcel)
    await send(broker, *(parcel(*(line(order(n)) for n in range(s, s + each_parcel))) for s in starts))

    for _ in range(attempts_max):
        here = Station(broker, "a-mortal", settings=few)
        worker = here.worker(WORK, memory.handlers, memory, chance=random.Random(len(deaths)))
        with pytest.raises(BaseExceptionGroup):
            await worker.run()
        await here.close()
    async with working(broker, memory, settings=few):
        (letter,) = await dead_letters(broker, 1)
        await until(lambda: len(set(memory.handled)) == 29)

    assert (
        letter.reason == f"came back {attempts_max} times: the worker that had it died or lost its connection"
    )
    assert sorted(set(memory.handled)) == [n for n in range(30) if n != 13]


async def test_what_is_transient_is_tried_where_it_is(under_test: BrokerUnderTest) -> None:
    broker = await declared(under_test)
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


async def test_a_server_that_is_away_for_long_costs_no_attempt(under_test: BrokerUnderTest) -> None:
    broker = await declared(under_test)
    tries = 0

    def trouble(_: int) -> None:
        nonlocal tries
        tries += 1
        # Doubled so often, the pause would be more than a float can hold.
        if tries <= 1_100:
            raise Unavailable("no database")

    memory = Remembering(trouble)
    quick = varied(SETTINGS, RETRY_DELAY_MS_FIRST=0.001, RETRY_DELAY_MS_MAX=0.001)

    async with working(broker, memory, settings=quick) as worker:
        await send(broker, parcel(line(order(1))))
        await until(lambda: memory.handled == [1])
        assert (worker.intake.put_back, worker.intake.buried) == (0, 0)


async def test_a_newer_version_from_a_worker_waits_for_a_newer_worker(under_test: BrokerUnderTest) -> None:
    broker = await declared(under_test)
    memory = Remembering()
    newer = line(order(1), version=2)

    async with working(broker, memory):
        await send(broker, parcel(newer, line(order(2))))
        await until(lambda: memory.handled == [2])

    connection = await broker.connect()
    consuming = await connection.open_consuming(WORK, prefetch=1)
    (left,) = await consuming.receive()
    assert left.parcel.body == newer
    await connection.close()


async def test_a_newer_version_is_offered_to_newer_workers_for_so_long_and_then_buried(
    under_test: BrokerUnderTest,
) -> None:
    broker = await declared(under_test)
    impatient = varied(SETTINGS, NEWER_DELAY_MS=5, NEWER_WAITS_MAX=10)
    memory = Remembering()

    async with working(broker, memory, settings=impatient):
        await send(broker, parcel(line(order(1), version=2, attempts=3), line(order(2))))
        (letter,) = await dead_letters(broker, 1)
        await until(lambda: memory.handled == [2])

    assert letter.reason == (
        "version 2 of 'release' is newer than what this worker reads; it was returned 10 times to wait for a newer one, and none came"
    )
    # The worker that reads it at last finds its attempts unchanged.
    assert letter.attempts == 3
    await until_empty(broker)


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


@pytest.mark.parametrize(
    "questions",
    ["placement.questions", "conductor.c1.questions", application_queue("scheduler.questions", SHOP.name)],
)
async def test_a_question_that_kills_is_buried_though_its_queue_does_not_count(
    under_test: BrokerUnderTest, questions: str
) -> None:
    broker = await declared(under_test)
    await under_test.declare(objects_of_application(SHOP))
    deaths: list[int] = []

    def kill(number: int) -> None:
        if number == 1:
            deaths.append(number)
            raise Killed

    memory = Remembering(kill)
    few = varied(SETTINGS, ATTEMPTS_MAX=4)
    said = {message.SENDER: broker.user, message.EXCHANGE: PLACEMENT, message.KEY: "release.c1"}
    await send(
        broker, Parcel(retry_exchange_of(questions), questions, line(order(1)), mandatory=True, headers=said)
    )

    for _ in range(few.ATTEMPTS_MAX):
        here = Station(broker, "a-mortal", settings=few)
        worker = here.worker(questions, memory.handlers, memory, chance=random.Random(1))
        with pytest.raises(BaseExceptionGroup):
            await worker.run()
        await here.close()
    async with working(broker, memory, settings=few, queue=questions):
        (letter,) = await dead_letters(broker, 1)

    assert len(deaths) == few.ATTEMPTS_MAX
    assert letter.reason == "came back 4 times: the worker that had it died or lost its connection"


class Unlucky(Codec):
    """A codec with a bug: to decode one line kills the worker."""

    def decode(self, line: bytes) -> Envelope[Message] | Unreadable | NewerVersion:
        if b'"id":"deadly"' in line:
            raise Killed
        return super().decode(line)


async def test_one_that_kills_by_being_decoded_is_buried_without_being_decoded(
    under_test: BrokerUnderTest,
) -> None:
    broker = await declared(under_test)
    memory = Remembering()
    few = varied(SETTINGS, ATTEMPTS_MAX=3)
    await send(broker, parcel(line(order(1)).replace(b'"a-test"', b'"deadly"')))

    for _ in range(few.ATTEMPTS_MAX):
        here = Station(broker, "a-mortal", settings=few, codec=Unlucky())
        worker = here.worker(WORK, memory.handlers, memory, chance=random.Random(1))
        with pytest.raises(BaseExceptionGroup):
            await worker.run()
        await here.close()
    async with working(broker, memory, settings=few, codec=Unlucky()):
        await send(broker, parcel(line(order(2))))
        (letter,) = await dead_letters(broker, 1)
        await until(lambda: memory.handled == [2])

    assert letter.reason == "came back 3 times: the worker that had it died or lost its connection"


class Taken:
    """Gives back what was taken for a message, and remembers the messages."""

    def __init__(self, trouble: Exception | None = None) -> None:
        self.given_back: list[int] = []
        self._trouble = trouble

    async def __call__(self, orders: Sequence[Received[ReleaseClaim]], _: None) -> Sequence[Said]:
        if self._trouble is not None:
            raise self._trouble
        self.given_back += [number_of(each.message) for each in orders]
        return ()


async def test_what_was_taken_for_a_message_is_given_back_before_it_is_buried(
    under_test: BrokerUnderTest,
) -> None:
    broker = await declared(under_test)

    def poison(number: int) -> None:
        if number == 1:
            raise Poison("never")

    memory, broken, second, third = Remembering(poison), Taken(KeyError("a bug")), Taken(), Taken()
    few = varied(SETTINGS, ATTEMPTS_MAX=3)

    async with working(broker, memory, settings=few, before_burial={ReleaseClaim: (broken, second, third)}):
        # The second message arrives with its attempts used up.
        await send(broker, parcel(line(order(1)), line(order(2), attempts=3), line(order(3))))
        letters = await dead_letters(broker, 2)
        await until(lambda: memory.handled == [3])

    assert len(letters) == 2
    assert (sorted(second.given_back), third.given_back) == ([1, 2], [])


async def test_what_cannot_be_given_back_while_a_server_is_away_is_given_back_later(
    under_test: BrokerUnderTest,
) -> None:
    broker = await declared(under_test)

    def poison(number: int) -> None:
        if number == 1:
            raise Poison("never")

    tries = 0

    class Away(Taken):
        async def __call__(self, orders: Sequence[Received[ReleaseClaim]], tx: None) -> Sequence[Said]:
            nonlocal tries
            tries += 1
            if tries < 4:
                raise Locked("another transaction has it")
            return await super().__call__(orders, tx)

    memory, away = Remembering(poison), Away()
    patient = varied(SETTINGS, TRIES_IN_PLACE_MAX=1)

    async with working(broker, memory, settings=patient, before_burial={ReleaseClaim: (away,)}) as worker:
        await send(broker, parcel(line(order(1)), line(order(2))))
        await dead_letters(broker, 1)
        await until(lambda: memory.handled == [2])
        assert worker.intake.burying.failures > 0

    assert away.given_back == [1]


async def test_one_that_kills_by_being_decoded_is_decoded_a_few_times_more_for_what_was_taken(
    under_test: BrokerUnderTest,
) -> None:
    broker = await declared(under_test)
    memory = Remembering()
    few = varied(SETTINGS, ATTEMPTS_MAX=3)
    await send(broker, parcel(line(order(1)).replace(b'"a-test"', b'"deadly"')))

    for _ in range(few.ATTEMPTS_MAX + SPENT_READS_MAX):
        here = Station(broker, "a-mortal", settings=few, codec=Unlucky())
        worker = here.worker(
            WORK,
            memory.handlers,
            memory,
            chance=random.Random(1),
            before_burial={ReleaseClaim: (Taken(),)},
        )
        with pytest.raises(BaseExceptionGroup):
            await worker.run()
        await here.close()
    async with working(
        broker, memory, settings=few, codec=Unlucky(), before_burial={ReleaseClaim: (Taken(),)}
    ):
        (letter,) = await dead_letters(broker, 1)

    assert letter.reason == "came back 6 times: the worker that had it died or lost its connection"


async def test_an_applications_unreadable_messages_beyond_the_room_for_dead_letters_stop_no_worker(
    under_test: BrokerUnderTest,
) -> None:
    """It sends more of them than a worker may have in hand."""
    broker = under_test.broker()
    connection = await broker.connect()
    await connection.declare(objects_of(CELLS, limits=Limits(dead_length_max=10)))
    await under_test.add_users((SHOP.user,), CELLS)
    handled: list[InstanceId] = []

    async def on_delete(orders: Sequence[Received[DeleteInstance]], _: None) -> Sequence[Said]:
        handled.extend(each.message.instance for each in orders)
        return ()

    settings = structs.replace(SETTINGS, prefetch=20)
    here = Station(broker, "a-worker", settings=settings)
    worker = here.worker(
        "scheduler.requests", {DeleteInstance: on_delete}, Remembering(), chance=random.Random(7)
    )
    running = asyncio.create_task(worker.run())
    good = DeleteInstance(instance=InstanceId(UUID(int=1)), project="shop")
    key = "instance.delete.shop"

    junk = [Parcel(API, key, b"not json", content_type=LINES, mandatory=True)] * 60
    await send(
        under_test.broker(SHOP.user), *junk, Parcel(API, key, line(good), content_type=LINES, mandatory=True)
    )
    await until(lambda: handled == [good.instance], "the next order is handled")
    await until(lambda: worker.intake.in_hand == 0, "nothing is in hand")

    # RabbitMQ's limit is soft: it still takes what is on its way when the limit is reached.
    assert worker.intake.dropped > 0
    assert await connection.depth("dead") + worker.intake.dropped == len(junk)
    await worker.stop()
    await running
    await here.close()
    await connection.close()


async def test_full_dead_letters_lose_nothing_hold_up_nobody_and_raise_an_alarm(
    under_test: BrokerUnderTest,
) -> None:
    """More dead letters than parcels may be unconfirmed: neighbours are still handled, and answers still leave."""
    broker = under_test.broker()
    connection = await broker.connect()
    await connection.declare(objects_of(CELLS, limits=Limits(dead_length_max=10)))
    count = SETTINGS.PARCELS_UNCONFIRMED_MAX + 20

    def poison(number: int) -> None:
        if number < 1000:
            raise Poison(f"never {number}")

    memory = Remembering(poison)
    here = Station(broker, "a-worker", settings=varied(SETTINGS, CONNECT_DELAY_MS_MAX=50.0))
    worker = here.worker(WORK, memory.handlers, memory, chance=random.Random(7))
    running = asyncio.create_task(worker.run())
    health = Health(About("placement", "1"), (worker,))

    await send(broker, *(parcel(line(order(number))) for number in range(count)))
    await until(lambda: worker.intake.burying.state is PartState.FAILING, "an alarm")
    # RabbitMQ's limit is soft: it still takes what is on its way when the limit is reached.
    await until(lambda: worker.intake.burials_waiting > 0, "some wait")
    assert [each["part"] for each in health.failing()] == [f"{WORK}: bury"]
    assert f'moor_burials_waiting{{queue="{WORK}"}} 0.0'.encode() not in Metrics(health).page()
    await send(broker, parcel(line(order(1000))))
    await until(lambda: memory.handled == [1000], "a neighbour is handled")
    await asyncio.wait_for(here.publisher.send(order(1001)), 60)

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


async def test_dead_letters_that_are_alike_have_handles_of_their_own(under_test: BrokerUnderTest) -> None:
    broker = await declared(under_test)
    by_hand = Parcel(DEAD, WORK, b"{broken", headers={"x-first-death-reason": "delivery_limit"})

    async with working(broker, Remembering()):
        await send(broker, parcel(b"{broken"), parcel(b"{broken"), by_hand, by_hand)
        first = await dead_letters(broker, 4)
    connection = await broker.connect()
    try:
        assert len({letter.handle for letter in first}) == 4
        assert {letter.handle for letter in await dead_letters(broker, 4)} == {each.handle for each in first}

        async with open_dead_letters(connection, letters_max=10) as opened:
            by_worker, *others = sorted(opened.letters.items(), key=lambda each: each[1].where != "a-worker")
            await opened.drop([by_worker[0]])

        left = [letter.handle for letter in await dead_letters(broker, 3)]
        assert sorted(left) == sorted(letter.handle for _, letter in others)

        # Letters that the broker itself buried and that are equal may replace each other.
        async with open_dead_letters(connection, letters_max=10) as opened:
            await opened.drop([tag for tag, letter in opened.letters.items() if letter.handle.endswith("-2")])

        assert [letter.where for letter in await dead_letters(broker, 2)].count("broker") == 1
    finally:
        await connection.close()


async def test_who_looks_right_after_another_sees_all_dead_letters(under_test: BrokerUnderTest) -> None:
    broker = await declared(under_test)
    await send(broker, *(Parcel(DEAD, WORK, b"{broken %d" % number) for number in range(50)))
    await dead_letters(broker, 50)
    connection = await broker.connect()

    seen = []
    for _ in range(20):
        async with open_dead_letters(connection, letters_max=100) as opened:
            seen.append(len(opened.letters))
            await opened.drop(sorted(opened.letters)[1:2])

    assert seen == [*range(50, 30, -1)]
    await connection.close()


async def test_hundreds_of_dead_letters_are_dropped_at_once_and_their_neighbours_stay(
    under_test: BrokerUnderTest,
) -> None:
    broker = await declared(under_test)
    await send(broker, *(Parcel(DEAD, ("a", "b")[n % 2], b"%d" % n) for n in range(600)))
    connection = await broker.connect()
    try:

        async def drop(queue: str, *, left: Sequence[int]) -> None:
            """Until only these are left: if RabbitMQ stands still, it forgets acknowledgements, and letters come back."""
            while True:
                async with open_dead_letters(connection, letters_max=1_000) as opened:
                    seen = opened.letters.values()
                    if sorted(int(letter.parcel.body) for letter in seen) == [*left]:
                        return
                    await opened.drop(
                        [tag for tag, letter in opened.letters.items() if letter.queue == queue]
                    )
                await asyncio.sleep(0.01)

        async with asyncio.timeout(PATIENCE_S):
            await drop("b", left=range(0, 600, 2))
            await drop("a", left=())
        assert await dead_letters(broker, 0) == []
    finally:
        await connection.close()


async def test_nobody_handles_it_here_is_a_reason_too(under_test: BrokerUnderTest) -> None:
    broker = await declared(under_test)
    memory = Remembering()
    lost = b'{"message":{"type":"trait.create","name":"CUSTOM_A"}}'

    async with working(broker, memory):
        await send(broker, Parcel(PLACEMENT, "trait.create", lost), parcel(line(order(1))))
        (letter,) = await dead_letters(broker, 1)
        await until(lambda: memory.handled == [1])

    assert letter.reason == f"no handler for 'trait.create' on {WORK}"


async def test_stopping_finishes_what_is_in_hand_and_gives_the_rest_back(under_test: BrokerUnderTest) -> None:
    broker = await declared(under_test)
    first, second = Remembering(), Remembering()
    small = varied(SETTINGS, BATCH_ITEMS_MAX=10)

    async with working(broker, first, settings=small) as worker:
        await send(broker, *(parcel(*(line(order(n)) for n in range(s, s + 10))) for s in range(0, 500, 10)))
        await until(lambda: len(first.handled) >= 10)
        await worker.stop()
    async with working(broker, second):
        await until(lambda: len(first.handled) + len(second.handled) >= 500)

    assert sorted(first.handled + second.handled) == list(range(500))
    await until_empty(broker)


class Knocking:
    """A broker that counts connection attempts."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.times = 0

    @property
    def user(self) -> str:
        return self._broker.user

    async def connect(self) -> Connection:
        self.times += 1
        return await self._broker.connect()


async def test_a_worker_that_is_not_known_yet_waits_until_it_is(under_test: BrokerUnderTest) -> None:
    """One of several brokers may learn of a user later than the others: that ends no worker."""
    await declared(under_test)
    scheduler = user_of("scheduler")
    await under_test.add_user(scheduler, CELLS)
    await under_test.without_user(user_of("placement"))
    memory, knocking = Remembering(), Knocking(under_test.broker(user_of("placement")))
    async with working(knocking, memory):
        await send(under_test.broker(scheduler), parcel(line(order(1))))
        await until(lambda: knocking.times > 1)
        await under_test.add_user(user_of("placement"), CELLS)
        await until(lambda: memory.handled == [1])


async def test_an_unplugged_broker_keeps_what_it_had_until_it_is_plugged_in_again(
    under_test: BrokerUnderTest,
) -> None:
    broker = await declared(under_test)
    await send(broker, parcel(line(order(1))))

    await under_test.unplug()
    with pytest.raises(ConnectionLost):
        await under_test.broker().connect()
    memory = Remembering()
    async with working(broker, memory):
        await under_test.plug_in()
        await until(lambda: memory.handled == [1])
