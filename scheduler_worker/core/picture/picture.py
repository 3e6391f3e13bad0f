"""The scheduler's replica of all providers and hosts, and its own choices that have not been answered yet.

A host is a root provider, or one in the registry that has no provider yet. Nothing is searched here: hosts.py shows the
columns to whoever chooses, and compounds.py searches the provider index where columns of hosts do not say enough.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from bus.message import ConsumerId, ProviderId
from bus.messages.hosts import NODE, HostState
from bus.messages.placement import ProviderGone, ProviderState, ProviderUsage, Share
from bus.messages.qualities import qualities_of
from placement_worker.core.candidates.columns import BatchedValues, Flags, Words
from placement_worker.core.candidates.provider_index import ProviderIndex
from scheduler_worker.core.picture.columns import Columns, Stock
from scheduler_worker.core.picture.trees import Tree, Trees

_WORD = 2**64 - 1


class _Hold:
    __slots__ = ("row", "share", "taken")

    def __init__(self, row: int, share: Share, taken: tuple[tuple[Stock, int], ...]) -> None:
        self.row = row
        self.share = share
        self.taken = taken


class Picture:
    """Fed by whoever listens; copied from, never written in, by whoever chooses."""

    def __init__(self) -> None:
        self.columns = Columns()
        self._trees = Trees()
        self._registry: dict[int, HostState] = {}
        self._rows: dict[int, int] = {}
        self._named: dict[str, set[int]] = {}
        self._holds: dict[tuple[int, int], _Hold] = {}
        self._preferences: tuple[int, int, Words] | None = None
        self._compound: Flags | None = None
        self._hosts_seen = 0

    def __len__(self) -> int:
        """How many hosts there are."""
        return len(self._rows)

    # What placement says.

    def apply(self, states: Iterable[ProviderState]) -> None:
        """Merge these: what is older than what is known, or known to be gone, changes nothing."""
        for state in states:
            merged = self._trees.merge(state)
            if merged.used is not None:
                self._use(((merged.used, self._trees.used(state)),))
                self._count_living(((merged.used, state.id, self._trees.living_on(state)),))
            for tree in merged.trees:
                self._draw(tree)

    def use(self, usages: Collection[ProviderUsage]) -> bool:
        """Merge what claims have changed; whether all that they stand on is known."""
        news = self._trees.use(usages)
        self._use((tree, usage.used) for tree, usage in news)
        self._count_living((tree, usage.id, usage.consumers) for tree, usage in news)
        return all(self._trees.stands(usage) for usage in usages)

    def remove(self, gone: Iterable[ProviderGone]) -> None:
        """These are no more, and what was said of them before is not believed when it comes late."""
        self.prune(one.internal for one in gone)

    def prune(self, internals: Iterable[int]) -> None:
        """The same by internal id, of those that were known before a snapshot was begun, and that it did not have."""
        for internal in internals:
            tree = self._trees.bury(internal)
            if tree is not None:
                self._draw(tree)

    def internals(self) -> frozenset[int]:
        """The internal ids of all providers that are known."""
        return frozenset(self._trees.internals())

    def gone(self) -> frozenset[int]:
        """The internal ids of those that are known to be gone."""
        return self._trees.gone()

    def exhume(self, internals: Iterable[int]) -> None:
        """They were wrongly taken for gone: believe again what is said of them."""
        self._trees.exhume(internals)

    def behind(self, revisions: Mapping[int, int], known: Iterable[int]) -> list[int]:
        """Which providers, by internal id, are not as late here as in these `revisions`, which are all there are; and
        which of those that were `known` before are not among them, and still here.
        """
        late = [internal for internal, revision in revisions.items() if self._trees.lacks(internal, revision)]
        over = [internal for internal in known if internal not in revisions and self._trees.knows(internal)]
        return late + over

    def forget(self, gone: Iterable[ProviderId]) -> None:
        """Placement found no such providers just now; should it have them again by this time, it says so."""
        for provider in gone:
            internal = self._trees.internal_of(provider)
            tree = None if internal is None else self._trees.lose(internal)
            if tree is not None:
                self._draw(tree)

    # What the registry says.

    def know(self, hosts: Iterable[HostState]) -> None:
        """An older `sequence` than what is known changes nothing."""
        for host in hosts:
            known = self._registry.get(host.id.int)
            if known is not None and host.sequence < known.sequence:
                continue
            self._registry[host.id.int] = host
            if known is not None and (known.name, known.cell) == (host.name, host.cell):
                # How busy it is changes with every build, and what else the row says does not.
                self._draw_registry(self._rows[host.id.int], host)
            else:
                self._draw(self._trees.by_root.get(host.id.int) or Tree(host.id))

    def unknow(self, hosts: Iterable[ProviderId]) -> None:
        """The registry has forgotten these."""
        for host in hosts:
            if self._registry.pop(host.int, None) is not None:
                self._draw(self._trees.by_root.get(host.int) or Tree(host))

    # What we chose ourselves.

    def hold(self, consumer: ConsumerId, attempt: int, share: Share) -> None:
        """Count an own choice until it is answered. Held again, the later share counts."""
        self.hold_all(((consumer, attempt, share),))

    def hold_all(self, choices: Iterable[tuple[ConsumerId, int, Share]]) -> None:
        held = []
        before = []
        for consumer, attempt, share in choices:
            key = consumer.int, attempt
            if (hold := self._holds.pop(key, None)) is not None:
                before.append(hold)
            if (row := self._rows.get(share.host.int)) is not None:
                hold = self._holds[key] = _Hold(row, share, self._taken(share))
                held.append(hold)
        self._count(before, -1)
        self._count(held, 1)

    def drop(self, consumer: ConsumerId, attempt: int) -> None:
        """The choice was answered, or a change names it: by now it stands in the books, or nowhere."""
        self.drop_all(((consumer, attempt),))

    def drop_all(self, choices: Iterable[tuple[ConsumerId, int]]) -> None:
        holds = (self._holds.pop((consumer.int, attempt), None) for consumer, attempt in choices)
        self._count([hold for hold in holds if hold is not None], -1)

    # What may be asked of it.

    def cell_of(self, host: ProviderId) -> str:
        """Empty if there is no such host."""
        row = self._rows.get(host.int)
        return "" if row is None else self.columns.cells.names[int(self.columns.cell[row])]

    def has_provider(self, host: ProviderId) -> bool:
        """Has placement told of its root?"""
        row = self._rows.get(host.int)
        return row is not None and bool(self.columns.provided[row])

    def unregistered(self) -> list[ProviderId]:
        """Hosts that placement has told of, and nobody else."""
        columns = self.columns
        rows = np.flatnonzero(columns.present & ~columns.registered).tolist()
        return [columns.ids[row] for row in rows]

    def rows_named(self, name: str) -> Iterable[int]:
        """Of the hosts with this name, which is in lower case."""
        return self._named.get(name, ())

    @property
    def index(self) -> ProviderIndex:
        """All providers, as placement told of them."""
        return self._trees.index

    @property
    def compound(self) -> Flags:
        """Of each row: has its host children, or does anybody share with it?"""
        if self._compound is None:
            self._compound = self._find_compound()
        return self._compound

    def shape_of(self, root: ProviderId) -> int:
        return self._trees.by_root[root.int].shape

    def held_on_compound(self) -> Iterable[Share]:
        """Own choices that are not answered yet."""
        compound = self.compound
        return [hold.share for hold in self._holds.values() if compound[hold.row]]

    def preferences(self, salt: int) -> Words:
        """A number of 32 bits for each row, by which equals are told apart: others for each salt, always the same."""
        known = self._preferences
        if known is None or known[:2] != (salt, self._hosts_seen):
            ids = [(host.int ^ host.int >> 64) & _WORD for host in self.columns.ids]
            known = salt, self._hosts_seen, _mixed(np.array(ids, dtype=np.uint64), salt)
            self._preferences = known
        return known[2]

    # How a row is drawn.

    def _use(self, news: Iterable[tuple[Tree, Mapping[str, int]]]) -> None:
        gathered = BatchedValues[Stock]()
        for tree, used in news:
            is_alone = len(tree.providers) == 1
            for resource, amount in used.items():
                if resource in tree.classes:
                    in_all = amount if is_alone else self._trees.used_in_all(tree, resource)
                    gathered.add(self.columns.stocks[resource], tree.row, in_all)
        for stock, rows, amounts in gathered:
            stock.use(rows, amounts)

    def _count_living(self, news: Iterable[tuple[Tree, ProviderId, int]]) -> None:
        """On roots: nobody lives on a child."""
        rows = {tree.row: count for tree, provider, count in news if tree.root.int == provider.int}
        # Without a row it is a pool.
        rows.pop(-1, None)
        if rows:
            self.columns.consumers[[*rows]] = [*rows.values()]

    def _draw(self, tree: Tree) -> None:
        """All of a host's row, since something of it is new beside what is used."""
        self._compound = None
        host = self._registry.get(tree.root.int)
        if host is None and not tree.is_host:
            self._erase(tree)
            return
        columns = self.columns
        row = tree.row = self._row_of(tree.root)
        top = tree.top
        stocked = self._trees.stocked(tree)
        for resource in tree.classes - stocked.keys():
            columns.stocks[resource].clear(row)
        tree.classes = frozenset(stocked)
        for resource, (inventory, used) in stocked.items():
            stock = columns.stock(resource)
            stock.put(row, inventory)
            stock.use(row, used)
        columns.nested[row] = len(tree.providers) > 1
        root = None if top is None else self.index.row_of(top.id)
        columns.root[row] = -1 if root is None else root
        columns.put_traits(row, tree.traits)
        columns.shapes[row] = tree.shape
        columns.qualities[row] = qualities_of(tree.providers.values())
        columns.provided[row] = top is not None
        columns.consumers[row] = 0 if top is None else self._trees.living_on(top)
        self._draw_registry(row, host)
        said, booked = host.cell if host else "", top.cell if top else ""
        columns.cell[row] = columns.cells.code(booked or said)
        columns.consistent[row] = not said or not booked or said == booked
        self._call(row, host.name if host else top.name if top else "")

    def _draw_registry(self, row: int, host: HostState | None) -> None:
        columns = self.columns
        columns.registered[row] = host is not None
        columns.up[row] = host is not None and host.up
        columns.enabled[row] = host is not None and host.enabled
        columns.disabled_reasons[row] = host.disabled_reason if host else ""
        columns.instances[row] = host.instances if host else 0
        columns.io_ops[row] = host.io_ops if host else 0
        columns.zone[row] = columns.zones.code(host.availability_zone if host else "")
        kind = columns.kinds[row] = host.kind if host else ""
        columns.node[row] = kind == NODE
        columns.bind(row, host.projects if host and kind == NODE else ())

    def _row_of(self, host: ProviderId) -> int:
        row = self._rows.get(host.int)
        if row is None:
            row = self._rows[host.int] = self.columns.add(host)
            self._hosts_seen += 1
        return row

    def _erase(self, tree: Tree) -> None:
        tree.row = -1
        tree.classes = frozenset()
        row = self._rows.pop(tree.root.int, None)
        if row is None:
            return
        # Whoever has the row next must not find there what was chosen for this one.
        keys = [key for key, hold in self._holds.items() if hold.row == row]
        self._count([self._holds.pop(key) for key in keys], -1)
        for stock in self.columns.stocks.values():
            stock.clear(row)
        self._call(row, "")
        self.columns.give_back(row)

    def _find_compound(self) -> Flags:
        columns, index = self.columns, self.index
        compound = columns.nested[: columns.rows].copy()
        if index.sharing:
            index.attach_trees()
            reached = np.zeros(index.rows, dtype=np.bool_)
            for row in sorted(index.sharing):
                reached[index.reached_from(row)] = True
            roots = columns.root[: columns.rows]
            compound |= reached[roots] & (roots >= 0)
        return compound

    def _is_of(self, provider: ProviderId, host: ProviderId) -> bool:
        """Does it stand in this host's tree?"""
        if provider.int == host.int:
            return True
        row = self.index.row_of(provider)
        return row is not None and self.index.state(row).root.int == host.int

    def _taken(self, share: Share) -> tuple[tuple[Stock, int], ...]:
        """What is shared with the tree is not in the host's column."""
        stocks = self.columns.stocks
        return tuple(
            [
                (stock, amount.amount)
                for amount in share.amounts
                if (stock := stocks.get(amount.resource)) is not None
                and self._is_of(amount.provider, share.host)
            ]
        )

    def _count(self, holds: Sequence[_Hold], times: int) -> None:
        """Once, or once less."""
        if not holds:
            return
        gathered = BatchedValues[Stock]()
        for hold in holds:
            for stock, amount in hold.taken:
                gathered.add(stock, hold.row, amount)
        for stock, rows, amounts in gathered:
            stock.hold(rows, amounts * times)
        np.add.at(self.columns.holding, [hold.row for hold in holds], times)

    def _call(self, row: int, name: str) -> None:
        before = self.columns.names[row]
        if before == name:
            return
        if before:
            self._named[before.lower()].discard(row)
            if not self._named[before.lower()]:
                del self._named[before.lower()]
        if name:
            self._named.setdefault(name.lower(), set()).add(row)
        self.columns.names[row] = name


def _mixed(ids: Words, salt: int) -> Words:
    """Ids stirred until those that differ little differ much (the finish of splitmix64)."""
    mixed = ids + np.uint64(salt * 0x9E3779B97F4A7C15 & _WORD)
    mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return mixed >> np.uint64(32)
