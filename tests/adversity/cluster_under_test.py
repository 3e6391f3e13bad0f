"""A broker of three nodes under test, with users for the roles of a cloud. Tests kill its nodes one by one."""

import asyncio
import json
import secrets
from collections.abc import Sequence
from typing import Self

from bus.broker import Broker
from bus.definitions import definitions_of
from bus.rabbit import RabbitBroker
from bus.topology import Objects, objects_of
from tests.contracts.broker_under_test import APPLICATIONS
from tests.servers import PrivateCluster

PASSWORD = "as-secret-as-a-test-can-be"  # noqa: S105 - of users that end with the tests


class ClusterUnderTest:
    """A virtual host of its own on a cluster."""

    def __init__(self, cluster: PrivateCluster, virtual_host: str) -> None:
        self.cluster = cluster
        self.virtual_host = virtual_host

    @classmethod
    async def start(cls, cluster: PrivateCluster) -> Self:
        name = f"test-{secrets.token_hex(4)}"
        everything = {"user": "guest", "vhost": name, "configure": ".*", "write": ".*", "read": ".*"}
        definitions = {"vhosts": [{"name": name}], "permissions": [everything]}
        here = cls(cluster, name)
        await here.ctl("import_definitions", stdin=json.dumps(definitions))
        return here

    async def ctl(self, *arguments: str, stdin: str = "") -> str:
        return await asyncio.to_thread(self.cluster.nodes[0].ctl, *arguments, stdin=stdin)

    def url(self, user: str = "") -> str:
        login = f"{user}:{PASSWORD}" if user else "guest:guest"
        return f"amqp://{login}@{self.cluster.addresses}/{self.virtual_host}"

    def broker(self, user: str = "") -> Broker:
        return RabbitBroker(self.url(user))

    async def declare(self, objects: Objects) -> None:
        connection = await self.broker().connect()
        await connection.declare(objects)
        await connection.close()
        await asyncio.to_thread(self.cluster.settle)

    async def add_users(self, users: Sequence[str], cells: tuple[str, ...]) -> None:
        passwords = dict.fromkeys(users, PASSWORD)
        definitions = definitions_of(
            objects_of(cells).exchanges,
            cells,
            passwords,
            salt=b"test",
            virtual_host=self.virtual_host,
            applications=APPLICATIONS.values(),
        )
        await self.ctl("import_definitions", stdin=json.dumps(definitions))

    async def kill(self, number: int) -> None:
        await asyncio.to_thread(self.cluster.nodes[number].kill)

    async def start_again(self, number: int) -> None:
        """Start a killed node, and wait until no queue depends on the two others alone."""
        node = self.cluster.nodes[number]
        await asyncio.to_thread(node.start)
        await asyncio.to_thread(node.tool, "rabbitmq-upgrade", "await_online_quorum_plus_one")

    async def close(self) -> None:
        await self.ctl("delete_vhost", self.virtual_host)
