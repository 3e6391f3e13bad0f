"""The real broker under test: each test has its own virtual host, on the server that the environment names.

Clients reach it through a proxy of the test, so that the test can cut its own connections as a network would, and no others.
"""

import asyncio
import atexit
import base64
import json
import os
import re
import secrets
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self
from urllib.parse import quote, urlsplit

from bus.broker import Broker
from bus.definitions import definitions_of
from bus.rabbit import RabbitBroker
from bus.topology import Objects, objects_of
from kit.errors import ConnectionLost
from tests.contracts.broker_under_test import APPLICATIONS, Short
from tests.contracts.rabbitmq_inside import LOOPBACK, InsideBroker, RefusedExpressionError
from tests.waiting import until

URL_VARIABLE, CTL_VARIABLE = "MOOR_TEST_AMQP_URL", "MOOR_TEST_AMQP_CTL"
PASSWORD = "as-secret-as-a-test-can-be"  # noqa: S105 - of users that end with the tests
# Virtual hosts are created in batches, with all that they need. Each one makes a restart slower, so there are not too many.
HOSTS_AT_ONCE = 20
CTL_S_MAX = 120.0
UP_S_MAX = 60.0

_REMOVE_USERS = (
    '[rabbit_auth_backend_internal:delete_user(U, <<"tests">>) || '
    "U <- [{}], rabbit_auth_backend_internal:exists(U)]"
)
_TIMEOUTS = ("consumer_timeout", "channel_tick_interval")
# The objects of a virtual host, and the rights of users there, each as one number.
_TOPOLOGY = """
    Exchange = [name, type, durable, auto_delete, internal, arguments, policy],
    Topology = erlang:phash2({
        lists:sort([rabbit_exchange:info(Each, Exchange) || Each <- rabbit_exchange:list(Host)]),
        lists:sort([{amqqueue:get_name(Each), amqqueue:get_type(Each), amqqueue:is_durable(Each),
            amqqueue:is_auto_delete(Each), amqqueue:get_arguments(Each), amqqueue:get_policy(Each)}
            || Each <- rabbit_amqqueue:list(Host)]),
        lists:sort(rabbit_binding:list(Host))
    }, 1 bsl 32)
"""
_RIGHTS = """
    Rights = erlang:phash2({
        lists:sort(rabbit_auth_backend_internal:list_vhost_permissions(Host)),
        lists:sort(rabbit_auth_backend_internal:list_vhost_topic_permissions(Host))
    }, 1 bsl 32)
"""
# The connections of the last test end by themselves, and then its exclusive queues. Queues whose names RabbitMQ
# generated are feeds. At most 3 s.
_EMPTIED = """
    Ended = (fun Wait(0) -> false; Wait(Left) ->
        case rabbit_connection_tracking:list(Host) of
            [] -> true;
            _ -> timer:sleep(10), Wait(Left - 1)
        end
    end)(300),
    [rabbit_amqqueue:delete(Each, false, false, <<"tests">>) || Each <- rabbit_amqqueue:list(Host),
        binary:match(element(4, amqqueue:get_name(Each)), <<"amq.gen-">>) =:= {0, 8}],
    [rabbit_amqqueue:purge(Each) || Each <- rabbit_amqqueue:list(Host)],
    Empty = [Each || Each <- rabbit_amqqueue:list(Host), rabbit_amqqueue:stat(Each) =/= {ok, 0, 0}] =:= []
"""
# The latest to be left is the last to be used again: what its test may still have under way has the time to end.
DECLARED_HOSTS_MIN, DECLARED_HOSTS_MAX = 2, 4


def _variable(name: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        raise RuntimeError(
            f"{name} is not set: these tests need a real RabbitMQ; `make test` starts one, and so does "
            "`python -m tests.servers -- python -m pytest`"
        )
    return value


def ctl(*arguments: str, stdin: str = "") -> str:
    """rabbitmqctl on the server under test."""
    command = (*shlex.split(_variable(CTL_VARIABLE)), *arguments)
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=CTL_S_MAX, check=False
    )
    if done.returncode:
        raise RuntimeError(f"rabbitmqctl {shlex.join(arguments)[:200]} failed: {done.stderr}{done.stdout}")
    return done.stdout


def evaluate(expression: str) -> str:
    """Evaluate an expression on the server under test. If its loopback is another machine's, rabbitmqctl does it each time."""
    if urlsplit(_variable(URL_VARIABLE)).hostname in (LOOPBACK, "localhost"):
        return _inside.evaluate(f"{expression}.")
    return ctl("eval", f"{expression}.")


_inside = InsideBroker(lambda expression: ctl("eval", expression), CTL_S_MAX)


