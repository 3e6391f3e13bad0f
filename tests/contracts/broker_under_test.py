"""What a contract test may do to a broker behind its clients' backs. One implementation for each kind of broker."""

from collections.abc import Sequence
from typing import Protocol

from bus.broker import Broker
from bus.topology import Application

# Applications that a test may add as users, by these.
ADMIN = Application("admin", admin=True)
SHOP = Application("shop", projects=("shop",))
APPLICATIONS = {each.user: each for each in (ADMIN, SHOP)}


class BrokerUnderTest(Protocol):
    """A broker with nothing on it, for one test."""

    def broker(self, user: str = "") -> Broker:
        """A way in as this user; without one, as somebody who may do everything."""

    async def add_user(self, user: str, cells: tuple[str, ...]) -> None:
        """Give this user of the topology the rights it has there, on a broker that serves these cells."""

    async def add_users(self, users: Sequence[str], cells: tuple[str, ...]) -> None:
        """All of them at the cost of one, which on a real broker is a second."""

    async def cut_connections(self) -> None:
        """Break every connection as a failing network would, without a word."""

    async def unplug(self) -> None:
        """Cut every connection, and let nobody connect any more."""

    async def plug_in(self) -> None:
        """Let them connect again; what was in its queues is still there."""

    async def restart(self) -> None:
        """Stop the broker and start it again: what is durable is still there, nothing else."""

    async def set_alarm(self, *, on: bool) -> None:
        """Let the broker run out of memory: it takes nothing from publishers any more."""

    async def delete_exchange(self, name: str) -> None:
        """As its owner would, with its bindings."""

    async def delete_queue(self, name: str) -> None:
        """As an operator would, while it is being consumed."""

    async def set_consumer_timeout_s(self, seconds: float) -> None:
        """How long a consumer may hold a delivery, for consumers opened from now on."""

    async def close(self) -> None: ...
