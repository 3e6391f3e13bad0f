"""What was heard on the bus and read of the nodes so far. Everything that is shown comes from here."""

import time
from collections.abc import Iterable, Sequence

from bus.message import Message, ProviderId
from bus.messages.placement import ProvidersChanged
from ironic_sync.core.rows import NodeRow
from moor.demo.tally import News, Tally


class MetalTally(Tally):
    """Beside instances: the nodes as the daemons have them, who owns each, and how flips and the kill went."""

    def __init__(self, wanted: int) -> None:
        super().__init__(wanted)
        self.rows: dict[ProviderId, NodeRow] = {}
        self.flips = 0
        # When a node was put into maintenance, until placement says that it is reserved.
        self.flipping: dict[ProviderId, float] = {}
        self.flip_latencies_s: list[float] = []
        self.killed = ""
        self.killed_s = 0.0
        # How many nodes the killed daemon had, and after which time each had another owner, and was reported by it.
        self.bereaved: frozenset[ProviderId] = frozenset()
        self.adopted_s: float | None = None
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
        """Ironic is about to put it into maintenance."""
        self.flips += 1
        self.flipping[node] = time.monotonic()

    def read(self, rows: Iterable[NodeRow]) -> None:
        """As the daemons' database has them."""
        for row in rows:
            self.rows[row.id] = row
        if not self.killed:
            return
        bereaved = [self.rows[id_] for id_ in self.bereaved]
        after_s = time.monotonic() - self.killed_s
        if self.adopted_s is None and all(row.owner not in ("", self.killed) for row in bereaved):
            self.adopted_s = after_s
            self.news.append(News("green", f"all {len(bereaved)} nodes of {self.killed} have a new owner"))
        if (
            self.adopted_s is not None
            and self.reported_s is None
            and all(row.read_epoch == row.epoch for row in bereaved)
        ):
            self.reported_s = after_s
            self.news.append(News("green", f"all {len(bereaved)} were read and reported by their new owners"))

    def kill(self, daemon: str) -> None:
        self.killed, self.killed_s = daemon, time.monotonic()
        self.bereaved = frozenset(row.id for row in self.rows.values() if row.owner == daemon)
        self.news.append(News("bold red", f"daemon {daemon} is killed: it owned {len(self.bereaved)} nodes"))

    def owned_by(self, daemon: str) -> Sequence[NodeRow]:
        mine = [row for row in self.rows.values() if row.owner == daemon]
        return sorted(mine, key=lambda row: (row.cell, row.node.name or "" if row.node else "", row.id))

    def name_of(self, host: str) -> str:
        """A node's host is its id, which nobody can tell from another."""
        found = next((row.node for id_, row in self.rows.items() if str(id_) == host), None)
        return (found.name if found else None) or host