class Hosts:
    """A stock of empty virtual hosts. They, and the users that tests added, are removed when the process ends."""

    def __init__(self) -> None:
        self._run = secrets.token_hex(4)
        self._count = 0
        self._unused: list[str] = []
        self._taken: set[str] = set()
        # Hosts that no test uses any more; they are removed in batches.
        self._left: set[str] = set()
        # The cells for which a user has rights, by host and user.
        self._users: dict[tuple[str, str], tuple[str, ...]] = {}
        # The objects that a test declared first of all on its host, and the numbers of the topology and the rights after it.
        self._objects: dict[str, Objects] = {}
        self._numbers: dict[str, tuple[str, str]] = {}
        # Hosts that their tests have left, with these objects declared on them.
        self._declared: list[tuple[Objects, str]] = []

    def take(self) -> str:
        if not self._unused:
            self._make()
        host = self._unused.pop()
        self._taken.add(host)
        return host

    def leave(self, host: str) -> None:
        self._taken.discard(host)
        objects = self._objects.get(host)
        if objects is None or sum(each == objects for each, _ in self._declared) == DECLARED_HOSTS_MAX:
            self._left.add(host)
        else:
            self._declared.append((objects, host))

    def swap(self, host: str, objects: Objects) -> str | None:
        """A host where these objects are declared already, and nothing else; the untouched host is given back for it. Its
        exchanges, queues, bindings and rights are as before its last test. It has no connection and no message.
        """
        stock = [each for declared, each in self._declared if declared == objects]
        for candidate in stock[: max(0, len(stock) - DECLARED_HOSTS_MIN + 1)]:
            self._declared.remove((objects, candidate))
            if self._is_as_declared(candidate):
                self._taken.add(candidate)
                self._taken.discard(host)
                self._unused.append(host)
                return candidate
            self._left.add(candidate)
        return None

    def note_declared(self, host: str, objects: Objects) -> None:
        """An untouched host now has these objects."""
        self._objects[host] = objects
        self._numbers[host] = self._numbers_of(host)

    def _is_as_declared(self, host: str) -> bool:
        known = " ".join(self._numbers[host])
        try:
            found = evaluate(
                f"{_host(host)}, {_EMPTIED}, {_TOPOLOGY}, {_RIGHTS}, {{Ended, Empty, Topology, Rights}}"
            )
        except RefusedExpressionError:
            # For example because one of its queues has no leader.
            return False
        return re.findall(r"\w+", found) == ["true", "true", *known.split()]

    def _numbers_of(self, host: str) -> tuple[str, str]:
        topology, rights = re.findall(
            r"\d+", evaluate(f"{_host(host)}, {_TOPOLOGY}, {_RIGHTS}, {{Topology, Rights}}")
        )
        return topology, rights

    def add_users(self, host: str, users: Sequence[str], cells: tuple[str, ...]) -> None:
        """On this host, and for the same cost on the unused ones, since other tests will need them too."""
        new = [user for user in users if self._users.get((user, host)) != cells]
        if not new:
            return
        hosts = (host, *self._unused)
        self._users |= {(user, each): cells for user in new for each in hosts}
        exchanges, passwords = objects_of(cells).exchanges, dict.fromkeys(new, PASSWORD)
        import_definitions(
            *(
                definitions_of(
                    exchanges,
                    cells,
                    passwords,
                    salt=b"test",
                    virtual_host=each,
                    applications=APPLICATIONS.values(),
                )
                for each in hosts
            )
        )
        if host in self._numbers:
            self._numbers[host] = (self._numbers[host][0], self._numbers_of(host)[1])

    def remove_left(self) -> None:
        """Before a restart: the broker would recover every queue in them."""
        self._left |= {host for _, host in self._declared}
        self._declared.clear()
        if self._left:
            self._remove()

    def _make(self) -> None:
        if self._count:
            self._remove()
        else:
            atexit.register(self._remove_all)
            # All forks of one process are the same run, and one that was killed has left its hosts.
            evaluate(
                f'[rabbit_vhost:delete(H, <<"tests">>) || H <- rabbit_vhost:list_names(), '
                f'string:prefix(H, "{self._name("")}") =/= nomatch], ok'
            )
        self._unused = [self._name(self._count + n) for n in range(HOSTS_AT_ONCE)]
        self._count += HOSTS_AT_ONCE
        everyone = urlsplit(_variable(URL_VARIABLE)).username or "guest"
        everything = {"user": everyone, "configure": ".*", "write": ".*", "read": ".*"}
        import_definitions(
            {
                "vhosts": [{"name": name} for name in self._unused],
                "permissions": [everything | {"vhost": name} for name in self._unused],
            }
        )

    def _name(self, number: int | str) -> str:
        return f"test-{self._run}-{number}"

    def _remove(self, *, users: Iterable[str] = ()) -> None:
        gone, self._left = sorted(self._left), set()
        evaluate(
            f'[rabbit_vhost:delete(H, <<"tests">>) || H <- [{_binaries(gone)}]],'
            f"{_REMOVE_USERS.format(_binaries(users))}, ok"
        )

    def _remove_all(self) -> None:
        self._left |= {*self._taken, *self._unused, *(host for _, host in self._declared)}
        # The server may have stopped before this process, and taken everything with it.
        with suppress(RuntimeError, OSError, subprocess.TimeoutExpired):
            self._remove(users={user for user, _ in self._users})


