"""Connects to RabbitMQ, and explains failures. Only this file imports aio-pika."""

import asyncio
import logging
import re
import secrets
import ssl
from collections.abc import Sequence
from functools import partial
from typing import cast
from urllib.parse import unquote, urlsplit

import aio_pika
import aiormq
from aio_pika.connection import make_url
from yarl import URL

from bus.rabbit.connection import RabbitConnection
from bus.rabbit.consuming import QUIET_S
from bus.rabbit.decoding import decode_leniently
from bus.rabbit.endings import bounded
from bus.rabbit.streams import Streams
from bus.rabbit.wire import RabbitWire
from kit.errors import PASSWORD_FILE, AccessRefused, BadSecretFile, ConnectionLost, Operational, read_secret
from kit.times import HostTurns, each_host
from kit.tls import BadCertificate, client_tls, refused_certificate, why_hung_up

# aiormq raises what it logs; its log would repeat that with tracebacks at every reconnect.
logging.getLogger("aiormq").setLevel(logging.CRITICAL)
decode_leniently()

HEARTBEAT_S = 10
CONNECT_S_MAX = 15.0
# The TLS library's error for a certificate, which the AMQP client passes on as text.
_UNTRUSTED = re.compile(r"CERTIFICATE_VERIFY_FAILED.*?verify failed: (?P<why>.*?)\.? \(_ssl")
# The client library's errors for a connection that ends in the handshake or right after it.
_HUNG_UP = re.compile("reset|closed|EOF|IncompatibleProtocol|StopAsyncIteration", re.IGNORECASE)
# The arguments of client_tls, by their names in the URL's query.
_TLS_FILES = {"ca_file": "cafile", "cert_file": "certfile", "key_file": "keyfile"}
_TLS_OF_THE_LIBRARY = ("capath", "cadata", "no_verify_ssl")


class RabbitNode:
    """One node of a broker, by the URL that names it alone."""

    def __init__(self, url: str, connect_s_max: float) -> None:
        parts = urlsplit(url)
        made = make_url(url) if "heartbeat=" in parts.query else make_url(url, heartbeat=HEARTBEAT_S)
        self._password_file = made.query.get(PASSWORD_FILE, "")
        self._url = made.without_query_params(PASSWORD_FILE)
        self._tls: ssl.SSLContext | None = None
        self._connect_s_max = connect_s_max
        self.user = unquote(parts.username or "guest")
        # For messages, without the password.
        host = f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname
        self._name = f"RabbitMQ at {host}{parts.path} as {self.user!r}"

    async def connect(self) -> RabbitWire:
        connection = aio_pika.Connection(self._with_password(), ssl_context=await self._tls_context())
        # aio-pika passes these to aiormq's connection, and has no argument of its own for this one.
        streams = connection.kwargs["transport_factory"] = Streams()
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
        return RabbitWire(client, streams, self._name, hang_up=connection.close)

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
                return ConnectionLost(self._not_connected(problem))
        return problem

    def _why_refused(self) -> str:
        if self._url.query.get("auth", "").lower() == "external":
            return (
                "the broker takes no login by this certificate; is the plugin rabbitmq_auth_mechanism_ssl enabled, with EXTERNAL in "
                f"auth_mechanisms, and {self.user!r} a user there (`moor broker declare`) and the name in the certificate?"
            )
        where = f"the file {self._password_file}" if self._password_file else "MOOR_BUS_URL"
        return f"wrong password, or no such user; correct {where}, or the user on the broker (`moor broker declare`)"

    def _not_connected(self, problem: BaseException) -> str:
        said = str(problem)
        if untrusted := _UNTRUSTED.search(said):
            why = untrusted["why"]
            return (
                f"{self._name}: its certificate is not trusted: {why}; cafile in the URL names the authority"
            )
        if refused := refused_certificate(said):
            mine = self._url.query.get("certfile", "")
            shown = f"the certificate {mine}" if mine else "a client without a certificate"
            return f"{self._name}: it refuses {shown}: {refused}; certfile in the URL names the certificate"
        if self._url.scheme == "amqps" and _HUNG_UP.search(repr(problem)):
            why = why_hung_up(self._url.query.get("certfile", ""), "certfile in the URL")
            return f"{self._name}: {why} ({problem!r})"
        return f"cannot connect to {self._name}: {problem!r}"


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
                wire = await self._nodes[number].connect()
            except (ConnectionLost, AccessRefused) as problem:
                self._turns.failed(number)
                problems.append(problem)
            else:
                wire.on_lost(partial(self._turns.failed, number))
                return RabbitConnection(wire, self.user, self._feeds, self._quiet_s)
        raise _of_all(problems)


def _of_all(problems: Sequence[Operational]) -> Operational:
    """One error for all nodes. Access is only refused if every node refuses it: a node that is away may know the user."""
    if len(problems) == 1:
        return problems[0]
    is_refused = all(isinstance(each, AccessRefused) for each in problems)
    kind = AccessRefused if is_refused else ConnectionLost
    return kind(f"none of {len(problems)} nodes takes a connection: {'; '.join(map(str, problems))}")
