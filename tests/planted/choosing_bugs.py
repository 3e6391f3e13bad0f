"""Planted bugs in a scheduler's picture, and in what requests get: hosts, groups, ways, flavors, shapes of guests."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from msgspec import structs

from bus.workers.handlers import OutboxKey
from cell_conductor.core import swapping
from engine.choosing import choosing, compounds
from engine.choosing.choosing import AlternatePools, Choices
from engine.choosing.filters import Flagged
from engine.choosing.hosts import Hosts
from engine.picture.members import HostAggregates
from engine.picture.picture import Picture
from engine.refusals import NoValidHost
from engine.requests import groups
from laboratory.computes.hosts import VIRTUAL_FUNCTIONS
from placement_worker.core import drafts
from scheduler_worker import handlers
from scheduler_worker import hosts as registry
from scheduler_worker.outbox import CellDispatch, Outbox, OutboxTransaction
from scheduler_worker.replica import CatchingUp, Progress, Replica
from scheduler_worker.requests import cell_events
from scheduler_worker.requests.reading import Search
from tests.planted.replacing import ANY_CLOUD, planted, planted_as, planted_by, replaced, rewritten


# A gap in the feed's positions is ignored.
@planted("a gap in the feed ignored", Progress, "heard", world=ANY_CLOUD, harm="lost")
def gap_in_the_feed_ignored(real: Any, self: Any, at: Any, cursor: str) -> bool:
    real(self, at, cursor)
    return False


# A scheduler that gets a new feed queue while it runs does not ask what it has missed.
@planted("a new feed queue raises no doubt", Replica, "_take", world="feeds", harm="lost")
def new_feed_queue_not_doubted(real: Any, self: Any, batch: Any) -> None:
    if batch or not self.whole.is_set():
        real(self, batch)


# A choice of this scheduler counts for ever, whatever its verdict was.
planted_by("choices never dropped", Picture, "drop", world=ANY_CLOUD)(lambda _real: lambda _self, _keys: None)


# A cell's report about an instance of another cell is believed.
planted_by("an event of another cell believed", cell_events, "heard", world=ANY_CLOUD, harm="unauthorised")(
    lambda real: lambda row, word, now: real(row, structs.replace(word, cell=row.told.cell), now)
)


# No outbox note is written: after a crash only a repeated request makes the scheduler publish its decision.
@planted("no outbox notes written", OutboxTransaction, "note", world=ANY_CLOUD, harm="lost")
async def no_notes_written(_real: Any, self: Any, _rows: Any) -> None:
    self._kept = defaultdict(lambda: OutboxKey(0))


# A scheduler's timer counts the messages of its rows as sent before it sends them.
@planted("a timer's notes confirmed before they are sent", Outbox, "publish", world=ANY_CLOUD, harm="lost")
async def notes_confirmed_before_sending(real: Any, self: Any, told: Any) -> None:
    await self._notes.confirm([tell.kept for tell in told if tell.kept is not None])
    await real(self, told)


# What a cell's broker has not taken is cleared from its row, and never sent again.
@planted("what a cell's broker did not take counts as said", CellDispatch, "_sent", harm="lost")
def refused_counts_as_said(real: Any, self: Any, taken: Any, sent: Any) -> None:
    real(self, taken, sent)
    if not sent.cancelled():
        self._confirmed.update(taken)


# Changes of usage in the feed are ignored.
planted_by("changes of usage ignored", CatchingUp, "merge", world=ANY_CLOUD)(
    lambda real: lambda self, changed: real(self, structs.replace(changed, usage=()))
)


# An instance that has used up its alternates is sent to hosts that have failed to build it.
planted_by("hosts that failed chosen again", cell_events, "_tried", world=ANY_CLOUD)(
    lambda _real: lambda *_, **__: []
)


# Two groups may get one provider, although the request isolates them.
planted_as("two groups get one provider though they are isolated", world="demands")(
    lambda: _query_changed(lambda query: structs.replace(query, group_policy=None))
)


# The groups that the request wants near each other come from anywhere in the tree.
planted_as("a subtree ignored", world="demands")(
    lambda: _query_changed(lambda query: structs.replace(query, same_subtree=()))
)


# Only the traits outside of groups are searched for.
planted_as("the traits of a group ignored", world="demands")(
    lambda: _query_changed(
        lambda query: structs.replace(
            query,
            groups=tuple(
                structs.replace(group, required=(), forbidden=()) if group.suffix else group
                for group in query.groups
            ),
        )
    )
)


def _query_changed(change: Callable[[Any], Any]) -> AbstractContextManager[None]:
    return replaced(compounds, "query_of", lambda real: lambda needs: change(real(needs)))


# The second way of an alternate claims the providers of the first one.
@planted("an alternate's second way is its first one", Choices, "ways", world="demands")
def first_way_told_twice(real: Any, self: Any, row: int) -> Any:
    found = real(self, row)
    return (found[0], found[0]) if len(found) > 1 else found


# The chosen host is among its own alternates: it is tried again after a build has failed there.
planted_by("a host is its own alternate", AlternatePools, "next_for", world="demands")(
    lambda real: lambda self, row, cell: [row, *real(self, row, cell)]
)


# The alternates that an instance gets in its turn may be the host that was chosen for it.
planted_as("of several instances one has its own host as its alternate")(
    lambda: rewritten(AlternatePools, "next_for", "if row in found:", "if False:")
)


# A host keeps the zone that it had first, whatever becomes of its aggregates.
@planted_by("a host keeps its first zone", Picture, "_write_zone", world="demands")
def first_zone_kept(real: Any) -> Any:
    first: dict[tuple[int, int], int] = {}

    def write(self: Any, row: int, host: Any) -> None:
        real(self, row, host)
        zone = int(self.columns.zone[row])
        if self.columns.zones.names[zone]:
            self.columns.zone[row] = first.setdefault((id(self), row), zone)

    return write


# Schedulers know the metadata of an aggregate as it was when they first heard of it.
planted_by("changed metadata of an aggregate ignored", HostAggregates, "put", world="demands")(
    lambda real: lambda self, put: real(self, [each for each in put if each.id not in self._known])
)


# What is kept of the traits for one request of a batch is taken for another one, which has granular groups and the first has not.
@planted_by("a kept answer leaves out the groups", Hosts, "cached")
def groups_left_out(real: Any) -> Any:
    kept: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()

    def cached(self: Any, answer: Any, *asked: Any, is_steady: bool = False) -> Any:
        if answer.__name__ == "_may_pass":
            *others, groups = asked
            asked = (*others, kept.setdefault(self._draft, {}).setdefault((*others,), groups))
        return real(self, answer, *asked, is_steady=is_steady)

    return cached


# Of the hosts for several instances that move together, only the best ones for the first instance are tried.
@planted("few hosts tried for instances that move together", choosing.Turns, "on")
def few_tried(real: Any, self: Any, row: int) -> Any:
    self.left -= choosing.PLACED_MAX // 200
    return real(self, row) if self.left > 0 else []


# A disabled host qualifies as any other.
@planted("a disabled host chosen", Flagged, "passes", world="demands")
def disabled_host_chosen(real: Any, self: Any, hosts: Any, spec: Any) -> Any:
    return hosts.everyone() if self.name == "enabled" else real(self, hosts, spec)


@planted_as("failed builds ignored", world="demands")
@contextmanager
def failed_builds_ignored() -> Iterator[None]:
    """No number of failed builds disables a host."""

    def planted(real: Any) -> Any:
        return lambda *args, **named: real(*args, **{**named, "failed_builds_max": 0})

    with replaced(handlers, "reported", planted), replaced(registry, "reported", planted):
        yield


# A port's network becomes a trait that no host reports: such a request finds no host.
planted_by("a port's network spelled otherwise", groups, "PHYSNET")(lambda _real: "CUSTOM_PHYSICAL_NETWORK_")


# A search begins with the last flavor that the request accepts.
@planted("the worst flavor comes first", Search, "begin_again", world="flavors")
def worst_flavor_first(real: Any, self: Any) -> None:
    real(self)
    while self.may_fall_back:
        self.fall_back(NoValidHost(hosts=0, steps=()))


# An instance that gets a worse flavor is ordered as the best one.
@planted(
    "a share of another flavor than the order", Search, "_take_flavor", world="flavors", harm="overbooked"
)
def share_of_another_flavor(real: Any, self: Any, passed_over: Any) -> None:
    real(self, passed_over)
    self.build = structs.replace(self.build, flavor=self.alternatives[0].flavor)


# The cell keeps the first flavor when it goes on to an alternate with another one.
@planted("the flavor of an alternate forgotten", swapping, "_take_host", world="flavors", harm="overbooked")
def flavor_of_alternate_forgotten(real: Any, transition: Any, host: Any) -> None:
    real(transition, host)
    transition.change(flavor=None)


# A host that was an alternate before is taken with the flavor of that time, whatever the share is chosen for now.
planted_by(
    "the flavor of a further alternate read by its host",
    swapping,
    "_flavor_on",
    world="flavors",
    harm="overbooked",
)(lambda _real: lambda transition, host: transition.order.other_flavors.get(host.share.host))


# Whatever pages the flavor asks for, the memory is claimed in small ones.
planted_by("a page size ignored", groups, "cell_amounts", world="guests", harm="overbooked")(
    lambda real: lambda shape, _page_kib: real(shape, 0)
)


# A claim gets a virtual function, whether one is left or not: placement relies on the scheduler's picture.
planted_as("a virtual function given twice", world="guests", harm="overbooked")(
    lambda: _always_fits(VIRTUAL_FUNCTIONS)
)


# A claim gets dedicated processors, whether these are left or not.
planted_as("a pinned processor given twice", world="guests", harm="overbooked")(lambda: _always_fits("PCPU"))


def _always_fits(always: str) -> AbstractContextManager[None]:
    def planted(real: Any) -> Any:
        def shortfall_of(usage: Any, resource: str, asked: int, held: int, **how: Any) -> Any:
            is_there = resource == always and resource in usage.row.limits
            return None if is_there else real(usage, resource, asked, held, **how)

        return shortfall_of

    return replaced(drafts, "shortfall_of", planted)
