"""Handlers of cells' events about their instances: they write them into the instances' rows, and repeat them for
listeners.

A cell reports only its own instances, as their rows say. An event about an instance that has no row or is in another
cell changes nothing, and is not repeated. A repeated event names the request and the project of the row: what the
message says of them counts nowhere.

If a cell reports an instance that is deleted already, it is told to delete the instance again. A late copy of the order to
place the instance may have reached the cell after it had forgotten the instance.
"""

import logging
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple, Protocol

from msgspec import structs

from bus.messages.build import AlternatesSpent, InstanceActive, InstanceDeleted, InstanceFailed, InstanceMoved
from bus.workers.handlers import Bury, Handlers, Received, Said, Tell
from engine.choosing.choosing import choose
from engine.choosing.explaining import in_words
from engine.choosing.plugins import Plugins
from engine.flavors import Flavor, InstanceId
from engine.hosts import NODE, host_in_cell
from engine.inventories import ALTERNATES_MAX
from engine.picture.picture import Picture
from engine.refusals import NoValidHost
from engine.requests import InstanceSpec
from engine.requests.reading import Alternative
from engine.requests.spec import of_mover
from scheduler_worker.core.instances.history import decoded
from scheduler_worker.core.instances.lifecycle import (
    SEQUENCE_AHEAD_MAX,
    CellEvent,
    NextHosts,
    as_known,
    awaits_alternates,
    heard,
    is_too_far_ahead,
    is_whole,
    with_alternates,
)
from scheduler_worker.core.instances.resizes import still_accepted
from scheduler_worker.core.instances.rows import BUILDING, DELETED, InstanceRow
from scheduler_worker.outbox import OutboxTransaction
from scheduler_worker.requests.instance_orders import Ordered, take_steps
from scheduler_worker.store_sql import SchedulerStore

log = logging.getLogger(__name__)

Rows = Mapping[InstanceId, InstanceRow]


class Repeater(Protocol):
    """Repeats the events of cells for listeners."""

    @property
    def has_listeners(self) -> bool:
        """May an event have to be repeated? Otherwise the rows of plain events need not be read."""

    def repeated(self, event: CellEvent, cause: Received[CellEvent]) -> Sequence[Said]:
        """The copies of an event that agrees with its instance's row."""


def cell_event_handlers(
    clock: Callable[[], datetime], *, skipped: Collection[str], repeater: Repeater
) -> Handlers:
    """Handlers of cells' events about instances. They write each event into the row of its instance, and send what
    `repeater` makes of the events.

    Events that are not new are sent again, too: a crash would do the same, so listeners compare sequences. Cells in
    `skipped` are ignored, because other handlers write their events.
    """

    async def on_events(asks: Sequence[Received[CellEvent]], transaction: OutboxTransaction) -> list[Said]:
        ours = [ask for ask in asks if ask.message.cell not in skipped]
        if not ours:
            return []
        rows = await _write([ask.message for ask in ours], transaction, clock, repeater)
        if not rows:
            return []
        said: list[Said] = []
        causes = {ask.message.instance.id: ask for ask in ours}
        for id_, row in rows.items():
            # The move waits again, since others got the room before its cell; or a cell has a deleted instance again.
            if row.kept is not None or (row.unsaid and row.told.state == DELETED):
                said += await transaction.say([row], causes[id_])
        for ask in ours:
            event, read = ask.message, rows.get(ask.message.instance.id)
            if read is None:
                continue
            if (known := as_known(read, event)) is not None:
                said += repeater.repeated(known, ask)
            elif is_too_far_ahead(read, event):
                reason = (
                    f"instance.sequence is {event.instance.sequence}: a cell is at most {SEQUENCE_AHEAD_MAX} ahead "
                    f"of its instance's row, which is at {read.told.sequence}"
                )
                said.append(Bury(ask, reason))
        return said

    return dict.fromkeys((InstanceActive, InstanceMoved, InstanceFailed, InstanceDeleted), on_events)


