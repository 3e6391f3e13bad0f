"""Channels of the RabbitMQ client, beside a node that says what a test tells it to; and when reading rests."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest
from pamqp import commands
from pamqp.base import Frame
from pamqp.frame import FrameTypes, marshal, unmarshal
from pamqp.header import ContentHeader
from yarl import URL

from bus.broker import Publishing, Receipt
from bus.message import Parcel
from bus.queues import Objects, Queue, QueueKind
from bus.rabbit.broker import LARGE_BYTES, REST_S, RabbitBroker, RabbitConnection, RestingTransports
from bus.rabbit.rpc import ForeignExchange, ForeignQueue, RabbitRpc
from kit.errors import AccessRefused, ConnectionLost, ConsumerCancelled, OneWasRefused
from tests.unit.brokers.test_rabbit_connecting import open_virtual_host
from tests.waiting import at_most, until

PARCELS = 4
ANSWERS: Mapping[type[Frame], Sequence[Frame]] = {
    commands.Connection.Close: [commands.Connection.CloseOk()],
    commands.Channel.Open: [commands.Channel.OpenOk()],
    commands.Channel.Close: [commands.Channel.CloseOk()],
    commands.Confirm.Select: [commands.Confirm.SelectOk()],
    commands.Exchange.Declare: [commands.Exchange.DeclareOk()],
    commands.Queue.Declare: [commands.Queue.DeclareOk("calls", 0, 0)],
    commands.Queue.Bind: [commands.Queue.BindOk()],
    commands.Basic.Qos: [commands.Basic.QosOk()],
    commands.Basic.Consume: [commands.Channel.Close(403, "another reads it alone", 60, 20)],
}
CANCELS = {
    **ANSWERS,
    commands.Basic.Consume: [commands.Basic.ConsumeOk("its tag"), commands.Basic.Cancel("its tag")],
    commands.Basic.Cancel: [commands.Basic.CancelOk("its tag")],
}


class ScriptedNode:
    """A node that opens channels, and says this when so many parcels have been published. None: it hangs up."""

    def __init__(
        self, says: Sequence[FrameTypes] | None, answers: Mapping[type[Frame], Sequence[Frame]] = ANSWERS
    ) -> None:
        self.declared: list[str] = []
        self._says = says
        self._answers = answers
        self._published = 0

    async def serve(self, read: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        await open_virtual_host(read, out)
        while head := await read.read(7):
            rest = await read.readexactly(int.from_bytes(head[3:]) + 1)
            _, channel, frame = unmarshal(head + rest)
            if isinstance(frame, commands.Queue.Declare):
                self.declared.append(frame.queue)
            for answer in self._answers.get(type(frame), ()):  # type: ignore[arg-type]
                out.write(marshal(answer, channel))
            self._published += isinstance(frame, commands.Basic.Publish)
            if self._published < PARCELS:
                continue
            if self._says is None:
                break
            self._published = 0
            for each in self._says:
                out.write(marshal(each, channel))
        out.close()


@asynccontextmanager
async def broker_of(node: ScriptedNode) -> AsyncIterator[RabbitBroker]:
    async with await asyncio.start_server(node.serve, "127.0.0.1", 0) as door:
        port = door.sockets[0].getsockname()[1]
        yield RabbitBroker(f"amqp://guest:guest@127.0.0.1:{port}/?heartbeat=0")


@asynccontextmanager
async def publishing_to(node: ScriptedNode) -> AsyncIterator[tuple[RabbitConnection, Publishing]]:
    async with broker_of(node) as broker:
        connection = await broker.connect()
        yield connection, await connection.open_publishing()
        await connection.close()


def published(publishing: Publishing) -> list[asyncio.Task[Receipt]]:
    return [asyncio.create_task(publishing.publish(Parcel("e", "k", b"1"))) for _ in range(PARCELS)]


def returned(number: int) -> tuple[FrameTypes, ...]:
    properties = commands.Basic.Properties(message_id=str(number))
    back = commands.Basic.Return(reply_code=312, reply_text="NO_ROUTE", exchange="e", routing_key="k")
    return back, ContentHeader(body_size=0, properties=properties), commands.Basic.Ack(number)


@pytest.mark.parametrize(
    ("frame", "receipt"),
    [
        (commands.Basic.Ack(3, multiple=True), Receipt.CONFIRMED),
        (commands.Basic.Nack(3, multiple=True), Receipt.REFUSED),
    ],
    ids=["confirmed", "refused"],
)
async def test_one_frame_answers_for_all_parcels_up_to_its_number(frame: Frame, receipt: Receipt) -> None:
    async with publishing_to(ScriptedNode((frame, *returned(4)))) as (_, publishing):
        assert await asyncio.wait_for(asyncio.gather(*published(publishing)), 30) == [
            *[receipt] * 3,
            Receipt.UNROUTABLE,
        ]


async def all_lost(sent: Sequence[asyncio.Task[Receipt]]) -> bool:
    return {*map(type, await asyncio.wait_for(asyncio.gather(*sent, return_exceptions=True), 30))} == {
        ConnectionLost
    }


@pytest.mark.parametrize("is_closed_here", [False, True], ids=["the node hangs up", "this end closes"])
async def test_those_who_wait_for_a_confirm_are_told_that_the_connection_has_ended(
    *, is_closed_here: bool
) -> None:
    async with publishing_to(ScriptedNode(() if is_closed_here else None)) as (connection, publishing):
        sent = published(publishing)
        await asyncio.sleep(0.05)
        if is_closed_here:
            await connection.close()
        assert await all_lost(sent)
        with pytest.raises(ConnectionLost):
            await publishing.publish(Parcel("e", "k", b"1"))


async def test_a_confirm_that_stays_away_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library passes over an answer for several parcels if it does not know the last of them."""
    monkeypatch.setattr("bus.rabbit.connection.ANSWER_S_MAX", 0.2)
    async with publishing_to(ScriptedNode((commands.Basic.Ack(9, multiple=True),))) as (_, publishing):
        assert await all_lost(published(publishing))
        with pytest.raises(ConnectionLost):
            await publishing.publish(Parcel("e", "k", b"1"))


