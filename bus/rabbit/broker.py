"""Connects to RabbitMQ, and explains failures. Only this file imports aio-pika."""

import asyncio
import logging
import re
import secrets
from collections.abc import Sequence
from functools import partial
from typing import cast
from urllib.parse import unquote, urlsplit

import aio_pika
import aiormq
from aio_pika.connection import make_url

from bus.broker import AccessRefused, ConnectionLost
from bus.configuration.hosts import each_host
from bus.errors import Operational
from bus.host_turns import HostTurns
from bus.rabbit.connection import RabbitConnection
from bus.rabbit.decoding import decode_leniently
from bus.rabbit.endings import bounded
from bus.rabbit.wire import RabbitWire

# aiormq raises what it logs; its log would repeat that with tracebacks at every reconnect.
logging.getLogger("aiormq").setLevel(logging.CRITICAL)
decode_leniently()

HEARTBEAT_S = 10
CONNECT_S_MAX = 15.0
# The TLS library's error for a certificate, which the AMQP client passes on as text.
_UNTRUSTED = re.compile(r"CERTIFICATE_VERIFY_FAILED.*?verify failed: (?P<why>.*?)\.? \(_ssl")


class Node:
    """One node of a broker, by the URL that names it alone."""

    def __init__(self, url: str, connect_s_max: float) -> None:
        parts = urlsplit(url)
        self._url = url if "heartbeat=" in parts.query else str(make_url(url, heartbeat=HEARTBEAT_S))
        self._connect_s_max = connect_s_max
        self.user = unquote(parts.username or "guest")
        # For messages, without the password.
        host = f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname
        self._name = f"RabbitMQ at {host}{parts.path} as {self.user!r}"

    async def connect(self) -> RabbitWire:
        connection = aio_pika.Connection(make_url(self._url))
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
        return RabbitWire(
            cast("aiormq.Connection", connection.transport.connection), self._name, hang_up=connection.close
        )

    def _explained(self, problem: BaseException) -> BaseException:
        match problem:
            case aiormq.exceptions.ProbableAuthenticationError():
                return AccessRefused(
                    f"{self._name}: wrong password, or no such user; correct MOOR_BUS_URL, or the user on the broker (`moor broker declare`)"
                )
            case aiormq.exceptions.InvalidFrameError() if "Connection.OpenOk" in str(problem):
                # The client cannot tell a wrong virtual host from a broker that is stopping or a limit on connections.
                return ConnectionLost(
                    f"{self._name}: closed while opening the virtual host; does it exist, has this user access to it, "
                    "and is the user's limit of connections not reached?"
                )
            case StopAsyncIteration():
                # This is how the client reports an end of the stream.
                return ConnectionLost(f"{self._name}: closed the connection before it answered")
            case TimeoutError():
                return ConnectionLost(f"{self._name} did not answer within {self._connect_s_max:.0f} s")
            case aiormq.exceptions.AMQPError() | OSError() | EOFError():
                return ConnectionLost(self._not_connected(problem))
        return problem

    def _not_connected(self, problem: BaseException) -> str:
        untrusted = _UNTRUSTED.search(str(problem))
        if untrusted is None:
            return f"cannot connect to {self._name}: {problem!r}"
        why = untrusted["why"]
        return f"{self._name}: its certificate is not trusted: {why}; cafile in the URL names the authority"


class RabbitBroker:
    """A broker at an address: `amqp://user:password@host:port/vhost`, or `amqps://` with the CA's file in `?cafile=`. The nodes
    of a cluster are named with commas: `amqp://user:password@a,b:5673,c/vhost`.

    Each process begins at another node, so that the nodes share the load.
    """

    def __init__(self, url: str, *, first: int | None = None) -> None:
        urls = each_host(url)
        self._nodes = [Node(each, CONNECT_S_MAX / len(urls)) for each in urls]
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
                return RabbitConnection(wire, self.user, self._feeds)
        raise _of_all(problems)


def _of_all(problems: Sequence[Operational]) -> Operational:
    """One error for all nodes. Access is only refused if every node refuses it: a node that is away may know the user."""
    if len(problems) == 1:
        return problems[0]
    is_refused = all(isinstance(each, AccessRefused) for each in problems)
    kind = AccessRefused if is_refused else ConnectionLost
    return kind(f"none of {len(problems)} nodes takes a connection: {'; '.join(map(str, problems))}")