def remove_users(users: Iterable[str]) -> None:
    """Remove those that exist; tests of commands may have created them."""
    if names := _binaries(users):
        evaluate(f"{_REMOVE_USERS.format(names)}, ok")


def _host(name: str) -> str:
    return f'Host = <<"{name}">>'


def _binaries(names: Iterable[str]) -> str:
    return ", ".join(f'<<"{name}">>' for name in names)


_hosts = Hosts()


def import_definitions(*definitions: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    together = {
        kind: [entry for each in definitions for entry in each.get(kind, ())]
        for kind in ("users", "vhosts", "permissions", "topic_permissions", "policies")
    }
    together["users"] = list({user["name"]: user for user in together["users"]}.values())
    text = base64.b64encode(json.dumps(together).encode()).decode()
    if (said := evaluate(f'rabbit_definitions:import_raw(base64:decode("{text}"))')) != "ok":
        raise RuntimeError(f"RabbitMQ refused these definitions: {said}")


class RabbitMQUnderTest:
    """One virtual host, and the test's proxy to it."""

    def __init__(self, host: str, proxy: "Proxy") -> None:
        self.virtual_host = host
        self._proxy = proxy
        self._undo: dict[str, str] = {}
        # True as soon as anything may have been done on the virtual host.
        self._is_touched = False

    @classmethod
    async def start(cls) -> Self:
        server = urlsplit(_variable(URL_VARIABLE))
        proxy = Proxy(server.hostname or "127.0.0.1", server.port or 5672)
        await proxy.start()
        return cls(await asyncio.to_thread(_hosts.take), proxy)

    def url(self, user: str = "") -> str:
        """The address of this test's broker."""
        self._is_touched = True
        server = urlsplit(_variable(URL_VARIABLE))
        name, password = (
            (user, PASSWORD) if user else (server.username or "guest", server.password or "guest")
        )
        return f"amqp://{name}:{password}@127.0.0.1:{self._proxy.port}/{quote(self.virtual_host, safe='')}"

    def broker(self, user: str = "") -> Broker:
        return RabbitBroker(self.url(user))

    async def declare(self, objects: Objects) -> None:
        """To declare the whole topology anew, and to remove it, takes the broker 0.35 s of CPU. So a test that begins
        with it gets the virtual host of an earlier test that began with the same objects, if that has nothing else.
        """
        is_untouched, self._is_touched = not self._is_touched, True
        if is_untouched and (host := await asyncio.to_thread(_hosts.swap, self.virtual_host, objects)):
            self.virtual_host = host
            return
        connection = await self.broker().connect()
        await connection.declare(objects)
        await connection.close()
        if is_untouched:
            await asyncio.to_thread(_hosts.note_declared, self.virtual_host, objects)

    async def add_users(self, users: Sequence[str], cells: tuple[str, ...]) -> None:
        await asyncio.to_thread(_hosts.add_users, self.virtual_host, users, cells)

    async def cut_connections(self) -> None:
        self._proxy.cut()

    async def unplug(self) -> None:
        self._proxy.refuses = True
        self._proxy.cut()

    async def plug_in(self) -> None:
        self._proxy.refuses = False

    def swallow(self) -> None:
        """Let no more bytes through in either direction, and keep the connections open."""
        self._proxy.swallows = True

    async def restart(self) -> None:
        await asyncio.to_thread(_hosts.remove_left)
        # As `rabbitmqctl stop_app` and `start_app` do it.
        await self._eval("rabbit:stop()")
        await self._eval("rabbit:start()")
        await until(self._is_up, "the broker is up", within_s=UP_S_MAX)

    async def set_alarm(self, *, on: bool, of: Short = "memory") -> None:
        if on:
            alarm = f"{{resource_limit, {of}, node()}}"
            self._undo["alarm"] = f"rabbit_alarm:clear_alarm({alarm})"
            # The second call returns only after all connections have heard of the alarm.
            await self._eval(f"rabbit_alarm:set_alarm({{{alarm}, []}}), rabbit_alarm:get_alarms()")
        else:
            await self._eval(self._undo.pop("alarm"))

    async def delete_exchange(self, name: str) -> None:
        exchange = f'rabbit_misc:r(<<"{self.virtual_host}">>, exchange, <<"{name}">>)'
        await self._eval(f'rabbit_exchange:delete({exchange}, false, <<"tests">>)')

    async def delete_queue(self, name: str) -> None:
        # RabbitMQ generates the names of feeds.
        for each in await self.feeds() if name.startswith("feed.") else (name,):
            queue = f'rabbit_misc:r(<<"{self.virtual_host}">>, queue, <<"{each}">>)'
            await self._eval(
                f"{{ok, Queue}} = rabbit_amqqueue:lookup({queue}),"
                '{ok, _} = rabbit_amqqueue:delete(Queue, false, false, <<"tests">>)'
            )

    async def feeds(self) -> Sequence[str]:
        """Queues whose names RabbitMQ generated, and which no connection owns."""
        listed = await self._eval(
            "[binary_to_list(element(4, amqqueue:get_name(Q))) || "
            f'Q <- rabbit_amqqueue:list(<<"{self.virtual_host}">>), amqqueue:get_exclusive_owner(Q) =:= none]'
        )
        return [name for name in re.findall(r'"([^"]*)"', listed) if name.startswith("amq.gen-")]

    async def set_consumer_timeout_s(self, seconds: float) -> None:
        """A channel reads both numbers when it opens: the timeout, and how often it is checked."""
        timeout_ms = int(seconds * 1000)
        before = await self._eval(
            "{" + ", ".join(f"application:get_env(rabbit, {name})" for name in _TIMEOUTS) + "}"
        )
        self._undo.setdefault(
            "timeouts",
            f"[case V of {{ok, X}} -> application:set_env(rabbit, K, X); _ -> application:unset_env(rabbit, K) end"
            f" || {{K, V}} <- lists:zip([{', '.join(_TIMEOUTS)}], tuple_to_list({before.strip()}))]",
        )
        await self._eval(
            f"application:set_env(rabbit, consumer_timeout, {timeout_ms}),"
            f"application:set_env(rabbit, channel_tick_interval, {max(timeout_ms // 4, 50)})"
        )

    async def close(self) -> None:
        await self._proxy.close()
        if self._undo:
            await self._eval(", ".join(self._undo.values()))
        _hosts.leave(self.virtual_host)

    async def _eval(self, expression: str) -> str:
        return await asyncio.to_thread(evaluate, expression)

    async def _is_up(self) -> bool:
        try:
            connection = await self.broker().connect()
        except ConnectionLost:
            return False
        await connection.close()
        return True


class Proxy:
    """Passes bytes through until the test breaks it."""

    def __init__(self, host: str, port: int) -> None:
        self._server_address = (host, port)
        self._listening: asyncio.Server | None = None
        self._ends: set[asyncio.StreamWriter] = set()
        self._passing: set[asyncio.Task[None]] = set()
        self.port = 0
        self.swallows = False
        self.refuses = False
        self._flows = asyncio.Event()
        self._flows.set()

    async def start(self, port: int = 0) -> None:
        self._listening = await asyncio.start_server(self._accept, "127.0.0.1", port)
        self.port = self._listening.sockets[0].getsockname()[1]

    def stall(self, *, on: bool) -> None:
        """Nothing arrives while it is on, in neither direction; then all that was sent does. Neither end sees why."""
        (self._flows.clear if on else self._flows.set)()

    def cut(self) -> None:
        """Both ends see that the connection is gone, without a close message."""
        for end in self._ends:
            end.transport.abort()
        self._ends.clear()

    async def close(self) -> None:
        self.refuses = True
        self._flows.set()
        if self._listening is not None:
            self._listening.close()
        self.cut()
        # Also those that are being accepted.
        while self._passing:
            await asyncio.wait(self._passing)

    async def _accept(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        self._note(asyncio.current_task())
        self._ends.add(client_out)
        streams = None
        if not self.refuses:
            with suppress(OSError):
                streams = await asyncio.open_connection(*self._server_address)
        if streams is None:
            client_out.transport.abort()
            return
        server_in, server_out = streams
        self._ends.add(server_out)
        if self.refuses:
            # Unplugged or closed meanwhile.
            self.cut()
            return
        for reader, writer in ((client_in, server_out), (server_in, client_out)):
            self._note(asyncio.get_running_loop().create_task(self._pass(reader, writer)))

    def _note(self, task: asyncio.Task[None] | None) -> None:
        assert task is not None, "a connection is accepted by a task"
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(2**16):
                await self._flows.wait()
                if not self.swallows:
                    writer.write(data)
                    await writer.drain()
        # As in a network, the other end sees the close late, but it does see it.
        self._ends.discard(writer)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
