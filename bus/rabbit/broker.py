"""Connects to RabbitMQ, explains failures, and has the connection of the broker port. Only this file imports aio-pika."""

import asyncio
import logging
import re
import secrets
import ssl
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import aio_pika
import aiormq
from aio_pika.abc import ConnectionParameter
from aio_pika.connection import make_url
from pamqp import commands
from pamqp.base import Frame
from yarl import URL

from bus.broker import Pace, require_prefetch
from bus.definitions import arguments_of
from bus.queues import Binding, Limits, Objects, Queue, QueueKind
from bus.rabbit.channels import QUIET_S, RabbitConsuming, RabbitPublishing
from bus.rabbit.connection import RabbitWire, bounded
from bus.rabbit.undocumented import decode_leniently
from kit.errors import AccessRefused, ConnectionLost, Operational
from kit.tls import BadCertificate, TlsClient, client_tls
from kit.urls import PASSWORD_FILE, BadSecretFile, HostTurns, each_host, read_secret

# aiormq raises what it logs; its log would repeat that with tracebacks at every reconnect.
logging.getLogger("aiormq").setLevel(logging.CRITICAL)
decode_leniently()

HEARTBEAT_S = 10
CONNECT_S_MAX = 15.0
# The client library's errors for a connection that ends in the handshake or right after it.
_HUNG_UP = re.compile("reset|closed|EOF|IncompatibleProtocol|StopAsyncIteration", re.IGNORECASE)
# The arguments of client_tls, by their names in the URL's query.
_TLS_FILES = {"ca_file": "cafile", "cert_file": "certfile", "key_file": "keyfile"}
_TLS_OF_THE_LIBRARY = ("capath", "cadata", "no_verify_ssl")
NAMED_BY_RABBITMQ = (QueueKind.ANSWERS, QueueKind.FEED)


