"""Planted bugs in a cell: a conductor's rules and rows, the modes of hosts, moves, rebuilds, waits, and orders to stop."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from msgspec import structs

from bus.message import Message
from bus.messages.build import BuildInstance, BuildRejected
from bus.messages.cell import GiveBackInCell, PlaceInCell, RemoveFromCell, RespawnInstance
from cell_conductor import hosts
from cell_conductor.core import decide, move_answers, moving
from cell_conductor.core import moving as move_steps
from cell_conductor.core.rows import HeldClaim, HostStates
from cell_conductor.core.transition import Transition
from cell_conductor.hosts import HeardHosts
from cell_conductor.store_sql import LOAD, ConductorTransaction
from compute_sim.core import attempts
from engine.choosing.filters import CellUp
from engine.picture.members import TouchedHosts
from engine.picture.picture import Picture
from kit.sql.databases import KeyStatement
from placement_worker.core import swaps
from scheduler_worker import forgetting
from scheduler_worker.core.instances import lifecycle, moves
from scheduler_worker.core.instances import lifecycle as row_mending
from scheduler_worker.core.instances.rows import WAITING
from scheduler_worker.host_orders import HostOrders
from scheduler_worker.hosts import HostRegistry, ModeTeller
from scheduler_worker.requests.building import Builder
from scheduler_worker.requests.move_needs import MoveNeedsFinder
from scheduler_worker.requests.waking import Waker
from scheduler_worker.store_sql import waiting
from scheduler_worker.waiting import WaitingSpecs, needs_in
from tests.narrowing import present
from tests.planted.replacing import (
    ANY_CLOUD,
    BARE_METAL,
    planted,
    planted_as,
    planted_by,
    replaced,
    rewritten,
)


@planted_as("a redelivered order carried out again", world=ANY_CLOUD, harm="doubled")
def redelivered_order_carried_out_again() -> AbstractContextManager[None]:
    """A conductor obeys the order to place an instance each time it arrives."""

    def planted(real: Any) -> Any:
        def on_place(transition: Any, order: Any) -> None:
            transition.change(order=None)
            real(transition, order)

        return on_place

    return _other_step(planted, PlaceInCell)


# A conductor without alternates asks the API level for another host, as Nova's cells once did.
@planted("a conductor calls up", Transition, "end_in_error", world=ANY_CLOUD)
def conductor_calls_up(real: Any, transition: Any, reason: str) -> None:
    real(transition, reason)
    transition.send(BuildInstance(request_id=transition.row.request_id, flavor=transition.row.order.flavor))


@planted_as("a removal forgotten before its placement arrives", world=ANY_CLOUD, harm="lost")
def removal_forgotten() -> AbstractContextManager[None]:
    """A removal of an instance that the cell does not know leaves no row, so a later order to place it is obeyed."""

    def planted(real: Any) -> Any:
        def on_remove(transition: Any, order: Any) -> None:
            if transition.row.state == "unknown":
                transition.end_deleted()
                transition.is_over = True
            else:
                real(transition, order)

        return on_remove

    return _other_step(planted, RemoveFromCell, GiveBackInCell)


# The success of any attempt is believed, also of an earlier one.
planted_as("late success of attempt 1 accepted", world=ANY_CLOUD, harm="doubled")(
    lambda: rewritten(
        decide,
        "_on_spawned",
        "row.is_current(spawned.attempt, spawned.host)",
        'row.state in ("building", "active")',
    )
)


# Unconfirmed messages of a row are not loaded with it, so the next write drops them.
@planted(
    "unconfirmed messages not loaded with their row",
    ConductorTransaction,
    "load",
    world=ANY_CLOUD,
    harm="lost",
)
async def unconfirmed_messages_not_loaded(real: Any, self: Any, instances: Any) -> Any:
    rows = await real(self, instances)
    return {id_: structs.replace(row, outbox=()) for id_, row in rows.items()}


# The lease of a swap has no end: if its conductor dies over the question, no other asks again.
@planted("a lease without end", decide, "next_swap", world=ANY_CLOUD, harm="doubled")
def lease_without_end(real: Any, transition: Any) -> Any:
    swap = real(transition)
    transition.change(state_ends_at=None)
    return swap


# A host that did not answer in time is treated as one that has cleaned up.
planted_by("a silent host treated as failed", decide, "leave_host", world=ANY_CLOUD, harm="overbooked")(
    lambda real: (
        lambda transition, reason, *, was_silent: real(transition, reason, was_silent=was_silent and False)
    )
)


# A host where a build has failed gets another try before the alternates, since it may go well the next time.
@planted("a host that has failed tried again", decide, "leave_host", world="demands")
def failed_host_tried_again(real: Any, transition: Any, reason: str, *, was_silent: bool) -> None:
    if not was_silent:
        transition.change(alternates=(transition.row.host, *transition.row.alternates))
    real(transition, reason, was_silent=was_silent)


def _other_step(by: Callable[[Any], Any], *orders: type[Message]) -> AbstractContextManager[None]:
    """These orders get another step: `by` receives the real one."""
    return replaced(decide, "_STEPS", lambda real: {**real, **{order: by(real[order]) for order in orders}})


# New instances are placed in a cell that is known to be down.
planted_by("a cell that is down not avoided", CellUp, "passes", world=ANY_CLOUD)(
    lambda _real: lambda _self, hosts, _spec: hosts.everyone()
)


@planted_as("two conductors decide on one row at once", harm="doubled")
def rows_not_locked() -> AbstractContextManager[None]:
    """Two conductors of a cell decide on the same row at the same time, each as if it were alone."""
    unlocked = structs.replace(LOAD, on_postgresql=LOAD.on_postgresql.replace(" FOR UPDATE", ""))

    def planted(real: Any) -> Any:
        async def fetch(self: Any, transaction: Any, keys: Any, *shared: Any) -> Any:
            return await real(unlocked if self is LOAD else self, transaction, keys, *shared)

        return fetch

    return replaced(KeyStatement, "fetch", planted)


@planted_as("a row forgotten when its conductor dies", world=ANY_CLOUD, harm="lost")
@contextmanager
def rows_of_others_not_taken() -> Iterator[None]:
    """A conductor looks after the rows that it has written itself, and after no others: when it dies, nobody does."""
    # Each process has a cache of its own.
    writers: dict[Any, Any] = {}

    def saving(real: Any) -> Any:
        async def save(self: Any, rows: Any, forgotten: Any, said: Any) -> Any:
            writers.update({row.id: self._cache for row in rows})
            return await real(self, rows, forgotten, said)

        return save

    def taking(real: Any) -> Any:
        async def take_due(self: Any, now: Any, limit: Any) -> Any:
            due = await real(self, now, limit)
            return {id_: row for id_, row in due.items() if writers.get(id_) is self._cache}

        return take_due

    with (
        replaced(ConductorTransaction, "save", saving),
        replaced(ConductorTransaction, "take_due", taking),
    ):
        yield


# Those that no seed can show: the simulation's database has one writer.


# After a host was set dead, its cell goes on waiting for what it must clean up.
@planted("the cleanups of a dead host kept", decide, "_on_clean", world="host modes", harm="lost")
def cleanups_of_the_dead_kept(real: Any, transition: Any, attempt: int, host: Any) -> None:
    if not transition.hosts.is_dead(host):
        real(transition, attempt, host)


# A conductor does not notice that a host of its cell is silent: a build there waits for the whole time of its attempt.
planted_by("the silence of hosts not noticed", HeardHosts, "silent", world="host modes")(
    lambda _real: lambda _self: ()
)


# A host that was dead is not asked what it has: it counts as clean.
planted_by("a returned host not asked what it has", hosts, "foreign", world="host modes", harm="doubled")(
    lambda _real: lambda _rows, _host, _attempts, *, destroys_unknown: []
)


# A conductor takes the next alternate although its host is draining.
planted_by("a draining alternate taken", HostStates, "why_not_next", world="host modes")(
    lambda _real: lambda self, choice: self.why_lost(choice)
)


# A scheduler notes that a cell was told how a host is set, and tells it nothing.
@planted("a mode noted as told and not sent", ModeTeller, "tell", world="host modes", harm="lost")
async def word_noted_and_not_sent(_real: Any, self: Any) -> None:
    await self._note_told(list(self._registry.untold()))


# The other schedulers go on with a host that was deleted.
@planted("a deleted host stays with other schedulers", HostRegistry, "hear_deleted")
def deleted_host_stays(_real: Any, _self: Any, _host: Any) -> None:
    pass


# Placement goes on with the providers of a host that was deleted.
@planted("a deleted host leaves its providers", HostOrders, "_why_not_unprovided")
async def providers_stay(_real: Any, _self: Any, _host: Any) -> str:
    return ""


# A row's sequence is always as the audit saw it.
planted_by("a row mended out of date", row_mending, "_is_as_seen", world=BARE_METAL, harm="destroyed")(
    lambda _real: lambda row, _mend: row is not None
)


# A migration holds the whole share of the source, also what the destination needs of the same provider.
planted_by("a migration holds the whole share", swaps, "_inherited", world="moves")(
    lambda _real: lambda _order, own, _wanted: own
)


# A confirmed move orders the source to clean up, and releases nothing for it.
@planted(
    "a confirmed move forgets its migration",
    (moving, move_steps, move_answers),
    "confirm",
    world="moves",
    harm="lost",
)
def heir_forgotten(real: Any, transition: Any) -> None:
    real(transition)
    cleanups = [structs.replace(each, release=()) for each in transition.row.cleanups]
    transition.change(cleanups=tuple(cleanups))


# A move comes back from a destination that does not answer, as from one that has destroyed the instance.
planted_by(
    "a silent destination gives its share back",
    move_answers,
    "return_claim",
    world="moves",
    harm="overbooked",
)(lambda real: lambda transition, outcome, reason, **_: real(transition, outcome, reason, was_silent=False))


# After a move that came back, the first host is asked about the attempt of the way back, which it has never heard of.
@planted(
    "a return forgets the attempt of its host",
    move_answers,
    "_on_claimed_back",
    world="moves",
    harm="doubled",
)
def attempt_of_host_forgotten(real: Any, transition: Any, attempt: int) -> None:
    real(transition, attempt)
    transition.change(kept_attempt=0)


# After a confirmed resize the cell still has the flavor of before.
@planted(
    "the flavor of a resize forgotten",
    (moving, move_steps, move_answers),
    "confirm",
    world="moves",
    harm="overbooked",
)
def new_flavor_forgotten(real: Any, transition: Any) -> None:
    before = transition.row.flavor
    real(transition)
    transition.change(flavor=before)


# The rest of an evacuated host's share is released as soon as the instance runs elsewhere.
@planted(
    "an evacuated host released at once",
    (moving, move_steps, move_answers),
    "confirm",
    world="moves",
    harm="overbooked",
)
def evacuated_host_released_at_once(real: Any, transition: Any) -> None:
    real(transition)
    if transition.row.move.kind == "evacuate":
        transition.release(claim for each in transition.row.cleanups for claim in each.release)
        cleanups = [structs.replace(each, release=()) for each in transition.row.cleanups]
        transition.change(cleanups=tuple(cleanups))


# An instance is evacuated although its host is up.
@planted(
    "an evacuation goes on although its source is up again",
    MoveNeedsFinder,
    "_problem_with_source",
    world="moves that wait",
    harm="doubled",
)
def source_that_is_up_evacuated(real: Any, self: Any, order: Any, told: Any) -> str:
    return "" if order.kind == "evacuate" else str(real(self, order, told))


# An instance that is reported in error is released, though its host has it.
@planted(
    "an instance in error released though its host has it",
    Transition,
    "end_broken",
    world="moves",
    harm="overbooked",
)
def broken_instance_released(real: Any, transition: Any, reason: str) -> None:
    real(transition, reason)
    transition.release((HeldClaim(transition.row.id, transition.row.attempt),))


# The source is believed when it says late that it has stopped the instance, though the move goes back by then.
@planted("a late word of the source believed", decide, "on_stopped", world="moves", harm="doubled")
def late_word_of_the_source_believed(real: Any, transition: Any, word: Any) -> None:
    moving = transition.row.moving
    if moving is not None:
        transition.change(state="moving", moving=structs.replace(moving, step="stopping"))
    real(transition, word)


# A move comes back without an order to its destination.
@planted("a move comes back and leaves its destination as it is", moving, "leave", world="moves", harm="lost")
def destination_left_as_it_is(_real: Any, transition: Any, outcome: Any, reason: str) -> None:
    move_steps.return_claim(transition, outcome, reason, was_silent=False)


# When an instance is deleted while it moves, the rest of the source is released at once.
@planted(
    "a delete while it moves releases the source early",
    decide,
    "free_both_hosts",
    world="moves",
    harm="overbooked",
)
def source_released_early(real: Any, transition: Any) -> None:
    real(transition)
    *others, last = transition.row.cleanups
    own = tuple(claim for claim in last.release if claim.consumer == transition.row.id)
    transition.release(claim for claim in last.release if claim not in own)
    transition.change(cleanups=(*others, structs.replace(last, release=own)))


# The way back is claimed as any other share, and the migration keeps what it holds.
planted_by("a way back without its migration", move_answers, "next_move_swap", world="moves", harm="lost")(
    lambda real: lambda transition: structs.replace(real(transition), returns=None)
)


# A cold move does not wait until the source has stopped the instance.
planted_by(
    "received while the source runs it", move_answers, "STOPPED_MEANWHILE", world="moves", harm="doubled"
)(lambda _real: ())


# An evacuation builds with the image of the boot, whatever the instance was rebuilt with since.
planted_by(
    "an evacuation builds with the first image", move_steps, "spawn_order", world="moves", harm="destroyed"
)(lambda real: lambda row, order, host: real(structs.replace(row, image=None), order, host))


# A host obeys an order to rebuild whenever it comes, even after a later one.
planted_by(
    "an earlier rebuild is obeyed after a later one", attempts, "_is_late", world="moves", harm="destroyed"
)(lambda real: lambda known, order: not isinstance(order, RespawnInstance) and real(known, order))


# The claim of an instance that is offloaded is released before its host has destroyed it.
@planted(
    "an offloaded instance released before it is destroyed",
    move_answers,
    "free",
    world="moves",
    harm="overbooked",
)
def offloaded_early(real: Any, transition: Any, saved: str) -> None:
    real(transition, saved)
    *others, last = transition.row.cleanups
    transition.release(last.release)
    transition.change(cleanups=(*others, structs.replace(last, release=())))
    move_steps.end_freed(transition)


# An offloaded instance is built on the first host that was chosen for it, and placement is not asked.
@planted("unshelved without a claim", moving, "unshelve", world="moves", harm="overbooked")
def unshelved_without_claim(real: Any, transition: Any, order: Any) -> None:
    real(transition, order)
    row = transition.row
    if row.is_unshelving and row.host is None:
        transition.change(attempt=row.attempt + 1, host=order.choices[0])
        transition.spawn()


# The share of a resize has no memory, though its flavor asks for some.
@planted("a resize drops memory", MoveNeedsFinder, "_needs", world="moves", harm="overbooked")
def memory_of_resize_dropped(real: Any, self: Any, order: Any, *others: Any) -> Any:
    wanted = real(self, order, *others)
    if order.kind != "resize" or isinstance(wanted, BuildRejected):
        return wanted
    amounts = tuple(each for each in wanted.spec.amounts if each[0] != "MEMORY_MB")
    return structs.replace(wanted, spec=structs.replace(wanted.spec, amounts=amounts))


# After a confirmed resize the row at API level still asks for the size of before.
planted_by(
    "a row keeps the size of before a confirmed resize",
    lifecycle,
    "resized_spec_after",
    world="moves",
    harm="overbooked",
)(lambda _real: lambda row, _said: row.resized_spec)


# A host that changed is not recorded, so nothing that waits is tried when it has room again.
planted_by("a wake-up lost", TouchedHosts, "add", world=ANY_CLOUD, harm="lost")(lambda _real: lambda *_: None)


# A member that leaves its server group wakes none of the others that wait.
planted_by("a member that leaves wakes nobody", TouchedHosts, "add_group")(lambda _real: lambda *_: None)


# Room that becomes free in a pool is not seen by those that wait for it.
planted_by("a pool that has room again wakes nobody", Picture, "_touch_users_of_pools")(
    lambda _real: lambda *_: None
)


# What waits for a host that it names is left out when that host has room.
planted_by("what names its host is not woken", WaitingSpecs, "_near")(
    lambda real: lambda self, spec, rows: set() if spec.hosts else real(self, spec, rows)
)


# Room goes to what was found first, though others wait longer that are not judged yet.
planted_by("room goes to what was found first", WaitingSpecs, "may_be_tried")(
    lambda _real: lambda _self, _turn: True
)


# The deadline of an instance that waits for room is not noticed; only accepted instances end by theirs.
@planted("the deadline of what waits forgotten", forgetting, "overdue", world=ANY_CLOUD, harm="lost")
def deadline_forgotten(real: Any, row: Any, now: Any) -> Any:
    return None if row.told.state == WAITING else real(row, now)


# A worker that looks for room for what waits passes over moves.
planted_by("a waiting move passed over", WaitingSpecs, "_room_for", world="moves that wait", harm="lost")(
    lambda real: lambda self, known: 0 if known.source is not None else real(self, known)
)


# A move that is aborted while it waits has its outcome, and waits on.
@planted("a wait outlives its abort", moves, "wait_ended", world="moves that wait", harm="lost")
def wait_outlives_its_abort(real: Any, row: Any, *args: Any) -> Any:
    ended = real(row, *args)
    told = structs.replace(ended.told, waiting=row.told.waiting)
    return structs.replace(ended, told=told, has_waited=False)


# A move fails if others got its room before its cell asked for it, also one that asked to wait for room.
planted_by(
    "a move that lost its room does not wait again",
    lifecycle,
    "waits_again",
    world="moves that wait",
    harm="lost",
)(lambda _real: lambda row, _now: row)


# Room that becomes free goes to what has waited longest, whatever its priority.
@planted("the priority of what waits ignored", waiting, "list_waiting", world="moves that wait")
def priority_ignored(real: Any, connection: Any, rows: Any) -> None:
    real(connection, [_without_priority(row) for row in rows])


def _without_priority(row: Any) -> Any:
    return structs.replace(
        row, told=structs.replace(row.told, waiting=structs.replace(row.told.waiting, priority=0))
    )


# A scheduler reads no moves that wait: those that waited when it started, and those that it hears of.
@planted("waiting moves forgotten at a restart", Waker, "_learn", world="moves that wait", harm="lost")
async def waiting_moves_not_read(real: Any, self: Any, some: Any) -> None:
    await real(self, [each for each in some if present(needs_in(each.needs)).source is None])


# A cell says that an instance is stopped, and has not ordered it.
@planted_by("an order to stop is lost", moving, "stop", world="power", harm="lost")
def order_to_stop_lost(real: Any) -> Any:
    def stop(transition: Any) -> None:
        if transition.move.kind != "stop":
            real(transition)
            return
        done = structs.replace(transition.move, outcome="done")
        transition.end_as("stopped", moving=None, move=done)

    return stop


# The destination of a stopped instance is told to run it.
planted_by("a stopped instance runs where it arrives", moving, "ReceiveInstance", world="power", harm="lost")(
    lambda real: lambda **fields: real(**{**fields, "stopped": False})
)


# It stays `accepted`, and its claim held, until its deadline; whoever asked hears nothing.
planted_as("a request that is buried after it was accepted stays accepted", harm="lost")(
    lambda: rewritten(Builder, "end_in_error", "if row.told.state == ACCEPTED", "if False")
)


# The share that the API level has claimed for it is held for ever.
planted_as("the claim of an order that a cell gives up stays", harm="lost")(
    lambda: rewritten(
        decide,
        "_on_place",
        "transition.release((HeldClaim(row.id, order.attempt),))\n        transition.end_in_error",
        "transition.end_in_error",
    )
)


# The build of the row that is given up holds its share for ever.
planted_as("a build that a cell gives up keeps its share", harm="lost")(
    lambda: rewritten(decide, "_on_given_up", "transition.free_share()", "pass")
)
