"""The actions of a contract test on a broker directly, not through its clients. One implementation for each kind of broker."""

from collections.abc import Sequence
from typing import Literal, Protocol

from bus.broker import Broker
from bus.topology import Application, Objects

# Applications that a test may add as users, named by these.
ADMIN = Application("admin", admin=True)
SHOP = Application("shop", projects=("shop",))
BANK = Application("bank", projects=("bank",))
APPLICATIONS = {each.user: each for each in (ADMIN, SHOP, BANK)}

Short = Literal["memory", "disk"]


class BrokerUnderTest(Protocol):
    """A broker with nothing on it, for one test."""

    def broker(self, user: str = "") -> Broker:
        """A connection to it as this user; without a user, with all rights."""

    async def declare(self, objects: Objects) -> None:
        """Declare them with all rights."""

    async def add_users(self, users: Sequence[str], cells: tuple[str, ...]) -> None:
        """Give these users of the topology the rights that they have there, on a broker that serves these cells. All cost as
        much as one, which on a real broker is a second.
        """

    async def cut_connections(self) -> None:
        """Break all connections as a failing network would, without a close message."""

    async def unplug(self) -> None:
        """Cut all connections, and accept no new ones."""

    async def plug_in(self) -> None:
        """Accept connections again; the contents of the queues are still there."""

    async def restart(self) -> None:
        """Stop the broker and start it again: only what is durable is still there."""

    async def set_alarm(self, *, on: bool, of: Short = "memory") -> None:
        """Raise or clear the alarm of what it is short of: while it is on, the broker takes nothing from publishers."""

    async def delete_exchange(self, name: str) -> None:
        """Delete it with its bindings, as its owner would."""

    async def delete_queue(self, name: str) -> None:
        """Delete it while it is consumed, as an operator would."""

    async def set_consumer_timeout_s(self, seconds: float) -> None:
        """How long consumers opened from now on may hold a delivery."""

    async def close(self) -> None: ...