class RabbitConnection(RabbitWire):
    """The connection of the broker port: what is done over the wire with queues and exchanges."""

    def __init__(
        self,
        client: aiormq.Connection,
        name: str,
        user: str,
        feeds: dict[str, str],
        quiet_s: float,
        *,
        hang_up: Callable[[], Coroutine[Any, Any, None]],
        arrived: Callable[[int], None],
    ) -> None:
        """`feeds` maps this process's feeds to the names that RabbitMQ gave their queues.

        Feeds outlive a connection, so all connections of a process have the same `feeds`. A consumer that has received nothing
        for `quiet_s` consumes its queue anew.
        """
        super().__init__(client, name, hang_up=hang_up, arrived=arrived)
        self._quiet_s = quiet_s
        self.user = user
        self._feeds = feeds
        self._answers: dict[str, str] = {}

    async def declare(self, objects: Objects) -> None:
        absent = {
            exchange.name
            for exchange in objects.exchanges
            if exchange.foreign
            and not await self.stands(commands.Exchange.Declare(exchange=exchange.name, passive=True))
        }
        named = {queue.name: await self._named(queue, objects.limits) for queue in objects.queues}
        await self.ask_aside(
            *(
                commands.Exchange.Declare(
                    exchange=each.name, exchange_type="topic", durable=each.durable, nowait=True
                )
                for each in objects.exchanges
                if not each.foreign
            ),
            *(
                commands.Queue.Declare(
                    queue=queue.name,
                    durable=True,
                    arguments={**arguments_of(queue, objects.limits)},
                    nowait=True,
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
        await self.ask_aside(*(_bind(self._name_of(queue), binding) for binding in bindings))

    async def open_publishing(self) -> RabbitPublishing:
        return RabbitPublishing(self, await self.channel(confirms=True), self.user)

    async def open_consuming(self, queue: str, prefetch: int) -> RabbitConsuming:
        require_prefetch(prefetch)
        channel = await self.channel()
        named = self._name_of(queue)
        consuming = RabbitConsuming(
            self, channel, queue, named=named, prefetch=prefetch, quiet_s=self._quiet_s
        )
        try:
            await self.answered(channel.basic_qos(prefetch_count=prefetch), channel)
            await consuming.consume(named)
        except BaseException:
            await consuming.close()
            raise
        return consuming

    async def depth(self, queue: str) -> int:
        return (await self._look_at(queue)).message_count or 0

    async def consumers(self, queue: str) -> int:
        return (await self._look_at(queue)).consumer_count or 0

    async def _look_at(self, queue: str) -> commands.Queue.DeclareOk:
        passive = commands.Queue.Declare(queue=self._name_of(queue), passive=True)
        return cast("commands.Queue.DeclareOk", await self.ask_aside(question=passive))

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
        if name is None or not await self.stands(commands.Queue.Declare(queue=name, passive=True)):
            declared = commands.Queue.Declare(exclusive=is_answers, arguments={**arguments_of(queue, limits)})
            named = cast("commands.Queue.DeclareOk", await self.ask_aside(question=declared))
            name = names[queue.name] = named.queue or ""
        return name


def _bind(queue: str, binding: Binding) -> Frame:
    return commands.Queue.Bind(
        queue=queue, exchange=binding.exchange, routing_key=binding.pattern, nowait=True
    )


# Messages wait for half of it on average.
REST_S = 0.010
# A read that brings so many bytes needs no rest: they have gathered already.
LARGE_BYTES = 64 * 1024


class RestingTransports(aiormq.TransportFactory):
    """Opens the transport of one connection. Its reading rests while many small messages come: for them, waking up to read is most of the
    cost (docs/benchmarks.md).
    """

    _transport: asyncio.ReadTransport

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pace = Pace()
        # The messages that have arrived in this turn of the event loop, and their bytes.
        self._messages = self._size = 0

    async def create(self, url: URL, **kwargs: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        provider = kwargs.pop("ssl_context_provider")
        context = await provider.get_context() if url.scheme == "amqps" else None
        # Further arguments of the loop are in the URL, such as `happy_eyeballs_delay`.
        reader, writer = await asyncio.open_connection(url.host, url.port, ssl=context, **kwargs)
        self._transport = cast("asyncio.ReadTransport", writer.transport)
        return reader, writer

    def arrived(self, size: int) -> None:
        """Note that a message of so many bytes has been read."""
        if not self._messages:
            self._loop.call_soon(self._rest)
        self._messages += 1
        self._size += size

    def _rest(self) -> None:
        now_s, is_large = self._loop.time(), self._size >= LARGE_BYTES
        self._pace.arrived(now_s, self._messages)
        self._pace.begun(now_s)
        self._messages = self._size = 0
        if not (is_large or self._transport.is_closing()) and self._pace.wait_s(now_s, 0, REST_S):
            self._transport.pause_reading()
            self._loop.call_later(REST_S, self._read_again)

    def _read_again(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()


class RestingConnection(aio_pika.Connection):
    """Of aio-pika's, with one more argument for the connection below it."""

    PARAMETERS = (
        *aio_pika.Connection.PARAMETERS,
        ConnectionParameter("transport_factory", parser=lambda given: given, is_kwarg=True),
    )


class RabbitNode:
    """One node of a broker, by the URL that names it alone."""

    def __init__(self, url: str, connect_s_max: float) -> None:
        parts = urlsplit(url)
        made = make_url(url) if "heartbeat=" in parts.query else make_url(url, heartbeat=HEARTBEAT_S)
        self._password_file = made.query.get(PASSWORD_FILE, "")
        self._url = made.without_query_params(PASSWORD_FILE)
        self._tls: ssl.SSLContext | None = None
        own = made.query.get("certfile", "")
        speaks_tls = made.scheme == "amqps"
        self._tls_client = TlsClient(own, "certfile in the URL", "cafile in the URL", speaks_tls)
        self._connect_s_max = connect_s_max
        self.user = unquote(parts.username or "guest")
        # For messages, without the password.
        host = f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname
        self._name = f"RabbitMQ at {host}{parts.path} as {self.user!r}"

    async def connect(self, feeds: dict[str, str], quiet_s: float) -> RabbitConnection:
        transports = RestingTransports()
        connection = RestingConnection(
            self._with_password(), ssl_context=await self._tls_context(), transport_factory=transports
        )
        connecting = asyncio.ensure_future(connection.connect(timeout=self._connect_s_max))
        try:
            await asyncio.shield(connecting)
        except BaseException as problem:  # noqa: BLE001 - raised again below
            # Cancelled at its last moment, the library would forget a connection that is open: let it end first.
            await bounded(connecting)
            # Close it now; otherwise the destructor closes it later.
            await bounded(connection.close())
            raise self._explained(problem) from None
        if connection.transport is None:
            raise ConnectionLost(f"{self._name}: closed the connection at once")
        client = cast("aiormq.Connection", connection.transport.connection)
        return RabbitConnection(
            client,
            self._name,
            self.user,
            feeds,
            quiet_s,
            hang_up=connection.close,
            arrived=transports.arrived,
        )

    def _with_password(self) -> URL:
        if not self._password_file:
            return self._url
        try:
            return self._url.with_password(read_secret(self._password_file))
        except BadSecretFile as problem:
            raise ConnectionLost(f"{self._name}: {problem}") from None

    async def _tls_context(self) -> ssl.SSLContext | None:
        """The certificates that the URL names. None leaves other parts of its query to the client library."""
        query = self._url.query
        if self._url.scheme != "amqps" or any(each in query for each in _TLS_OF_THE_LIBRARY):
            return None
        if self._tls is None:
            files = [query.get(name, "") for name in _TLS_FILES.values()]
            try:
                # The system's authorities are a long file.
                self._tls = await asyncio.to_thread(client_tls, *files)
            except BadCertificate as wrong:
                raise ConnectionLost(
                    f"{self._name}: {_TLS_FILES[wrong.argument]} in the URL is {wrong.file}: {wrong.why}"
                ) from None
        return self._tls

    def _explained(self, problem: BaseException) -> BaseException:
        match problem:
            case aiormq.exceptions.ProbableAuthenticationError():
                return AccessRefused(f"{self._name}: {self._why_refused()}")
            case aiormq.exceptions.InvalidFrameError() if "Connection.OpenOk" in str(problem):
                # The client cannot tell a wrong virtual host from a broker that is stopping or a limit on connections.
                return ConnectionLost(
                    f"{self._name}: closed while opening the virtual host; does it exist, has this user access to it, "
                    "and is the user's limit of connections not reached?"
                )
            case StopAsyncIteration() if self._url.scheme != "amqps":
                # This is how the client reports an end of the stream.
                return ConnectionLost(f"{self._name}: closed the connection before it answered")
            case TimeoutError():
                return ConnectionLost(f"{self._name} did not answer within {self._connect_s_max:.0f} s")
            case aiormq.exceptions.AMQPError() | OSError() | EOFError() | StopAsyncIteration():
                hung_up = _HUNG_UP.search(repr(problem)) is not None
                why = self._tls_client.explained(problem, hung_up=hung_up)
                return ConnectionLost(
                    f"{self._name}: {why}" if why else f"cannot connect to {self._name}: {problem!r}"
                )
        return problem

    def _why_refused(self) -> str:
        if self._url.query.get("auth", "").lower() == "external":
            return (
                "the broker takes no login by this certificate; is the plugin rabbitmq_auth_mechanism_ssl enabled, with EXTERNAL in "
                f"auth_mechanisms, and {self.user!r} a user there (`moor broker declare`) and the name in the certificate?"
            )
        where = f"the file {self._password_file}" if self._password_file else "MOOR_BUS_URL"
        return f"wrong password, or no such user; correct {where}, or the user on the broker (`moor broker declare`)"


class RabbitBroker:
    """A broker at an address: `amqp://user:password@host:port/vhost`, or `amqps://` with the CA's file in `?cafile=`. The nodes
    of a cluster are named with commas: `amqp://user:password@a,b:5673,c/vhost`.

    Each process begins at another node, so that the nodes share the load.
    """

    def __init__(self, url: str, *, first: int | None = None, quiet_s: float = QUIET_S) -> None:
        """A consumer that has received nothing for `quiet_s` makes sure that its queue knows it."""
        self._quiet_s = quiet_s
        urls = each_host(url)
        self._nodes = [RabbitNode(each, CONNECT_S_MAX / len(urls)) for each in urls]
        self._turns = HostTurns(len(urls), secrets.randbelow(len(urls)) if first is None else first)
        self.user = self._nodes[0].user
        self._feeds: dict[str, str] = {}

    async def connect(self) -> RabbitConnection:
        """A connection to the first node that takes one. The nodes whose connections were lost last are tried last."""
        problems: list[Operational] = []
        for number in self._turns.order():
            try:
                connection = await self._nodes[number].connect(self._feeds, self._quiet_s)
            except (ConnectionLost, AccessRefused) as problem:
                self._turns.failed(number)
                problems.append(problem)
            else:
                connection.on_lost(partial(self._turns.failed, number))
                return connection
        raise _of_all(problems)


def _of_all(problems: Sequence[Operational]) -> Operational:
    """One error for all nodes. Access is only refused if every node refuses it: a node that is away may know the user."""
    if len(problems) == 1:
        return problems[0]
    is_refused = all(isinstance(each, AccessRefused) for each in problems)
    kind = AccessRefused if is_refused else ConnectionLost
    return kind(f"none of {len(problems)} nodes takes a connection: {'; '.join(map(str, problems))}")
