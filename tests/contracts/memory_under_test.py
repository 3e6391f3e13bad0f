"""The memory broker under test: in this process, or over a Unix socket as for other processes."""

import asyncio
import resource
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import Self

from bus.broker import Broker, Connection
from bus.definitions import Rights, rights_of
from bus.memory import Journal, MemoryBroker
from bus.memory.journal import LINGER_S
from bus.topology import ROLES, Objects, objects_of, user_of
from bus.unix_socket.client import UnixBroker
from bus.unix_socket.server import serve_unix
from kit.errors import ConnectionLost
from tests.contracts.broker_under_test import APPLICATIONS, BrokerUnderTest, Short


class MemoryUnderTest:
    def __init__(self) -> None:
        self._memory = MemoryBroker()
        self.is_unplugged = False

    def broker(self, user: str = "") -> Broker:
        return _Plugged(self, self._memory.as_user(user))

    async def declare(self, objects: Objects) -> None:
        connection = await self.broker().connect()
        await connection.declare(objects)
        await connection.close()

    async def add_users(self, users: Sequence[str], cells: tuple[str, ...]) -> None:
        self._memory.users |= {user: topology_rights(user, cells) for user in users}

    async def cut_connections(self) -> None:
        self._memory.cut_connections()

    async def unplug(self) -> None:
        self.is_unplugged = True
        self._memory.cut_connections()

    async def plug_in(self) -> None:
        self.is_unplugged = False

    async def restart(self) -> None:
        self._memory.restart()

    async def set_alarm(self, *, on: bool, of: Short = "memory") -> None:
        self._memory.block(f"low on {of}" if on else "")

    async def delete_exchange(self, name: str) -> None:
        self._memory.host.exchanges.pop(name, None)

    async def delete_queue(self, name: str) -> None:
        self._memory.host.delete_queue(name)

    async def set_consumer_timeout_s(self, seconds: float) -> None:
        self._memory.host.consumer_timeout_s = seconds

    async def close(self) -> None:
        self._memory.cut_connections("the test is over")


async def started(kind: str) -> BrokerUnderTest:
    match kind:
        case "memory":
            return MemoryUnderTest()
        case "unix":
            return await UnixUnderTest.start()
        case "unix+journal":
            return await JournalUnderTest.start()
        case _:
            # Only tests of the real broker need its client library.
            from tests.contracts.rabbitmq_under_test import RabbitMQUnderTest  # noqa: PLC0415

            return await RabbitMQUnderTest.start()


class _Plugged:
    """A broker that refuses connections while it is unplugged."""

    def __init__(self, under_test: MemoryUnderTest, broker: Broker) -> None:
        self._under_test = under_test
        self._broker = broker

    @property
    def user(self) -> str:
        return self._broker.user

    async def connect(self) -> Connection:
        if self._under_test.is_unplugged:
            raise ConnectionLost("the test has unplugged this broker")
        return await self._broker.connect()


class UnixUnderTest(MemoryUnderTest):
    """A memory broker with all clients on its socket. A restart restarts the process that serves it."""

    def __init__(self) -> None:
        super().__init__()
        # The path of a socket must be short, and that of a test's own directory is not.
        self._directory = tempfile.TemporaryDirectory(prefix="moor-")
        self._path = Path(self._directory.name) / "bus.sock"
        self._serving = AsyncExitStack()

    @classmethod
    async def start(cls) -> Self:
        under_test = cls()
        await under_test._serve()
        return under_test

    def url(self, user: str = "") -> str:
        """The address of this broker for another process."""
        return f"unix://{user}@{self._path}" if user else f"unix://{self._path}"

    def broker(self, user: str = "") -> Broker:
        return UnixBroker(self._path, user)

    async def unplug(self) -> None:
        await self._serving.aclose()

    async def plug_in(self) -> None:
        await self._serve()

    async def restart(self) -> None:
        await self._serving.aclose()
        await super().restart()
        await self._serve()

    async def close(self) -> None:
        await self._serving.aclose()
        await super().close()
        self._directory.cleanup()

    async def _serve(self) -> None:
        await self._serving.enter_async_context(serve_unix(self._memory, self._path))


class JournalUnderTest(UnixUnderTest):
    """A memory broker with a journal. After a restart only the journal is left, and the users of the deployment."""

    def __init__(self) -> None:
        super().__init__()
        self._users: list[Rights] = []
        self._journal = self._path.with_name("bus.journal")
        self._disk_full = ExitStack()
        self._memory = self._from_journal()

    async def add_users(self, users: Sequence[str], cells: tuple[str, ...]) -> None:
        self._users += [topology_rights(user, cells) for user in users]
        await super().add_users(users, cells)

    async def set_alarm(self, *, on: bool, of: Short = "memory") -> None:
        if of == "memory":
            await super().set_alarm(on=on)
        elif on:
            # What nobody waits for is written by then.
            await asyncio.sleep(2 * LINGER_S)
            self._disk_full.enter_context(disk_full(self._journal))
        else:
            self._disk_full.close()

    async def restart(self) -> None:
        await self._serving.aclose()
        self._memory.stop()
        self._memory = self._from_journal()
        await self._serve()

    async def close(self) -> None:
        self._disk_full.close()
        await self._serving.aclose()
        self._memory.stop()
        await super().close()

    def _from_journal(self) -> MemoryBroker:
        return MemoryBroker(self._users, Journal(self._journal))


@contextmanager
def disk_full(journal: Path) -> Iterator[None]:
    """A limit for the files of this process, as if the disk were full: the journal's log does not grow."""
    size = Path(f"{journal}-wal").stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def topology_rights(user: str, cells: tuple[str, ...]) -> Rights:
    """The rights of this user according to the topology."""
    exchanges = [exchange.name for exchange in objects_of(cells).exchanges]
    if user in APPLICATIONS:
        return rights_of(APPLICATIONS[user].role, [*exchanges, APPLICATIONS[user].exchange])
    for role in ROLES:
        for cell in cells if role.per_cell else ("",):
            if user_of(role.name, cell) == user:
                return rights_of(role, exchanges, cell)
    raise ValueError(f"{user!r} is not a user of a broker that serves the cells {cells}")
