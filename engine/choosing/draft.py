"""A picture with the choices that a batch has made so far. The picture itself is not changed: choices are written into
copies of its columns.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray  # noqa: TC002 - imported like every other type

from engine.candidates.columns import Ints, Rows
from engine.choosing.compounds import CompoundFill, Compounds
from engine.choosing.needs import Needs, WayJudge, needs_of
from engine.inventories import (
    GroupId,
    GroupMember,
    ResourceAmount,
    ServerGroup,
)
from engine.picture.picture import Picture
from engine.requests.spec import InstanceSpec


class Leaving(Struct, frozen=True):
    """An instance that is to be resized and may stay on its host: the choice counts what it holds there as free. `row`
    is the host's row in the picture, and `group` the instance's server group.
    """

    row: int
    held: tuple[ResourceAmount, ...]
    group: ServerGroup | None = None


class Draft:
    """A picture with the choices of a batch so far. Choices are written into copies of the picture's columns."""

    def __init__(self, picture: Picture, judges: Sequence[WayJudge] = ()) -> None:
        self.columns = picture.columns
        self.picture = picture
        self._judges = judges
        self.has_compound = bool(picture.compound.any())
        self._has_groups = False
        # Most clouds have none: then the filters about nodes cost nothing.
        self.has_nodes = bool(self.columns.node[: self.columns.rows].any())
        self.hosts = int(np.count_nonzero(self.columns.present))
        self._holding = self.columns.holding.copy()
        self.everyone = np.ones(self.columns.rows, dtype=np.bool_)
        # The rows of hosts that took an instance, one after another.
        self.takers: list[int] = []
        # Instances, and builds under way, of each host, by the column.
        self._busy: dict[str, Ints] = {}
        # No host has more than this.
        self._busiest: dict[str, int] = {}
        self._free: dict[str, Ints] = {}
        self._differ: dict[str, bool] = {}
        # Answers about all hosts, by the question, each with the number of `takers` that it counts (`Hosts.kept`).
        self.kept: dict[Hashable, tuple[NDArray[Any], int]] = {}
        # By group: the number of members on each host, and the ids of all that are known.
        self._groups: dict[GroupId, tuple[Ints, Sequence[GroupMember]]] = {}

    @cached_property
    def compounds(self) -> Compounds:
        return Compounds(self.picture, self._judges)

    def members(self, group: ServerGroup) -> tuple[Ints, Sequence[GroupMember]]:
        """The number of the group's members on each host, with those that the batch has chosen; and the members that
        were there before the batch. Some of these may be on hosts that the picture does not have.
        """
        found = self._groups.get(group.id)
        if found is None:
            known = self.picture.groups.of_group(group.id)
            counts = np.zeros(len(self._holding), dtype=np.int64)
            np.add.at(counts, [row for each in known if (row := self.picture.row_of(each.host)) >= 0], 1)
            found = self._groups[group.id] = counts, known
        return found

    def searched(self, needs: Needs) -> Compounds | None:
        """The hosts that must be searched for these needs; None if the columns decide about all hosts."""
        if needs.groups and not self._has_groups:
            self._has_groups = True
            self.compounds.cover_everyone(self.free)
        return self.compounds if self.has_compound or needs.groups else None

    def differ_in(self, column: str) -> bool:
        """Do any two hosts differ in this column of numbers? The answer is kept, since the column does not change while
        a batch is decided.
        """
        differ = self._differ.get(column)
        if differ is None:
            values = getattr(self.columns, column)[: self.columns.rows]
            differ = self._differ[column] = bool(len(values)) and bool(values.min() != values.max())
        return differ

    def filling(self, spec: InstanceSpec) -> CompoundFill | None:
        """An object that puts instances of this spec on hosts that must be searched. None if no host is compound, and
        the request has no granular groups.
        """
        if not self.must_search(spec):
            return None
        compounds = self.searched(needs_of(spec))
        return None if compounds is None else CompoundFill(compounds, spec)

    def must_search(self, spec: InstanceSpec) -> bool:
        """Must the providers of any host be searched for this spec, since the host's columns do not say enough?"""
        return bool(spec.groups) or self.has_compound

    def free(self, resource: str) -> Ints | None:
        """The free amounts of a class; None if no host ever had an inventory of it."""
        own = self._free.get(resource)
        if own is not None:
            return own
        stock = self.columns.stocks.get(resource)
        return None if stock is None else stock.free

    def busy(self, column: str) -> Ints:
        """The numbers of `instances` or `io_ops` on each host. Choices that placement has not answered yet are included."""
        busy = self._busy.get(column)
        if busy is None:
            columns = self.columns
            # Instances as placement counts them: it judges the limit, and what a host reports of itself is late.
            told = columns.io_ops if column == "io_ops" else columns.consumers
            busy = self._busy[column] = told + self._holding
            self._busiest[column] = int(busy[: columns.rows].max(initial=0))
        return busy

    def busiest(self, column: str) -> int:
        """The largest value of `busy` that any host may have."""
        self.busy(column)
        return self._busiest[column]

    def take(self, rows: Rows, times: Ints, spec: InstanceSpec) -> None:
        """Count so many instances of this spec as placed on each of these hosts' rows. On hosts that were searched,
        `compounds` has counted their providers before.
        """
        amounts = dict(spec.amounts)
        if self._has_groups and not spec.groups:
            self.compounds.take_by_columns(rows, times, amounts)
        self.takers += rows.tolist()
        if len(rows) == 1:
            # NumPy is faster with a number than with an array of one.
            self._write(int(rows[0]), int(times[0]), amounts, spec.server_group)
        else:
            self._write(rows, times, amounts, spec.server_group)

    def give_back(self, leaving: Leaving) -> None:
        """Count this instance as gone from its host, its pools and its server group. This is called before any choice
        is made.
        """
        index, host = self.picture.index, self.columns.ids[leaving.row]
        in_tree: Counter[str] = Counter()
        for each in leaving.held:
            row = index.row_of(each.provider)
            if row is None:
                continue
            if index.state(row).root == host:
                in_tree[each.resource] += each.amount
            if self.picture.compound[leaving.row]:
                self.compounds.room.count(row, each.resource, -each.amount)
        self._write(leaving.row, -1, in_tree, leaving.group)

    def _write(
        self, rows: Rows | int, times: Ints | int, amounts: Mapping[str, int], group: ServerGroup | None
    ) -> None:
        if group is not None:
            self.members(group)[0][rows] += times
        for resource, amount in amounts.items():
            stock = self.columns.stocks.get(resource)
            if stock is None:
                # Only sharing providers have it.
                continue
            free = self._free.get(resource)
            if free is None:
                free = self._free[resource] = stock.free.copy()
            free[rows] -= times * amount
        for busy in (self._holding, *self._busy.values()):
            busy[rows] += times
        most = times if isinstance(times, int) else int(times.max(initial=0))
        for column in self._busiest:
            self._busiest[column] += most
