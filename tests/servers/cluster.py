"""A private cluster of RabbitMQ nodes on this machine: on loopback only, with temporary data, removed when the process ends.

Its nodes share one port mapper (epmd) and one Erlang cookie, both of their own.
"""

import secrets
from pathlib import Path
from typing import Self

from laboratory.private_servers import Keeper
from tests.servers.free_places import free_port
from tests.servers.rabbitmq import Membership, PrivateRabbitMQ, start_port_mapper

NODES = 3


class PrivateCluster:
    """`nodes` may be killed and started again one by one, as a single `PrivateRabbitMQ`."""

    def __init__(self, *, place: Path | None = None) -> None:
        self._mapper = Keeper()
        epmd, cookie = free_port(), secrets.token_hex(10)
        start_port_mapper(self._mapper, epmd)
        names = [f"moor{number}@localhost" for number in range(1, NODES + 1)]
        self.nodes = [
            PrivateRabbitMQ(
                place=place, membership=Membership(node=name, first=names[0], cookie=cookie, epmd=epmd)
            )
            for name in names
        ]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def addresses(self) -> str:
        """The hosts of a URL that names all nodes."""
        return ",".join(node.address for node in self.nodes)

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{self.addresses}/"

    def processes(self) -> tuple[int, ...]:
        """The nodes, their helpers, and the port mapper."""
        return (*self._mapper.processes(), *(each for node in self.nodes for each in node.processes()))

    def start(self) -> None:
        """The first node is there before the others join it."""
        first, *others = self.nodes
        first.start()
        for node in others:
            node.launch()
        for node in others:
            node.wait_until_ready()

    def settle(self) -> None:
        """Write what was declared to the disks of all nodes, as `PrivateRabbitMQ.settle` does it for one."""
        names = ", ".join(f"'{node.node}'" for node in self.nodes)
        synced = "[ok = rpc:call(Node, dets, sync, [Table]) || Table <- rpc:call(Node, dets, all, [])]"
        self.nodes[0].ctl("eval", f"[{synced} || Node <- [{names}]].")

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()
        self._mapper.close()
