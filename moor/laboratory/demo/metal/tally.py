"""Counts received events and keeps the daemons' rows of nodes. The screen shows only these values."""

import time
from collections.abc import Iterable, Sequence

from bus.message import Message, ProviderId
from bus.messages.placement import ProvidersChanged
from ironic_sync.core.rows import NodeRow
from moor.laboratory.demo.tally import News, Tally

# The names of instances on hypervisors start with this.
VIRTUAL_NAME = "web-"


class MetalTally(Tally):
    """A `Tally` that also keeps the rows of nodes, and notes maintenance flips and how the nodes of a killed daemon are
    taken over.

    A flip is a node's change into maintenance or out of it.
    """

    def __init__(self, wanted: int) -> None:
        super().__init__(wanted)
        self.rows: dict[ProviderId, NodeRow] = {}
        self.flips = 0
        # When each node was put into maintenance; removed once placement reports it as reserved.
        self.flipping: dict[ProviderId, float] = {}
        self.flip_latencies_s: list[float] = []
        self.killed = ""
        self.killed_s = 0.0
        # The nodes of the killed daemon; the time until all had a new owner, and until the new owners had reported all.
        self.orphaned: frozenset[ProviderId] = frozenset()
        self.taken_over_s: float | None = None
        self.reported_s: float | None = None

    def hear(self, message: Message) -> None:
        super().hear(message)
        if not isinstance(message, ProvidersChanged):
            return
        for provider in message.providers:
            is_held = any(stock.reserved for stock in provider.inventories.values())
            if is_held and (ordered_s := self.flipping.pop(provider.id, None)) is not None:
                self.flip_latencies_s.append(time.monotonic() - ordered_s)

    def flip(self, node: ProviderId) -> None:
        """Record that the demo is about to have Ironic put the node into maintenance."""
        self.flips += 1
        self.flipping[node] = time.monotonic()

    def read(self, rows: Iterable[NodeRow]) -> None:
        """Take over rows that were read from the daemons' database. Note when other daemons own all nodes of a killed one."""
        for row in rows:
            self.rows[row.id] = row
        if not self.killed:
            return
        orphaned = [self.rows[id_] for id_ in self.orphaned]
        after_s = time.monotonic() - self.killed_s
        if self.taken_over_s is None and all(row.owner not in ("", self.killed) for row in orphaned):
            self.taken_over_s = after_s
            self.news.append(News("green", f"all {len(orphaned)} nodes of {self.killed} have a new owner"))
        if (
            self.taken_over_s is not None
            and self.reported_s is None
            and all(row.read_epoch == row.epoch for row in orphaned)
        ):
            self.reported_s = after_s
            self.news.append(News("green", f"all {len(orphaned)} were read and reported by their new owners"))

    def kill(self, daemon: str) -> None:
        self.killed, self.killed_s = daemon, time.monotonic()
        self.orphaned = frozenset(row.id for row in self.rows.values() if row.owner == daemon)
        self.news.append(News("bold red", f"daemon {daemon} is killed: it owned {len(self.orphaned)} nodes"))

    def owned_by(self, daemon: str) -> Sequence[NodeRow]:
        mine = [row for row in self.rows.values() if row.owner == daemon]
        return sorted(mine, key=lambda row: (row.cell, row.node.name or "" if row.node else "", row.id))

    def name_of(self, host: str) -> str:
        """A node's host name is its uuid; show Ironic's name of the node instead."""
        found = next((row.node for id_, row in self.rows.items() if str(id_) == host), None)
        return (found.name if found else None) or host
