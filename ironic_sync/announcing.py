"""Tells the host registry what its nodes are, and vouches for those that this daemon owns.

A node is up while the daemon that owns it beats for it. What is told of a node is numbered by its row's version under its
owner's epoch, so the registry drops what is older, whichever daemon says it.
"""

import asyncio
import random
from collections.abc import Iterable, Iterator, Sequence

from msgspec import structs

from bus.message import ProviderId
from bus.messages.hosts import NODE, HostFacts, HostsAlive, HostsReported, in_messages
from bus.parts import Periodic, Together
from bus.publisher import Outgoing, Publisher
from ironic_sync.core.ring import Owned
from ironic_sync.core.rows import NodeRow
from ironic_sync.membership import Membership
from ironic_sync.settings import IronicSettings
from ironic_sync.store import NodeStore

BEATS_PER_MESSAGE = 5000


class Announcer(Together):
    """A part, and a listener of the ring and of NodeKeeper."""

    def __init__(
        self,
        store: NodeStore,
        membership: Membership,
        publisher: Publisher,
        settings: IronicSettings,
        *,
        chance: random.Random | None = None,
    ) -> None:
        self._telling = Periodic(
            "tell of nodes", self._announce, settings.beat_s, is_cut_short=True, chance=chance
        )
        super().__init__(
            self._telling,
            Periodic(
                "vouch for nodes",
                self._beat,
                settings.beat_s,
                rests_first=True,
                is_cut_short=True,
                chance=chance,
            ),
        )
        self._store = store
        self._membership = membership
        self._publisher = publisher
        self._settings = settings
        # What was told of each node last, without the numbers; and its cell, for the beats.
        self._told: dict[ProviderId, tuple[str, HostFacts]] = {}
        self._touched: dict[ProviderId, NodeRow] = {}
        self._gained: dict[ProviderId, None] = {}

    def touch(self, rows: Iterable[NodeRow]) -> None:
        for row in rows:
            if row.cell and row.node is not None and not row.is_deleted:
                known = self._told.get(row.id)
                if known != (row.cell, _facts(row)):
                    self._touched[row.id] = row
                    self._telling.wake()

    def gained(self, nodes: Sequence[Owned]) -> None:
        """The registry must hear of them under their new epoch."""
        self._gained.update(dict.fromkeys(each.id for each in nodes))
        self._telling.wake()

    def lost(self, nodes: Sequence[ProviderId]) -> None:
        for node in nodes:
            self._told.pop(node, None)
            self._gained.pop(node, None)

    async def _announce(self) -> None:
        while self._gained:
            some = [*self._gained][: self._settings.page]
            for row in (await self._store.read(some)).values():
                if row.cell and row.node is not None and not row.is_deleted:
                    self._touched[row.id] = row
            for node in some:
                self._gained.pop(node, None)
        rows = [*self._touched.values()]
        self._touched.clear()
        try:
            await self._publisher.send_all([Outgoing(each) for each in _reports(rows)])
        except Exception:
            self._touched = {row.id: row for row in rows} | self._touched
            raise
        self._told.update((row.id, (row.cell, _facts(row))) for row in rows)

    async def _beat(self) -> None:
        """A beat that has not left before the next one is withdrawn: it would say of the past that it is now."""
        if not self._membership.may_act():
            return
        cells: dict[str, list[ProviderId]] = {}
        for node in self._membership.owned:
            if (told := self._told.get(node)) is not None:
                cells.setdefault(told[0], []).append(node)
        beats = [
            HostsAlive(cell=cell, hosts=tuple(nodes[first : first + BEATS_PER_MESSAGE]))
            for cell, nodes in cells.items()
            for first in range(0, len(nodes), BEATS_PER_MESSAGE)
        ]
        sent = self._publisher.send_all([Outgoing(beat) for beat in beats])
        await asyncio.wait((sent,), timeout=self._settings.beat_s)
        if sent.done():
            sent.result()
        else:
            self._publisher.withdraw(sent)


def _facts(row: NodeRow) -> HostFacts:
    """A node as the host registry has it. Its name is its id, as in placement: Ironic's names may be null, and change."""
    node = row.node
    assert node is not None, "a node that is told of is known"
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
        numbered = structs.replace(_facts(row), epoch=row.epoch, sequence=row.version)
        cells.setdefault(row.cell, []).append(numbered)
    for cell, facts in cells.items():
        for some in in_messages(facts):
            yield HostsReported(cell=cell, hosts=some)
