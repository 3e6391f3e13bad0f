"""Behaviour of the memory broker only: moments that tests cannot hit on a real broker, and a clock that can be moved."""

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

import pytest

from bus import message
from bus.broker import BODY_BYTES_MAX, Receipt
from bus.definitions import Rights
from bus.memory import MemoryBroker
from bus.memory.virtual_host import matches, words_of
from bus.message import Parcel
from bus.topology import (
    DEAD,
    DEAD_QUEUE,
    DELIVERIES_MAX_LEAST,
    Binding,
    Exchange,
    Limits,
    Objects,
    Queue,
    QueueKind,
)
from kit.errors import AccessRefused, ConnectionLost, ConsumerCancelled, NotFound, Refusal
from tests.when_stored import when_stored

T = TypeVar("T")

TOWN = "moor.town"
WORK = Queue("work", QueueKind.WORK, (Binding(TOWN, "work"),))
FEED = Queue("feed", QueueKind.FEED, (Binding(TOWN, "news"),))
DEAD_LETTERS = Queue(DEAD_QUEUE, QueueKind.DEAD, (Binding(DEAD, "#"),))
WORLD = Objects((Exchange(TOWN), Exchange(DEAD)), (WORK, FEED), Limits(deliveries_max=DELIVERIES_MAX_LEAST))
ORDER = Parcel(TOWN, "work", b"{}")