class ApiLevelRepeater:
    """Publishes the events of a cell that has its own broker on the API level's broker. So clients need not know which
    cells have brokers of their own.
    """

    has_listeners = True

    def repeated(self, event: CellEvent, cause: Received[CellEvent]) -> Sequence[Said]:
        return (Tell(event, cause),)


async def _write(
    events: Sequence[CellEvent],
    transaction: OutboxTransaction,
    clock: Callable[[], datetime],
    repeater: Repeater,
) -> Rows:
    """Write the events into the rows of their instances. Returns the rows as they are then, as far as they were read."""
    store = await transaction.begun()
    rows: dict[InstanceId, InstanceRow] = {}
    # Nearly every event says that a placed instance is active now: no row need be read for that.
    whole = [event for event in events if is_whole(event)]
    if await store.apply_events(whole) == len(whole):
        events = [event for event in events if not is_whole(event)]
        if repeater.has_listeners:
            ids = {event.instance.id for event in whole}
            rows |= await store.lock(sorted(ids))
    if events:
        rows |= await take_steps(
            store, [Ordered(event.instance.id, partial(_after, event, clock())) for event in events]
        )
    return rows


def _after(event: CellEvent, now: datetime, row: InstanceRow | None) -> InstanceRow | None:
    return None if row is None else heard(row, event, now)


# Further alternates for instances that have used up theirs: an event of the cell asks, and an order to the cell answers.
#
# Members of a server group use up each other's alternates, and a full cloud uses up everybody's. The cell cannot choose
# hosts, since it has no picture. So it keeps its claim, says what it has tried, and waits until its deadline. Nothing is
# claimed here: the cell swaps its claim to the first of the new hosts, as it does with all alternates.


# So many hosts may fail to build an instance: an image that no host can run must not be tried on all hosts.
FAILED_HOSTS_MAX = 10
# So many tries and refusals an instance may have altogether.
FAILURES_MAX = 100


class _Wanted(NamedTuple):
    """What an instance needs of its next host. Of the flavors that its request accepts, the first is the one that it has in its
    cell; none if it accepts one flavor only.
    """

    event: AlternatesSpent
    spec: InstanceSpec
    accepted: tuple[Alternative, ...] = ()

    @property
    def flavor(self) -> Flavor | None:
        return self.accepted[0].flavor if self.accepted else None


