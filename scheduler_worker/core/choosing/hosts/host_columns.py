"""The columns of hosts that plugins see while a batch is decided: the choices of the batch count already."""

from collections.abc import Iterable, Mapping
from functools import partial

import numpy as np

from bus.message import ConsumerId
from bus.messages.placement import ServerGroup
from placement_worker.core.candidates.columns import Flags, Floats, Ints, Rows
from scheduler_worker.core.choosing.compound.compounds import Compounds, Found
from scheduler_worker.core.choosing.draft import Draft
from scheduler_worker.core.choosing.hosts.host_facts import HostFactColumns
from scheduler_worker.core.choosing.needs import Needs
from scheduler_worker.core.requests import InstanceSpec

# Of more hosts, all hosts are looked at: that costs less.
LOOKED_AT_AGAIN_MAX = 32


class Hosts(HostFactColumns):
    """Some hosts, or all, with one batch's choices counted: every answer is an array with one entry for each host, in
    the same order.

    `taken` has a number for each entry: the host is judged as if it had that many further instances, each of `amounts`. A
    host may have several entries with different numbers, so one pass computes the scores of many hosts at several counts.
    """

    def __init__(
        self,
        draft: Draft,
        rows: Rows | None = None,
        taken: Ints | None = None,
        amounts: Mapping[str, int] | None = None,
        *,
        only_together: bool = False,
        before_search: bool = False,
    ) -> None:
        """With `only_together`, the caller asks whether hosts pass all filters, and not by which of them they fail.

        With `before_search`, no compound host is searched: a compound host passes if it may have what is needed.
        """
        super().__init__(draft, rows)
        self.only_together = only_together
        self.before_search = before_search
        self._taken = taken
        self._amounts = amounts or {}
        # Filters and weighers ask for the same column.
        self._free: dict[str, Ints] = {}

    # Room

    def free(self, resource: str) -> Ints:
        """The amount that is neither used nor held by an unanswered choice. Negative where an inventory shrank."""
        free = self._free.get(resource)
        if free is None:
            free = self._free[resource] = self._look_up_free(resource)
        return free

    def _look_up_free(self, resource: str) -> Ints:
        column = self._draft.free(resource)
        if column is None:
            return np.zeros(len(self), dtype=np.int64)
        amount = self._amounts.get(resource)
        return (
            self.of(column) if self._taken is None or not amount else self.of(column) - self._taken * amount
        )

    def giving(self, resource: str, amount: int) -> Flags:
        """The hosts that have this amount free, and whose inventories allow it: min_unit, max_unit and step_size.
        Callers must not write into the array: the answer about all hosts is kept, since specs of a batch often ask for
        the same amount.
        """
        if self._rows is not None:
            return self._look_up_giving(resource, amount)
        kept, takers = self._draft.giving, self._draft.takers
        flags, seen = kept.get((resource, amount), (None, 0))
        if flags is None or len(takers) - seen > LOOKED_AT_AGAIN_MAX:
            flags = self._look_up_giving(resource, amount)
        elif seen < len(takers):
            free = self.free(resource)
            for row in takers[seen:]:
                # In a batch, free amounts only become less.
                if free.item(row) < amount:
                    flags[row] = False
        kept[resource, amount] = flags, len(takers)
        return flags

    def _look_up_giving(self, resource: str, amount: int) -> Flags:
        giving: Flags = self.free(resource) >= amount
        stock = self.columns.stocks.get(resource)
        if stock is not None and stock.has_limits:
            # Without an inventory nothing is free.
            giving &= stock.allowing(amount, self.rows)
        return giving

    # Compound hosts

    def shared(self, resource: str) -> Ints:
        """The largest free amount of a class at one provider that shares with the host; -1 where none shares it."""
        most = self.compounds.pools.most(resource)
        return np.full(len(self), -1, dtype=np.int64) if most is None else self.of(most)

    def decided(self, by_columns: Flags, needs: Needs, *, by_room_alone: bool = False) -> Flags:
        """The hosts that have what is needed. `by_columns` is the answer of the columns, which holds for all but
        compound hosts; those are searched.

        With `taken`, compound hosts pass, since each is searched when an instance takes it. A host whose search was cut
        passes, too: another filter removes it. With `by_room_alone`, traits do not count.
        """
        compounds = self._draft.searched(needs)
        if compounds is None:
            return by_columns
        flags = compounds.flags(needs)
        if self._taken is not None:
            return by_columns | self.of(flags)
        if self.before_search:
            full = compounds.known_full(needs)
            return (
                by_columns & ~np.isin(np.arange(self.columns.rows)[self.rows], full) if full else by_columns
            )
        found = compounds.found_room(needs) if by_room_alone else compounds.found(needs)
        # Hosts that were cut, and those whose ways were struck, are left to the filters that say so.
        passed = found.flags | (found.cut > 0) | (found.struck > 0)
        return np.where(self.of(flags), self.of(passed), by_columns)

    def are_searched(self, needs: Needs) -> Flags:
        """The hosts whose providers must be searched for these needs."""
        compounds = self._draft.searched(needs)
        return ~self.everyone() if compounds is None else self.of(compounds.flags(needs))

    def may_share(self, resource: str, amount: int) -> Flags | None:
        """The hosts that may take this amount from one pool; None if no pool has the class."""
        shared = self.compounds.pools.most_at_first(resource)
        if shared is None:
            return None
        return self.kept(("shared", resource, amount), partial(np.greater_equal, self.of(shared), amount))

    def may_have_all(self, traits: Iterable[str]) -> Flags:
        """The hosts whose trees have all of these traits. A trait that any pool has is not looked for, since a host may
        get it from the pool.
        """
        of_pools = self.compounds.pools.traits
        return self.with_all(tuple([trait for trait in dict.fromkeys(traits) if trait not in of_pools]))

    def some_are_searched(self, spec: InstanceSpec) -> bool:
        """Must the providers of any host be searched for this spec, since the host's columns do not say enough?"""
        return bool(spec.groups) or self._draft.has_compound

    def found(self, needs: Needs) -> Found:
        """The result of the search of all hosts that must be searched for these needs, by the rows of the picture."""
        compounds = self._draft.searched(needs)
        assert compounds is not None, "some hosts are searched"
        return compounds.found(needs)

    @property
    def compounds(self) -> Compounds:
        return self._draft.compounds

    def is_compound(self, at: int) -> bool:
        return bool(self._draft.picture.compound[self.row(at)])

    # Server groups

    def members(self, group: ServerGroup) -> Ints:
        """How many members of the group each host has, with those that this batch has chosen."""
        members = self.of(self._draft.members(group)[0])
        return members if self._taken is None else members + self._taken

    def members_at(self, group: ServerGroup, at: int) -> list[ConsumerId]:
        """The members on one host, without those that this batch has chosen."""
        host = self.columns.ids[self.row(at)]
        return [each.consumer for each in self._draft.members(group)[1] if each.host == host]

    def first_member(self, group: ServerGroup) -> tuple[ConsumerId, str] | None:
        """A member that the group had before this batch, with the name of its host, or with the host's id if the
        picture does not have that host. None if there is no such member.
        """
        for each in self._draft.members(group)[1]:
            row = self._draft.picture.row_of(each.host)
            return each.consumer, str(each.host) if row < 0 else self.columns.names[row]
        return None

    def has_members(self, group: ServerGroup) -> bool:
        """Has the group any member, on a host of the picture or not?"""
        counts, known = self._draft.members(group)
        return bool(known) or bool(counts.any())

    def load_of_domains(self, key: str) -> Ints:
        """For each domain of this key (see `domains`), how many instances all its hosts have together."""
        everyone = Hosts(self._draft)
        load = np.bincount(everyone.domains(key), weights=everyone.busy("instances") * everyone.present)
        return load.astype(np.int64)

    @property
    def taken(self) -> Ints | int:
        """How many instances more than now each host is assumed to have."""
        return 0 if self._taken is None else self._taken

    # Load

    def have_fewer(self, column: str, limit: float | Floats) -> Flags:
        """The hosts with fewer `instances` or `io_ops` (as `column` says) than this limit, or than each host's own
        limit.
        """
        if isinstance(limit, float | int) and self._taken is None and self._draft.busiest(column) < limit:
            return self.everyone()
        fewer: Flags = self.busy(column) < limit
        return fewer

    def busy(self, column: str) -> Ints:
        """The `instances` of each host as placement counts them, or the `io_ops` (builds and the like under way) that the
        host reports; both with unanswered choices.
        """
        busy = self.of(self._draft.busy(column))
        return busy if self._taken is None else busy + self._taken
