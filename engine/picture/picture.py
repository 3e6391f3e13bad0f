"""The scheduler's replica of all providers and hosts, with its own choices that placement has not answered yet.

A host is a root provider, or a host of the registry without a provider. Nothing is searched here: columns.py gives the
choice its columns, and compounds.py searches the provider index where a host's columns do not say enough.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from uuid import UUID

import numpy as np
from msgspec import Struct

from engine.candidates.columns import Flags
from engine.candidates.provider_index import ProviderIndex
from engine.hosts import NODE, Aggregate, HostState, cell_and_name, host_in_cell
from engine.inventories import (
    AggregateId,
    ConsumerId,
    ProviderId,
    ProviderState,
    ProviderUsage,
    Share,
    SortedNames,
    near_in_words,
    tree_fingerprint,
)
from engine.picture.columns import KnownBefore, PictureColumns, PictureStock, Tree, Trees, written_of
from engine.picture.members import (
    GroupMembers,
    HostAggregates,
    HostPreferences,
    Sharing,
    TouchedHosts,
    preferences_of,
    sharing_of,
    with_new_hosts,
)
from engine.picture.usual import UsualShapes

# Numbers by the column that they are for, with their rows: so each column is written once for a batch.
_Gathered = defaultdict[PictureStock, tuple[list[int], list[int]]]


def _no_numbers() -> tuple[list[int], list[int]]:
    return [], []


NO_HOST = "no host of this name is known"

# A choice: the instance, and its attempt.
Key = tuple[ConsumerId, int]


class _Hold(Struct):
    key: Key
    row: int
    share: Share
    taken: tuple[tuple[PictureStock, int], ...]
    is_granted: bool = False


class Picture:
    """A scheduler's copy of placement's data, of the host registry and of aggregates' metadata, with its own unanswered
    choices.

    `Replica`, the registries of hosts and cells, and orders about aggregates write into it. The claimer and moves hold
    their choices there. The choice of hosts only reads it, and writes into a `Draft`.
    """

    def __init__(self) -> None:
        self.columns = PictureColumns()
        self.trees = Trees()
        self.touched = TouchedHosts()
        self.groups = GroupMembers(self.touched.add_group)
        self.aggregates = HostAggregates()
        self.usual = UsualShapes()
        self._named: dict[str, set[int]] = {}
        # Made when an error first needs it; None again when a host comes or goes.
        self._known_names: SortedNames | None = None
        # The names of several hosts.
        self._shared_names: set[str] = set()
        # Every boot or report looks these up, so by integers: a UUID's hash runs in Python, 0.48 us a look-up against 0.11.
        self._registry: dict[int, HostState] = {}
        self._rows: dict[int, int] = {}
        self._holds: dict[tuple[int, int], _Hold] = {}
        # By the salt for which they are.
        self._preferences: tuple[int, HostPreferences] | None = None
        self._compound: Flags | None = None
        self._sharing: Sharing | None = None
        # The rows of hosts that these preferences lack.
        self._new_rows: list[int] = []

    def __len__(self) -> int:
        """The number of hosts."""
        return len(self._rows)

    # From placement

    def apply(self, states: Iterable[ProviderState]) -> None:
        """Merge these states of providers; an older one, or one of a deleted provider, changes nothing."""
        self.trees.merge(states)
        self._write_changed()
        # Without this the first search attaches all trees at once, and boots wait for it.
        self.index.attach_trees()

    def apply_read(self, states: Sequence[ProviderState], before: KnownBefore) -> None:
        """Merge these states, which placement has answered. What the picture had `before` placement was asked, and what
        contradicts the answer, is false, and goes.
        """
        self.trees.merge_read(states, before)
        self._write_changed()
        self.index.attach_trees()

    def end_reading_of_all(self, there: AbstractSet[int], before: KnownBefore) -> None:
        """Placement has answered with all providers there are. Those that were known `before` and are not among them go."""
        self.trees.end_reading_of_all(there, before)
        self._write_changed()

    def use(self, usages: Collection[ProviderUsage]) -> bool:
        """Merge usages. Returns whether the states of providers that they are based on are all known."""
        if self.touched.is_watched:
            self._touch_users_of_pools(usages)
        news, has_all = self.trees.merge_usages(usages)
        tree_with = self.trees.with_provider.get
        self._use(
            [
                (tree, usage.id, usage.used, usage.consumers)
                for usage in news
                # Usage may arrive before the state that it belongs to.
                if (tree := tree_with(usage.internal)) is not None
            ]
        )
        return has_all

    def prune(self, internals: Iterable[int]) -> None:
        """Remove these providers, by internal id, and ignore late messages about them. Placement has said that they are
        deleted.
        """
        self.trees.delete(internals)
        self._write_changed()

    def forget(self, gone: Iterable[ProviderId]) -> None:
        """Remove these providers: placement has just answered that they do not exist. If one was created since, published
        changes say so.
        """
        self.trees.discard(map(self.trees.internal_of, gone))
        self._write_changed()

    # From the registry

    def put_hosts(self, hosts: Iterable[HostState]) -> None:
        """Write these hosts, as the host registry has them now."""
        for host in hosts:
            number = host.id.int
            known = self._registry.get(number)
            self._registry[number] = host
            if known is None or (known.name, known.cell) != (host.name, host.cell):
                self._write_row(self.trees.by_root.get(number) or Tree(host.id))
            elif written_of(known) != written_of(host):
                # The providers' columns stay.
                self._write_registry(self._rows[number], host)

    def remove_hosts(self, hosts: Iterable[ProviderId]) -> None:
        """Remove these hosts, which the host registry has forgotten."""
        for host in hosts:
            if self._registry.pop(host.int, None) is not None:
                self._write_row(self.trees.by_root.get(host.int) or Tree(host))

    def put_cells_down(self, reasons: Mapping[str, str]) -> None:
        """Set which cells are down, with the reasons; all others are up."""
        columns = self.columns
        down = {columns.cells.code(cell): reason for cell, reason in reasons.items()}
        if down != columns.cells_down:
            columns.cells_down = down
            self.touched.add_all()

    def measure(self, host: ProviderId, values: Mapping[str, float]) -> None:
        """Write the host's metrics. Those of a host that is not known yet are dropped, since the host will send them
        again.
        """
        row = self.row_of(host)
        if row >= 0:
            self.columns.put_metrics(row, values)
            self.touched.add((row,))

    def cache_images(self, host: ProviderId, images: Iterable[str]) -> None:
        """Write which images the host has cached. The images of a host that is not known yet are dropped, since it will
        send them again.
        """
        row = self.row_of(host)
        if row >= 0 and self.columns.images.put(row, images):
            self.touched.add((row,))

    def put_aggregates(self, aggregates: Iterable[Aggregate]) -> None:
        """Merge the metadata of these aggregates; an older state changes nothing."""
        self._write_zones(self.aggregates.put(aggregates))

    def remove_aggregate(self, deleted: Aggregate) -> None:
        """Remove the metadata of this aggregate. Its members are known from placement, and stay."""
        self._write_zones(self.aggregates.remove(deleted))

    def _write_zones(self, changed: set[AggregateId]) -> None:
        columns = self.columns
        codes = self.aggregates.sets_with(changed) if changed else []
        if changed:
            self.touched.add_all()
        for row in np.flatnonzero(np.isin(columns.aggregates[: columns.rows], codes)).tolist():
            self._write_zone(row, self._registry.get(columns.ids[row].int))

    # This scheduler's choices

    def hold(self, choices: Iterable[tuple[ConsumerId, int, Share]]) -> None:
        """Count these choices as used room until placement answers. If one of them is held again, the later share
        counts.
        """
        held = []
        before = []
        for consumer, attempt, share in choices:
            key = consumer.int, attempt
            if (hold := self._holds.pop(key, None)) is not None:
                before.append(hold)
            if (row := self._rows.get(share.host.int)) is not None:
                hold = self._holds[key] = _Hold((consumer, attempt), row, share, self._taken(share))
                held.append(hold)
        self._count(before, -1)
        self._count(held, 1)

    def granted(self, consumer: ConsumerId, attempt: int) -> None:
        """Note that placement has granted this choice. The picture holds it until a change from placement names it, or
        until a reading that began after this has ended.
        """
        if (hold := self._holds.get((consumer.int, attempt))) is not None:
            hold.is_granted = True

    def granted_so_far(self) -> Sequence[Key]:
        return [hold.key for hold in self._holds.values() if hold.is_granted]

    def drop(self, choices: Iterable[Key]) -> None:
        """Stop holding these choices: placement has refused them, or their usage is in the providers' states by now."""
        choices = tuple(choices)
        if self.groups.held:
            self.groups.drop(choices)
        holds = (self._holds.pop((consumer.int, attempt), None) for consumer, attempt in choices)
        self._count([hold for hold in holds if hold is not None], -1)

    # Questions

    def has_provider(self, host: ProviderId) -> bool:
        """Does placement have the root provider of this host?"""
        row = self.row_of(host)
        return row >= 0 and bool(self.columns.provided[row])

    def placed_in(self, host: ProviderId) -> str:
        """The cell that placement names for this host; empty if placement does not have it."""
        tree = self.trees.by_root.get(host.int)
        top = None if tree is None else tree.top
        return "" if top is None else top.cell

    def registered(self, row: int) -> HostState | None:
        """The host in this row, as the host registry has it."""
        return self._registry.get(self.columns.ids[row].int)

    def unregistered(self) -> list[ProviderId]:
        """The hosts that placement has and the host registry lacks."""
        columns = self.columns
        return [columns.ids[row] for row in np.flatnonzero(columns.present & ~columns.registered).tolist()]

    def row_of(self, host: ProviderId) -> int:
        """The row number of this host in the columns; -1 if it has none."""
        return self._rows.get(host.int, -1)

    def members_of(self, aggregate: AggregateId) -> list[int]:
        """The rows of the hosts in this aggregate, in the order of their names."""
        columns, codes = self.columns, self.aggregates.sets_with({aggregate})
        rows = np.flatnonzero(
            np.isin(columns.aggregates[: columns.rows], codes) & columns.present[: columns.rows]
        )
        return sorted(rows.tolist(), key=lambda row: (columns.names[row], columns.ids[row]))

    def aggregates_of(self, host: ProviderId) -> tuple[AggregateId, ...]:
        row = self.row_of(host)
        return () if row < 0 else self.aggregates.ids_of_set(int(self.columns.aggregates[row]))

    def aggregate_names_of(self, host: ProviderId) -> tuple[str, ...]:
        """The names of the aggregates of a host, as far as they have one."""
        row = self.row_of(host)
        known = () if row < 0 else self.aggregates.of_set(int(self.columns.aggregates[row]))
        return tuple(sorted([each.name for each in known if each.name]))

    def zone_of(self, host: ProviderId) -> str:
        """The zone of a host: that of its aggregates, else the one that it reports."""
        row = self.row_of(host)
        return "" if row < 0 else self.columns.zones.names[int(self.columns.zone[row])]

    def place_of(self, host: ProviderId) -> str:
        row = self.row_of(host)
        return "" if row < 0 else self.columns.places.names[int(self.columns.place[row])]

    def rows_named(self, name: str) -> Iterable[int]:
        """The rows of the hosts with this name, which is in lower case: in one cell if it is named (`c1/h1`), otherwise in
        all cells. Whoever decides by a name must name the cell, or ask `cells_named`.
        """
        cell, plain = cell_and_name(name)
        return self.rows_in(cell, plain) if cell and plain in self._named else self._named.get(name, ())

    def is_host(self, word: str) -> bool:
        """Is this the name of a host, in whatever letter case, or the id of one?"""
        try:
            return word.lower() in self._named or self.row_of(ProviderId(UUID(word))) >= 0
        except ValueError:
            return False

    def no_host(self, name: str) -> str:
        """What an error says of a name that no host has. Not for projects: it names hosts."""
        plain = cell_and_name(name)[1]
        if self._known_names is None:
            rows = [row for some in self._named.values() for row in some]
            self._known_names = SortedNames([self.columns.names[row] for row in rows])
        elsewhere = [host_in_cell(cell, plain) for cell in self.cells_named(plain)]
        return f"{NO_HOST}{near_in_words(elsewhere or self._known_names.near(plain))}"

    def rows_in(self, cell: str, name: str) -> list[int]:
        """The rows of this cell's hosts with this name, in whatever letter case."""
        code = self.columns.cells.find(cell)
        return [row for row in sorted(self._named.get(name.lower(), ())) if self.columns.cell[row] == code]

    def cells_named(self, name: str) -> list[str]:
        """The cells that have a host with this name. A name counts only inside its cell: if several cells have it, it
        says nothing without the cell.
        """
        rows = self.rows_named(name.lower())
        return sorted({self.columns.cells.names[int(self.columns.cell[row])] for row in rows})

    def clashes(self) -> dict[str, list[str]]:
        """The names that hosts of several cells have, in lower case, each with its cells."""
        named = {name: self.cells_named(name) for name in sorted(self._shared_names)}
        return {name: cells for name, cells in named.items() if len(cells) > 1}

    def is_up(self, cell: str, host: str) -> bool:
        return any(self.columns.up[row] for row in self.rows_in(cell, host))

    def is_node(self, cell: str, host: str) -> bool:
        return any(self.columns.kinds[row] == NODE for row in self.rows_in(cell, host))

    @property
    def index(self) -> ProviderIndex:
        """The index of all providers that placement has reported."""
        return self.trees.index

    @property
    def compound(self) -> Flags:
        """For each row: does its host have child providers, or a provider that shares with it?"""
        if self._compound is None:
            self._compound = self.columns.nested[: self.columns.rows] | self.sharing.is_shared_with
        return self._compound

    @property
    def sharing(self) -> Sharing:
        """Which hosts may take from which sharing providers."""
        if self._sharing is None:
            self._sharing = sharing_of(self.columns, self.index)
        return self._sharing

    def held_on_compound(self) -> Iterable[Share]:
        """The unanswered choices on compound hosts."""
        compound = self.compound
        return [hold.share for hold in self._holds.values() if compound[hold.row]]

    def preferences(self, salt: int) -> HostPreferences:
        known, hosts = self._preferences, self.columns.ids
        if known is None or known[0] != salt or len(self._new_rows) > len(hosts) // 2:
            known = salt, preferences_of(hosts, salt)
        elif self._new_rows:
            known = salt, with_new_hosts(known[1], hosts, self._new_rows, salt)
        self._preferences, self._new_rows = known, []
        return known[1]

    # Writing rows

    def _write_changed(self) -> None:
        """Write what merged states of providers have changed."""
        trees, used = self.trees.take_changes()
        if any(tree.row < 0 for tree, _ in used):
            # It shares with other hosts, and nobody knows any more what it had free.
            self.touched.add_all()
        for tree in trees:
            self._write_row(tree)
        of, consumers_of = self.trees.used, self.trees.consumers_of
        self._use([(tree, state.id, of(state), consumers_of(state)) for tree, state in used])

    def _use(self, news: Sequence[tuple[Tree, ProviderId, Mapping[str, int], int]]) -> None:
        """Write into the host columns how much is used of these providers, each given with its tree, and how many
        consumers the root providers have.
        """
        gathered, consumers = _Gathered(_no_numbers), dict[int, int]()
        touched = self.touched
        for tree, provider, used, count in news:
            is_alone = len(tree.providers) == 1
            if touched.is_watched:
                self._touch_used(tree, used)
            # Consumers are counted on roots alone. A tree without a row is no host.
            if tree.root.int == provider.int and tree.row >= 0:
                consumers[tree.row] = count
            for resource, amount in used.items():
                if resource in tree.classes:
                    in_all = amount if is_alone else self.trees.used_in_all(tree, resource)
                    rows, amounts = gathered[self.columns.stocks[resource]]
                    rows.append(tree.row)
                    amounts.append(in_all)
        for stock, (rows, amounts) in gathered.items():
            stock.use(np.array(rows), np.array(amounts))
        if touched.is_watched:
            touched.add(row for row, count in consumers.items() if count < self.columns.consumers[row])
        if consumers:
            self.columns.consumers[[*consumers]] = [*consumers.values()]

    def _touch_used(self, tree: Tree, used: Mapping[str, int]) -> None:
        """Note whether the host may have room again, after the usage of this tree has changed. A host with child providers
        may in any case, a host of one provider only if less of a class is used than before.
        """
        if len(tree.providers) > 1 or any(
            amount < self.columns.stocks[resource].used[tree.row]
            for resource, amount in used.items()
            if resource in tree.classes
        ):
            self.touched.add((tree.row,))

    def _touch_users_of_pools(self, usages: Iterable[ProviderUsage]) -> None:
        """Note which hosts share pools of which less will be used than before."""
        index, users = self.index, self.sharing.users
        for usage in usages:
            row = index.row_of(usage.id) if users else None
            if row in users and any(
                usage.used.get(resource, 0) < used
                for resource, used in self.trees.used(index.state(row)).items()
            ):
                self.touched.add(users[row].tolist())

    def _write_row(self, tree: Tree) -> None:
        """Write all columns of a host, since more than its usage has changed."""
        self._compound = self._sharing = None
        host = self._registry.get(tree.root.int)
        if host is None and not tree.is_host:
            self.touched.add_all()
            self._erase(tree)
            return
        columns = self.columns
        row = tree.row = self._row_of(tree.root)
        top = tree.top
        stocked = self.trees.stocked(tree)
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
        columns.fingerprints[row] = tree_fingerprint(tree.providers.values())
        columns.provided[row] = top is not None
        columns.consumers[row] = 0 if top is None else self.trees.consumers_of(top)
        columns.aggregates[row] = 0 if top is None else self.aggregates.code_of(top.aggregates)
        columns.place[row] = 0 if top is None else columns.places.code(top.place)
        self._write_registry(row, host)
        reported_cell, placement_cell = host.cell if host else "", top.cell if top else ""
        columns.cell[row] = columns.cells.code(placement_cell or reported_cell)
        columns.consistent[row] = not reported_cell or not placement_cell or reported_cell == placement_cell
        self._set_name(row, host.name if host else top.name if top else "")

    def _write_registry(self, row: int, host: HostState | None) -> None:
        columns = self.columns
        self.touched.add((row,))
        columns.put_host(row, host)
        self._write_zone(row, host)

    def _write_zone(self, row: int, host: HostState | None) -> None:
        columns = self.columns
        zone = self.aggregates.zone_of_set(int(columns.aggregates[row]))
        columns.zone[row] = columns.zones.code(zone or (host.availability_zone if host else ""))

    def _row_of(self, host: ProviderId) -> int:
        row = self._rows.get(host.int)
        if row is None:
            row = self._rows[host.int] = self.columns.add(host)
            if self._preferences is not None:
                self._new_rows.append(row)
        return row

    def _erase(self, tree: Tree) -> None:
        tree.row = -1
        tree.classes = frozenset()
        row = self._rows.pop(tree.root.int, None)
        if row is None:
            return
        # The next host in this row must not find choices for this one.
        keys = [key for key, hold in self._holds.items() if hold.row == row]
        self._count([self._holds.pop(key) for key in keys], -1)
        for stock in self.columns.stocks.values():
            stock.clear(row)
        self._set_name(row, "")
        self.columns.give_back(row)

    def _is_in_tree(self, provider: ProviderId, host: int) -> bool:
        """Is the provider in the tree of the host with this number?"""
        row = self.index.row_of(provider)
        return row is not None and self.index.state(row).root.int == host

    def _taken(self, share: Share) -> tuple[tuple[PictureStock, int], ...]:
        """The share's amounts with their columns. Those of sharing providers are left out: the host's columns lack them."""
        stocks, host = self.columns.stocks, share.host.int
        return tuple(
            [
                (stock, amount.amount)
                for amount in share.amounts
                if (stock := stocks.get(amount.resource)) is not None
                # Nearly all hosts are one provider.
                and (amount.provider.int == host or self._is_in_tree(amount.provider, host))
            ]
        )

    def _count(self, holds: Sequence[_Hold], times: int) -> None:
        """Add the amounts of these unanswered choices to the columns (`times` is 1), or subtract them (-1)."""
        if not holds:
            return
        gathered = _Gathered(_no_numbers)
        if times < 0 and self.touched.is_watched:
            self.touched.add([hold.row for hold in holds])
        for hold in holds:
            for stock, amount in hold.taken:
                rows, amounts = gathered[stock]
                rows.append(hold.row)
                amounts.append(amount)
        for stock, (rows, amounts) in gathered.items():
            stock.hold(np.array(rows), np.array(amounts) * times)
        np.add.at(self.columns.holding, [hold.row for hold in holds], times)

    def _set_name(self, row: int, name: str) -> None:
        before = self.columns.names[row]
        if before == name:
            return
        if before:
            self._count_name(before.lower(), self._named[before.lower()] - {row})
        if name:
            self._count_name(name.lower(), self._named.get(name.lower(), set()) | {row})
        self.columns.names[row] = name
        self._known_names = None

    def _count_name(self, name: str, rows: set[int]) -> None:
        if rows:
            self._named[name] = rows
        else:
            del self._named[name]
        if len(rows) > 1:
            self._shared_names.add(name)
        else:
            self._shared_names.discard(name)