class AlternatesFinder:
    def __init__(
        self,
        store: SchedulerStore,
        picture: Picture,
        plugins: Plugins,
        clock: Callable[[], datetime],
        *,
        alternates_max: int,
        make_sure: Callable[[], Awaitable[object]],
        hold: Callable[[Sequence[InstanceRow]], None],
        chance: random.Random,
    ) -> None:
        """`hold` counts the first choice of each of these rows as used in the picture, for a while."""
        self._store = store
        self._picture = picture
        self._plugins = plugins
        self._clock = clock
        self._alternates_max = alternates_max
        self._make_sure = make_sure
        self._hold = hold
        self._salt = chance.getrandbits(32)

    def handlers(self, skipped: Collection[str]) -> Handlers:
        """The handler of the event. Events of the cells in `skipped` are read on the brokers of these cells."""

        async def on_spent(
            asks: Sequence[Received[AlternatesSpent]], transaction: OutboxTransaction
        ) -> list[Said]:
            events = [ask.message for ask in asks if ask.message.cell not in skipped]
            if not events:
                return []
            answers = await self._answers(events)
            causes = {ask.message.instance.id: ask for ask in asks}
            new: dict[InstanceId, InstanceRow] = {}
            steps = [
                Ordered(each.instance.id, partial(self._after, each, answers.get(each.instance.id), new=new))
                for each in events
            ]
            rows = await take_steps(await transaction.begun(), steps)
            # A cell that repeats its question gets the answer that its row has. The choice was held when it was made.
            answered = [row for row in rows.values() if row.unsaid and row.told.state == BUILDING]
            await transaction.note(answered)
            transaction.when_committed(lambda: self._hold([row for row in new.values() if row.choices]))
            return [tell for row in answered for tell in transaction.tells(row, causes[row.id])]

        return {AlternatesSpent: on_spent}

    def _after(
        self,
        event: AlternatesSpent,
        answer: NextHosts | None,
        row: InstanceRow | None,
        *,
        new: dict[InstanceId, InstanceRow],
    ) -> InstanceRow | None:
        """The row with the answer, which is also added to `new`; None if the row has an answer already, or needs none."""
        if row is None:
            return None
        answer = answer or NextHosts(reason="what it needs of a host is not known any more")
        after = with_alternates(row, event, answer, self._clock())
        if after is not None:
            new[after.id] = after
        return after

    async def _answers(self, events: Sequence[AlternatesSpent]) -> dict[InstanceId, NextHosts]:
        rows = await self._store.rows_of(event.instance.id for event in events)
        answers: dict[InstanceId, NextHosts] = {}
        wanted: dict[InstanceId, _Wanted] = {}
        for event in events:
            id_, row = event.instance.id, rows.get(event.instance.id)
            if row is None or not awaits_alternates(row, event):
                continue
            if why := _why_no_more(event):
                answers[id_] = NextHosts(reason=why)
            elif accepted := still_accepted(row, event.instance):
                specs = [structs.replace(each, spec=self._in_its_cell(row, each.spec)) for each in accepted]
                wanted[id_] = _Wanted(event, specs[0].spec, tuple(specs))
            elif (spec := decoded(row.current_spec)) is not None:
                wanted[id_] = _Wanted(event, self._in_its_cell(row, spec))
        while wanted:
            chosen = self._chosen(wanted, again=False)
            if any(not each.choices for each in chosen.values()):
                await self._make_sure()
                log.debug("no alternate is left: hosts that had no room are tried again")
                chosen = self._chosen(wanted, again=True)
            answers |= chosen
            wanted = {
                id_: each._replace(spec=each.accepted[1].spec, accepted=each.accepted[1:])
                for id_, each in wanted.items()
                if not chosen[id_].choices and len(each.accepted) > 1
            }
        return answers

    def _in_its_cell(self, row: InstanceRow, spec: InstanceSpec) -> InstanceSpec:
        if (group := spec.server_group) is not None:
            # The claim on the host that failed makes the instance itself a member.
            members = self._picture.groups.of_group(group.id)
            spec = of_mover(spec, row.id, is_alone=all(each.consumer == row.id for each in members))
        return structs.replace(spec, cell=row.told.cell, count=1)

    def _chosen(self, wanted: Mapping[InstanceId, _Wanted], *, again: bool) -> dict[InstanceId, NextHosts]:
        """Choose hosts on which no try has failed. With `again`, also hosts for which placement has refused the claim:
        they may have room by now.
        """
        specs = [
            structs.replace(
                each.spec,
                ignore_hosts=(*each.spec.ignore_hosts, *_tried(each.event, with_refused=not again)),
            )
            for each in wanted.values()
        ]
        found = choose(self._picture, specs, self._plugins, self._salt, self._alternates_max)
        answers = {}
        for (id_, asked), where in zip(wanted.items(), found, strict=True):
            if isinstance(where, NoValidHost):
                answers[id_] = NextHosts(reason=in_words(where), flavor=asked.flavor)
                continue
            # A cell finds out by its order whether a host is a node.
            hosts = [each for each in (where.choice, *where.alternates) if each.kind != NODE]
            reason = "" if hosts else "only bare-metal nodes fit"
            answers[id_] = NextHosts(tuple(hosts[:ALTERNATES_MAX]), reason, asked.flavor)
        return answers


def _tried(event: AlternatesSpent, *, with_refused: bool) -> list[str]:
    return [
        host_in_cell(event.cell, each.host).lower()
        for each in event.instance.failures
        if with_refused or not each.is_refused
    ]


def _why_no_more(event: AlternatesSpent) -> str:
    failures = event.instance.failures
    failed = sum(not each.is_refused for each in failures)
    if failed >= FAILED_HOSTS_MAX:
        return f"{failed} hosts have failed to build it, and no more are tried"
    if len(failures) >= FAILURES_MAX:
        return f"{len(failures)} tries have failed or were refused, and there are no more"
    return ""