class JumpingLoop(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to the next timer when nothing else is ready."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        if not vars(self)["_ready"]:
            timers = (timer.when() for timer in vars(self)["_scheduled"] if not timer.cancelled())
            self._now = max(self._now, min(timers, default=self._now))
        # Private to asyncio, and the one place where an iteration begins.
        super()._run_once()  # type: ignore[misc]


def in_jumping_time(doing: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(doing)


async def publish(broker: MemoryBroker, parcel: Parcel = ORDER) -> Receipt:
    connection = await broker.as_user().connect()
    publishing = await connection.open_publishing()
    return await publishing.publish(parcel)


async def standing(*queues: Queue, limits: Limits | None = None) -> MemoryBroker:
    broker = MemoryBroker()
    connection = await broker.as_user().connect()
    await connection.declare(WORLD)
    await connection.declare(Objects(queues=queues, limits=limits or Limits()))
    return broker


async def depth(broker: MemoryBroker, queue: str) -> int:
    return await (await broker.as_user().connect()).depth(queue)


@pytest.mark.asyncio
async def test_a_cut_between_storing_and_confirming_loses_the_confirm_and_not_the_parcel() -> None:
    broker = await standing()
    when_stored(broker, lambda _: broker.cut_connections())

    with pytest.raises(ConnectionLost):
        await publish(broker)

    assert await depth(broker, "work") == 1


@pytest.mark.asyncio
async def test_a_cut_before_storing_loses_both() -> None:
    broker = await standing()
    broker.block("low on memory")
    publishing = asyncio.create_task(publish(broker))
    await asyncio.sleep(0)

    broker.cut_connections()
    broker.block("")

    with pytest.raises(ConnectionLost):
        await publishing
    assert await depth(broker, "work") == 0


@pytest.mark.asyncio
async def test_nothing_is_confirmed_or_delivered_within_the_call_that_published_it() -> None:
    broker = await standing()
    connection = await broker.as_user().connect()
    publishing = await connection.open_publishing()
    consuming = await connection.open_consuming("work", prefetch=10)
    happened: list[str] = []

    async def note(what: str, doing: Awaitable[object]) -> None:
        await doing
        happened.append(what)

    tasks = [
        asyncio.create_task(note("received", consuming.receive())),
        asyncio.create_task(note("confirmed", publishing.publish(ORDER))),
    ]
    when_stored(broker, lambda _: happened.append("stored"))
    await asyncio.gather(*tasks)

    assert happened[0] == "stored"
    assert sorted(happened[1:]) == ["confirmed", "received"]


@pytest.mark.asyncio
async def test_a_publisher_cannot_change_a_parcels_headers_afterwards() -> None:
    broker = await standing()
    said: dict[str, str | int] = {"moor-reason": "before"}
    await publish(broker, Parcel(TOWN, "work", b"{}", headers=said))

    said["moor-reason"] = "after"

    connection = await broker.as_user().connect()
    (delivery,) = await (await connection.open_consuming("work", prefetch=1)).receive()
    assert delivery.parcel.headers == {"moor-reason": "before"}


@pytest.mark.asyncio
async def test_only_bytes_are_stored() -> None:
    broker = await standing()

    with pytest.raises(TypeError, match="must be bytes, got bytearray"):
        await publish(broker, Parcel(TOWN, "work", bytearray(b"{}")))  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_an_oversized_parcel_is_refused_with_its_size() -> None:
    broker = await standing()

    with pytest.raises(Refusal, match=f"{BODY_BYTES_MAX + 1} bytes"):
        await publish(broker, Parcel(TOWN, "work", b"x" * (BODY_BYTES_MAX + 1)))


@pytest.mark.asyncio
async def test_redelivered_parcels_return_to_their_old_place() -> None:
    broker = await standing()
    connection = await broker.as_user().connect()
    for number in range(6):
        await publish(broker, Parcel(TOWN, "work", b"%d" % number))
    one = await connection.open_consuming("work", prefetch=2)
    other = await connection.open_consuming("work", prefetch=2)
    await other.receive()

    await other.close()
    await one.close()

    last = await connection.open_consuming("work", prefetch=6)
    assert [delivery.parcel.body for delivery in await last.receive()] == [b"%d" % n for n in range(6)]


@pytest.mark.asyncio
async def test_connections_that_are_cut_together_do_not_get_each_others_parcels() -> None:
    broker = await standing()
    for _ in range(2):
        connection = await broker.as_user().connect()
        await connection.open_consuming("work", prefetch=10)
    for _ in range(4):
        await publish(broker)

    broker.cut_connections()

    consuming = await (await broker.as_user().connect()).open_consuming("work", prefetch=10)
    assert [delivery.returns for delivery in await consuming.receive()] == [1] * 4


@pytest.mark.asyncio
async def test_a_restart_forgets_transient_objects() -> None:
    broker = await standing()
    await publish(broker, Parcel(TOWN, "work", b"kept"))
    await publish(broker, Parcel(TOWN, "work", b"not kept", persistent=False))

    broker.restart()

    assert await depth(broker, "work") == 1


@pytest.mark.asyncio
async def test_a_dead_letter_waits_in_its_queue_until_its_target_has_room() -> None:
    # RabbitMQ does so too, but waits three minutes before it tries again.
    broker = await standing()
    connection = await broker.as_user().connect()
    await publish(broker)
    consuming = await connection.open_consuming("work", prefetch=1)
    for _ in range(DELIVERIES_MAX_LEAST + 1):
        (delivery,) = await consuming.receive()
        await consuming.give_back(delivery.tag)

    await connection.declare(Objects(queues=(DEAD_LETTERS,)))

    (dead,) = await (await connection.open_consuming(DEAD_QUEUE, prefetch=1)).receive()
    assert dead.parcel.headers[message.BROKER_QUEUE] == "work"
    assert dead.parcel.headers[message.BROKER_EXCHANGE] == TOWN


@pytest.mark.asyncio
async def test_dead_letters_that_cannot_move_fill_their_queue() -> None:
    broker = await standing(
        Queue("small", QueueKind.WORK, (Binding(TOWN, "small"),)),
        limits=Limits(work_length_max=1, deliveries_max=DELIVERIES_MAX_LEAST),
    )
    small = Parcel(TOWN, "small", b"{}")
    await publish(broker, small)
    consuming = await (await broker.as_user().connect()).open_consuming("small", prefetch=1)
    for _ in range(DELIVERIES_MAX_LEAST + 1):
        (delivery,) = await consuming.receive()
        await consuming.give_back(delivery.tag)

    assert await publish(broker, small) is Receipt.REFUSED


@pytest.mark.asyncio
async def test_a_blocked_broker_does_not_hear_the_acknowledgements_of_a_connection_that_publishes() -> None:
    broker = await standing()
    await publish(broker)
    connection = await broker.as_user().connect()
    publishing = await connection.open_publishing()
    consuming = await connection.open_consuming("work", prefetch=1)
    (delivery,) = await consuming.receive()
    broker.block("low on memory")

    waiting = [
        asyncio.create_task(publishing.publish(ORDER)),
        asyncio.create_task(consuming.acknowledge(delivery.tag)),
    ]
    done, _ = await asyncio.wait(waiting, timeout=0.01)
    assert not done

    broker.block("")
    await asyncio.gather(*waiting)


@pytest.mark.asyncio
async def test_a_tag_that_is_not_held_ends_its_consumer_and_no_other() -> None:
    broker = await standing()
    await publish(broker)
    connection = await broker.as_user().connect()
    wrong = await connection.open_consuming("work", prefetch=1)
    (delivery,) = await wrong.receive()

    with pytest.raises(Refusal, match="delivery 9 of queue 'work' is not held"):
        await wrong.acknowledge(9)

    with pytest.raises(ConsumerCancelled):
        await wrong.acknowledge(delivery.tag)
    right = await connection.open_consuming("work", prefetch=1)
    assert [delivery.returns for delivery in await right.receive()] == [1]


@pytest.mark.asyncio
async def test_a_broker_with_users_refuses_unknown_ones() -> None:
    broker = MemoryBroker()
    await broker.as_user("anybody").connect()

    broker.users["moor-placement"] = Rights("moor-placement")

    await broker.as_user("moor-placement").connect()
    with pytest.raises(AccessRefused, match="'anybody' is unknown to this broker"):
        await broker.as_user("anybody").connect()


def test_time_moves_only_with_the_loop_s_clock() -> None:
    async def hold_too_long() -> float:
        loop = asyncio.get_running_loop()
        broker = await standing()
        await publish(broker)
        connection = await broker.as_user().connect()
        consuming = await connection.open_consuming("work", prefetch=1)
        await consuming.receive()
        with pytest.raises(ConsumerCancelled, match="longer than 1800 s"):
            await consuming.receive()
        return loop.time()

    assert in_jumping_time(hold_too_long()) == pytest.approx(1800)


def test_a_consumer_is_as_late_as_its_oldest_delivery() -> None:
    async def hold(second_at: float) -> float:
        loop = asyncio.get_running_loop()
        broker = await standing()
        connection = await broker.as_user().connect()
        consuming = await connection.open_consuming("work", prefetch=2)
        await publish(broker)
        (first,) = await consuming.receive()
        await asyncio.sleep(second_at)
        await publish(broker)
        await consuming.receive()
        await consuming.acknowledge(first.tag)
        with pytest.raises(ConsumerCancelled):
            await consuming.receive()
        return loop.time()

    assert in_jumping_time(hold(1000)) == pytest.approx(2800)


def test_an_unused_feed_lives_as_long_as_was_said() -> None:
    async def leave_alone(seconds: float) -> int:
        broker = await standing()
        connection = await broker.as_user().connect()
        consuming = await connection.open_consuming("feed", prefetch=1)
        await asyncio.sleep(1000)
        await consuming.close()
        await asyncio.sleep(seconds)
        return await depth(broker, "feed")

    assert in_jumping_time(leave_alone(59.9)) == 0
    with pytest.raises(NotFound):
        in_jumping_time(leave_alone(60.1))


def test_a_run_can_be_repeated() -> None:
    async def run() -> list[tuple[int, bytes, int]]:
        broker = await standing()
        connection = await broker.as_user().connect()
        seen: list[tuple[int, bytes, int]] = []

        async def consume(who: int) -> None:
            while len(seen) < 60:
                consuming = await connection.open_consuming("work", prefetch=who + 1)
                for delivery in await consuming.receive():
                    seen.append((who, delivery.parcel.body, delivery.returns))
                    if len(seen) % 3 == 0:
                        await consuming.give_back(delivery.tag)
                    else:
                        await consuming.acknowledge(delivery.tag)
                await consuming.close()

        async def produce() -> None:
            for number in range(50):
                await publish(broker, Parcel(TOWN, "work", b"%d" % number))

        await asyncio.gather(produce(), *map(consume, range(3)))
        return seen

    assert in_jumping_time(run()) == in_jumping_time(run())


@pytest.mark.parametrize("trap", ["#.#", "#.a.#.a.#.a.#", "#.*.#.*.#.*.#"])
def test_no_pattern_takes_long_to_match(trap: str) -> None:
    assert matches(words_of(trap), ("a",) * 300)
