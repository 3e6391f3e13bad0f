"""Reports nodes to the host registry, and sends the heartbeats of the nodes that this daemon owns. A node that Ironic
has deleted is reported as gone.

A node is up while its owner sends its heartbeats. Each report is numbered by the row's version and the owner's epoch, so the
registry drops an older report, whichever daemon sends it.
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import structs

from bus.message import CellName, ProviderId
from bus.messages.hosts import NODE, HostFacts, HostsReported, in_messages
from bus.workers.announcing import HostAnnouncer
from bus.workers.publisher import Publisher
from ironic_sync.core.ring import Owned
from ironic_sync.core.rows import NodeRow
from ironic_sync.membership import Membership
from ironic_sync.settings import IronicSettings
from ironic_sync.store import NodeStore


class NodeAnnouncer(HostAnnouncer[NodeRow]):
    """Reports nodes to the host registry, and sends the heartbeats of this daemon's nodes."""

    def __init__(
        self,
        store: NodeStore,
        membership: Membership,
        publisher: Publisher,
        settings: IronicSettings,
        *,
        chance: random.Random | None = None,
    ) -> None:
        super().__init__(
            "tell of nodes",
            "vouch for nodes",
            publisher,
            every_s=settings.beat_s,
            beat_s=settings.beat_s,
            chance=chance,
        )
        self._store = store
        self._membership = membership
        self._settings = settings
        # The nodes that were reported to the registry, each with its cell.
        self._reported: dict[ProviderId, str] = {}
        self._gained: dict[ProviderId, None] = {}

    def touch(self, written: Iterable[tuple[NodeRow, NodeRow]]) -> None:
        """Report those of the written rows whose facts for the registry changed by this write.

        Each row is compared as it was before the write and after it, not with this daemon's last report: another
        daemon may have reported something else since.
        """
        self.tell_again(
            row for before, row in written if (before.cell, _facts(before)) != (row.cell, _facts(row))
        )

    def tell_again(self, rows: Iterable[NodeRow]) -> None:
        """Report the nodes of these rows, even if nothing changed: another daemon may have written the rows and died
        before its report. A deleted node is reported as gone, and gets no heartbeats any more.
        """
        for row in rows:
            if row.is_deleted:
                # No heartbeats for a deleted node, even if it is being reported.
                for known in (self._reported, self.sending):
                    known.pop(row.id, None)
            waiting = self.touched.get(row.id)
            # An older row may come late: it was read before the newer one was written.
            if row.cell and row.node is not None and (waiting is None or waiting.version <= row.version):
                self.touched[row.id] = row
                self.reporting.wake()

    def gained(self, nodes: Sequence[Owned]) -> None:
        """Report these nodes, which the daemon now owns, under their new epoch."""
        self._gained.update(dict.fromkeys(each.id for each in nodes))
        self.reporting.wake()

    def lost(self, nodes: Sequence[ProviderId]) -> None:
        for node in nodes:
            self._reported.pop(node, None)
            self._gained.pop(node, None)

    async def report(self) -> None:
        while self._gained:
            some = [*self._gained][: self._settings.page]
            self.tell_again((await self._store.read(some)).values())
            for node in some:
                self._gained.pop(node, None)
        await super().report()
        self._reported.update((row.id, row.cell) for row in self.sending.values() if not row.is_deleted)

    async def reports(self, touched: Mapping[ProviderId, NodeRow]) -> Iterator[HostsReported]:
        return _reports(touched.values())

    def alive(self) -> Mapping[CellName, Sequence[ProviderId]]:
        """The nodes to send heartbeats for, by cell: those that this daemon owns and has reported. None while its
        lease may be over.
        """
        cells: dict[CellName, list[ProviderId]] = {}
        if self._membership.may_act():
            for node in self._membership.owned:
                if (cell := self._reported.get(node)) is not None:
                    cells.setdefault(cell, []).append(node)
        return cells


def _facts(row: NodeRow) -> HostFacts | None:
    """A node's facts for the host registry; None if nothing is known of it. As in placement, its name is its id, since
    Ironic's names may be null and may change.
    """
    node = row.node
    if node is None:
        return None
    if row.is_deleted:
        return HostFacts(id=row.id, name=str(row.id), hypervisor_type=NODE, kind=NODE, is_gone=True)
    return HostFacts(
        id=row.id,
        name=str(row.id),
        instances=int(node.instance_uuid is not None),
        hypervisor_type=NODE,
        kind=NODE,
        projects=tuple(dict.fromkeys(each for each in (node.owner, node.lessee) if each)),
    )


def _reports(rows: Iterable[NodeRow]) -> Iterator[HostsReported]:
    cells: dict[str, list[HostFacts]] = {}
    for row in rows:
        facts = _facts(row)
        assert facts is not None, "only known nodes are reported"
        numbered = structs.replace(facts, epoch=row.epoch, sequence=row.version)
        cells.setdefault(row.cell, []).append(numbered)
    for cell, hosts in cells.items():
        for some in in_messages(hosts):
            yield HostsReported(cell=cell, hosts=some)