async def test_of_many_under_way_none_is_given_up_when_the_node_refuses_one() -> None:
    async with publishing_to(ScriptedNode((commands.Channel.Close(404, "not found", 60, 40),))) as (
        _,
        publishing,
    ):
        told = await asyncio.wait_for(asyncio.gather(*published(publishing), return_exceptions=True), 30)
    assert [*map(type, told)] == [OneWasRefused] * PARCELS


async def test_one_who_waits_for_a_confirm_may_be_cancelled() -> None:
    async with publishing_to(ScriptedNode((commands.Basic.Ack(4, multiple=True),))) as (_, publishing):
        first, *others = published(publishing)
        await asyncio.sleep(0)
        first.cancel()
        assert await asyncio.wait_for(asyncio.gather(*others), 30) == [Receipt.CONFIRMED] * 3
        assert first.cancelled()


async def test_an_rpc_that_is_refused_a_queue_leaves_no_channel_open() -> None:
    """The node takes ten channels at most."""
    async with publishing_to(ScriptedNode(())) as (connection, _):
        for _ in range(12):
            with pytest.raises(AccessRefused):
                await RabbitRpc.open(
                    connection, [ForeignQueue("calls", ForeignExchange("theirs"), "call")], 1
                )


async def test_an_answer_to_a_caller_of_an_rpc_that_has_gone_has_not_arrived() -> None:
    async with publishing_to(ScriptedNode((commands.Basic.Ack(3, multiple=True), *returned(4)))) as (here, _):
        rpc = await RabbitRpc.open(here, [], 1)
        answered = asyncio.gather(*[rpc.reply("of a caller", b"{}") for _ in range(PARCELS)])
        assert await asyncio.wait_for(answered, 30) == [*[Receipt.CONFIRMED] * 3, Receipt.UNROUTABLE]


async def test_a_reader_is_told_that_the_node_has_cancelled_its_consumer() -> None:
    async with publishing_to(ScriptedNode((), CANCELS)) as (connection, _):
        consuming = await connection.open_consuming("calls", prefetch=1)
        with pytest.raises(ConsumerCancelled):
            await asyncio.wait_for(consuming.receive(), at_most(30))


async def test_a_connection_reads_on_in_the_feed_of_the_one_before() -> None:
    node, feed = ScriptedNode(()), Objects(queues=(Queue("feed.p1", QueueKind.FEED),))
    async with broker_of(node) as broker:
        for _ in range(2):
            connection = await broker.connect()
            await connection.declare(feed)
            await connection.close()

    # The node names the first, and is asked whether it is still there.
    assert node.declared == ["", "calls"]


# Rests


class FakeSocket(asyncio.Transport):
    is_paused = is_closed = False

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None:
        assert not self.is_closed
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


@asynccontextmanager
async def resting_over(
    socket: FakeSocket, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[RestingTransports]:
    """The reading from this socket."""
    read = asyncio.StreamReader()
    out = asyncio.StreamWriter(socket, asyncio.StreamReaderProtocol(read), read, asyncio.get_running_loop())

    async def opened(*_: object, **__: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return read, out

    monkeypatch.setattr("asyncio.open_connection", opened)
    transports = RestingTransports()
    await transports.create(URL("amqp://here:1"), ssl_context_provider=None)
    yield transports
    out.close()


async def rests_within(reads: int, size: int, socket: FakeSocket, transports: RestingTransports) -> bool:
    """Does reading rest while so many messages of this size come, one with each read?"""
    for _ in range(reads):
        transports.arrived(size)
        await asyncio.sleep(0)
        if socket.is_paused:
            return True
    return False


@pytest.mark.parametrize("is_closed", [False, True])
async def test_reading_rests_while_many_small_messages_come_and_then_goes_on(
    monkeypatch: pytest.MonkeyPatch, *, is_closed: bool
) -> None:
    socket = FakeSocket()
    async with resting_over(socket, monkeypatch) as transports:
        assert await rests_within(1_000, 100, socket, transports)
        socket.is_closed = is_closed
        await asyncio.sleep(3 * REST_S)

        assert socket.is_paused == is_closed


async def test_reading_does_not_rest_for_large_messages_and_soon_rests_no_more_where_nothing_comes_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    socket, rested = FakeSocket(), 0
    async with resting_over(socket, monkeypatch) as transports:
        assert not await rests_within(1_000, LARGE_BYTES, socket, transports)
        # Its sender waits for answers: after a rest there is one message.
        while await rests_within(200, 100, socket, transports):
            rested += 1
            assert rested < 20
            await until(lambda: not socket.is_paused, "it has rested")

    assert rested
