"""A connection to RabbitMQ with the operations of bus/broker.py: it declares objects, opens channels, and asks the
broker for the state of queues.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from pamqp import commands
from pamqp.base import Frame
from pamqp.frame import FrameTypes

from bus.broker import require_prefetch
from bus.definitions import arguments_of
from bus.queues import Binding, Limits, Objects, Queue, QueueKind
from bus.rabbit.channel import Listener
from bus.rabbit.consuming import QUIET_S, RabbitConsuming
from bus.rabbit.publishing import RabbitPublishing
from bus.rabbit.rpc import ForeignQueue, RabbitRpc, open_rpc
from bus.rabbit.wire import RabbitWire
from kit.errors import NotFound

NAMED_BY_RABBITMQ = (QueueKind.ANSWERS, QueueKind.FEED)


class RabbitConnection:
    def __init__(self, wire: RabbitWire, user: str, feeds: dict[str, str], quiet_s: float = QUIET_S) -> None:
        """`feeds` maps this process's feeds to the names that RabbitMQ gave their queues.

        Feeds outlive a connection, so all connections of a process have the same `feeds`. A consumer that has received nothing
        for `quiet_s` consumes its queue anew.
        """
        self._quiet_s = quiet_s
        self._wire = wire
        self.user = user
        self._feeds = feeds
        self._answers: dict[str, str] = {}

    @property
    def blocked(self) -> str:
        return self._wire.blocked

    @property
    def hands_over(self) -> bool:
        return False

    async def until_unblocked(self) -> None:
        await self._wire.until_unblocked()

    async def declare(self, objects: Objects) -> None:
        absent = {
            exchange.name
            for exchange in objects.exchanges
            if exchange.foreign
            and not await self._stands(commands.Exchange.Declare(exchange=exchange.name, passive=True))
        }
        named = {queue.name: await self._named(queue, objects.limits) for queue in objects.queues}
        await self._ask_aside(
            *(
                commands.Exchange.Declare(exchange=each.name, exchange_type="topic", durable=each.durable)
                for each in objects.exchanges
                if not each.foreign
            ),
            *(
                commands.Queue.Declare(
                    queue=queue.name, durable=True, arguments=_arguments_of(queue, objects.limits)
                )
                for queue in objects.queues
                if queue.kind not in NAMED_BY_RABBITMQ
            ),
            *(
                _bind(named[queue.name], binding)
                for queue in objects.queues
                for binding in queue.bindings
                if binding.exchange not in absent
            ),
        )

    async def bind(self, queue: str, bindings: Sequence[Binding]) -> None:
        await self._ask_aside(*(_bind(self._name_of(queue), binding) for binding in bindings))

    async def open_publishing(self) -> RabbitPublishing:
        publishing = RabbitPublishing(self._wire, self.user)
        publishing.channel = await self._wire.open(publishing, commands.Confirm.Select())
        return publishing

    async def open_consuming(self, queue: str, prefetch: int) -> RabbitConsuming:
        require_prefetch(prefetch)
        consuming = RabbitConsuming(queue, prefetch, partial(self._consume_anew, queue), self._quiet_s)
        consuming.channel = await self._wire.open(
            consuming,
            commands.Basic.Qos(prefetch_count=prefetch),
            commands.Basic.Consume(queue=self._name_of(queue)),
        )
        return consuming

    async def _consume_anew(self, queue: str, consuming: RabbitConsuming) -> None:
        if self._wire.blocked:
            return
        # To cancel the consumer of a queue that is gone would cost the whole connection.
        if not await self._stands(commands.Queue.Declare(queue=self._name_of(queue), passive=True)):
            consuming.on_cancel()
            return
        await self._wire.answered(consuming.channel.consume_anew(self._name_of(queue)))

    async def open_rpc(self, queues: Sequence[ForeignQueue], prefetch: int) -> RabbitRpc:
        """Serve the RPC of another program that calls by these queues."""
        return await open_rpc(self._wire, self.user, queues, prefetch)

    async def depth(self, queue: str) -> int:
        return (await self._look_at(queue)).message_count or 0

    async def consumers(self, queue: str) -> int:
        return (await self._look_at(queue)).consumer_count or 0

    async def _look_at(self, queue: str) -> commands.Queue.DeclareOk:
        (declared,) = await self._ask_aside(commands.Queue.Declare(queue=self._name_of(queue), passive=True))
        return cast("commands.Queue.DeclareOk", declared)

    async def close(self) -> None:
        await self._wire.close()

    async def _ask_aside(self, *questions: Frame) -> Sequence[FrameTypes]:
        """Send requests on a channel of their own and return the replies. A refusal closes only that channel."""
        channel = await self._wire.open(Listener())
        try:
            asked = [channel.ask(question) for question in questions]
            return [await self._wire.answered(each) for each in asked]
        finally:
            await channel.close()

    async def _stands(self, passive: Frame) -> bool:
        try:
            await self._ask_aside(passive)
        except NotFound:
            return False
        return True

    def _name_of(self, queue: str) -> str:
        return self._answers.get(queue) or self._feeds.get(queue, queue)

    async def _named(self, queue: Queue, limits: Limits) -> str:
        """The name of this queue on RabbitMQ. A queue of answers or a feed is declared here, and RabbitMQ chooses its name.

        So no user needs the right to declare queues by name (bus/definitions.py says why). An answer queue belongs to
        its connection alone. A feed outlives its connection for a while.
        """
        if queue.kind not in NAMED_BY_RABBITMQ:
            return queue.name
        is_answers = queue.kind is QueueKind.ANSWERS
        names = self._answers if is_answers else self._feeds
        name = names.get(queue.name)
        if name is None or not await self._stands(commands.Queue.Declare(queue=name, passive=True)):
            (declared,) = await self._ask_aside(
                commands.Queue.Declare(exclusive=is_answers, arguments=_arguments_of(queue, limits))
            )
            name = names[queue.name] = cast("commands.Queue.DeclareOk", declared).queue or ""
        return name


def _bind(queue: str, binding: Binding) -> Frame:
    return commands.Queue.Bind(queue=queue, exchange=binding.exchange, routing_key=binding.pattern)


def _arguments_of(queue: Queue, limits: Limits) -> dict[str, Any]:
    return {**arguments_of(queue, limits)}
