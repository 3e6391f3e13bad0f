"""Orders to move instances: check them, choose hosts in the picture, lock the rows, write, answer.

A move for which no host has room waits, if its order says so: waiting_moves.py tries it again.

Nothing is claimed here. The instance's cell asks placement to swap the claim, since only the cell knows the last
attempt. Until then the picture holds the chosen share (unclaimed_shares.py).
"""

import hashlib
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from functools import partial

import msgspec
from msgspec import Struct, structs

from bus.errors import WrongAnswer
from bus.message import Message
from bus.messages.administration import AskConsumer, ConsumerFound
from bus.messages.build import (
    BuildInstance,
    BuildRejected,
    InstanceId,
    InstanceState,
    MoveKind,
    NoValidHost,
)
from bus.messages.hosts import cell_and_name, host_in_cell
from bus.messages.moves import EndMove, MoveInstance
from bus.messages.placement import ResourceAmount
from bus.workers.handling import Handlers, Received, Said
from scheduler_worker.core.choosing.choosing import Chosen, choose
from scheduler_worker.core.choosing.draft import Leaving
from scheduler_worker.core.choosing.plugins import Plugins
from scheduler_worker.core.choosing.together import choose_together
from scheduler_worker.core.instances.moves import (
    MoveRoom,
    is_taken,
    move_ended,
    moved,
    problem_with,
    stays_on_host,
    why_stays_on_node,
)
from scheduler_worker.core.instances.old_flavors import has_needs
from scheduler_worker.core.instances.rebuilds import refused
from scheduler_worker.core.instances.resizes import as_in_change, flavor_after, problem_with_size
from scheduler_worker.core.instances.rows import InstanceRow, KeptRequest
from scheduler_worker.core.instances.specs import decoded, encoded, flavor_of, request_of
from scheduler_worker.core.instances.waiting_moves import may_wait, move_waits, wait_of
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.core.requests import InstanceSpec
from scheduler_worker.outbox.outbox import OutboxTransaction
from scheduler_worker.requests.answering import in_words
from scheduler_worker.requests.companions import Unit, units_of, why_others_stay
from scheduler_worker.requests.locked_rows import follow_several
from scheduler_worker.requests.reading import RequestReader
from scheduler_worker.requests.unclaimed_shares import UnclaimedShares
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.store import InstanceQuery, SchedulerStore, SchedulerTransaction
from scheduler_worker.waiting import MoveSource, WaitingSpecs

# The reason of a refusal because the instance changed while its host was chosen.
JUST_CHANGED = "it has just changed: ask again"

_encoded = msgspec.msgpack.Encoder().encode


# The host that was chosen, or why there is none; None if none is to be chosen.
Found = Chosen | NoValidHost | BuildRejected | None


class Wanted(Struct, frozen=True):
    """What an order to move an instance needs of a host.

    `row` is the row that this was read from. `next_spec` is for a resize: what the instance will need, encoded. `leaving`
    is set if the instance may stay on its host: then its own amounts there count as free.
    """

    spec: InstanceSpec
    row: InstanceRow
    next_spec: bytes = b""
    leaving: Leaving | None = None


def kept_order(
    unit: Unit, asked: MoveInstance, needs: Sequence[Wanted | BuildRejected | None], order: MoveInstance
) -> KeptRequest:
    """What is kept of the order for one instance of a unit while it waits. Orders with one digest need the same hosts: those of
    instances that move together have one of their own, since one try counts for all of them.
    """
    if unit.is_whole:
        others = tuple(each for each in unit.together if each != order.instance)
        order = structs.replace(order, together=others, with_group=asked.with_group)
    same = [order.kind, order.request_id.hex if unit.is_whole else ""]
    # Of an order for several members of a soft group, each instance waits by itself.
    mine = needs if unit.is_whole else [needs[unit.orders.index(order)]]
    for each in mine:
        if isinstance(each, Wanted):
            source = source_of(each.row.told, each, order.kind)
            same += [encoded(each.spec).hex(), source.cell, source.host, str(source.may_stay)]
    return KeptRequest(hashlib.sha256("\n".join(same).encode()).digest(), _encoded(order))


def source_of(told: InstanceState, needs: Wanted, kind: MoveKind) -> MoveSource:
    return MoveSource(told.cell, told.host, kind == "evacuate", needs.leaving is not None)


def _as_wanted(needs: Wanted | BuildRejected | None) -> Wanted | None:
    return needs if isinstance(needs, Wanted) else None


class Mover:
    def __init__(
        self,
        store: SchedulerStore,
        picture: Picture,
        plugins: Plugins,
        reader: RequestReader,
        clock: Callable[[], datetime],
        *,
        ask_all: Callable[[Sequence[Message]], Awaitable[Sequence[Message]]],
        settings: SchedulerSettings,
        make_sure: Callable[[], Awaitable[None]],
        know_hosts: Callable[[], Awaitable[None]],
        waiting: WaitingSpecs,
        unclaimed: UnclaimedShares,
        chance: random.Random,
    ) -> None:
        self._waiting = waiting
        self._unclaimed = unclaimed
        self._store = store
        self._picture = picture
        self._ask_all = ask_all
        self._plugins = plugins
        self._reader = reader
        self._clock = clock
        self._settings = settings
        self._make_sure = make_sure
        self._know_hosts = know_hosts
        self._salt = chance.getrandbits(32)

    def handlers(self) -> Handlers:
        return {MoveInstance: self._on_moves, EndMove: self._on_ends}

    async def _on_moves(
        self, asks: Sequence[Received[MoveInstance]], transaction: OutboxTransaction
    ) -> list[Said]:
        await self._know_hosts()
        units, wanted = await self.needed([ask.message for ask in asks])
        chosen = await self.hosts_for(wanted, [unit.is_whole for unit in units])
        room = await self.room(await transaction.begun())
        begun: dict[InstanceId, InstanceRow] = {}
        steps_of = []
        for ask, unit, needs, found in zip(asks, units, wanted, chosen, strict=True):
            # Instances that move together count as one move.
            rooms = [room, *(None if unit.is_whole else room for _ in unit.orders[1:])]
            kept = partial(kept_order, unit, ask.message, needs)
            steps_of.append(
                [
                    (
                        order.instance,
                        partial(
                            self._moved, unit, order, (there, _as_wanted(each)), kept, room=at, begun=begun
                        ),
                    )
                    for order, each, there, at in zip(unit.orders, needs, found, rooms, strict=True)
                ]
            )
        said = await follow_several(asks, steps_of, transaction, are_whole=[unit.is_whole for unit in units])
        self._unclaimed.hold([row for row in begun.values() if row.choices])
        by_id = {
            order.instance: needs_of_one
            for unit, needs in zip(units, wanted, strict=True)
            for order, needs_of_one in zip(unit.orders, needs, strict=True)
        }
        waits = [
            (
                row.id,
                row.kept.digest,
                needs_of_one.spec,
                source_of(row.told, needs_of_one, row.told.move.kind),
            )
            for row in begun.values()
            if row.kept is not None
            and row.told.move is not None
            and isinstance(needs_of_one := by_id[row.id], Wanted)
        ]
        if waits:
            transaction.when_committed(lambda: self._waiting.wrote_moves(waits))
        return said

    def _moved(
        self,
        unit: Unit,
        order: MoveInstance,
        found: tuple[Found, Wanted | None],
        kept: Callable[[MoveInstance], KeptRequest],
        row: InstanceRow | None,
        *,
        room: MoveRoom | None,
        begun: dict[InstanceId, InstanceRow],
    ) -> InstanceRow | BuildRejected:
        """The row after the order to move it, or the refusal. A row whose move begins by this order, or waits, is added to
        `begun`; but if one of those that move together does not, none does.
        """
        verdict = unit.refusal or self.verdict(row, order, *found, together=unit.together)
        if isinstance(verdict, NoValidHost):
            assert row is not None, "a row that is not there is refused"
            verdict = self._without_host(row, order, verdict, kept, unit.together)
        if not isinstance(verdict, BuildRejected) and verdict is not row:
            refusal = None if room is None or verdict.move_waits else room.take(verdict, order)
            if refusal is None:
                if verdict.choices and not verdict.move_waits:
                    verdict = self._with_wait(verdict, order, kept)
                begun[verdict.id] = verdict
                return verdict
            verdict = refusal
        if unit.is_whole and isinstance(verdict, BuildRejected):
            for each in unit.orders:
                begun.pop(each.instance, None)
        return verdict

    def _without_host(
        self,
        row: InstanceRow,
        order: MoveInstance,
        found: NoValidHost,
        kept: Callable[[MoveInstance], KeptRequest],
        together: tuple[InstanceId, ...],
    ) -> InstanceRow | BuildRejected:
        """The row of a move that begins to wait, since no host has room; or the refusal of one that does not wait, or that names
        no host to which it may ever go.
        """
        why_none = self._why_none_named(order, row.told)
        why = in_words(found)
        wait = wait_of(order, evacuation_wait_s=self._settings.evacuation_wait_s)
        if why_none or wait is None:
            return refused(order, "instance", order.instance, f"no valid host: {why_none or why}")
        return move_waits(
            row,
            order,
            wait,
            self._clock(),
            kept=kept(order),
            reason=why,
            no_valid_host=found,
            together=together,
        )

    def _with_wait(
        self, row: InstanceRow, order: MoveInstance, kept: Callable[[MoveInstance], KeptRequest]
    ) -> InstanceRow:
        """The row of a move that begins at once; if its order waits for room, it does so should others get this room."""
        wait = wait_of(order, evacuation_wait_s=self._settings.evacuation_wait_s)
        return row if wait is None else may_wait(row, wait, self._clock(), kept(order))

    def verdict(
        self,
        row: InstanceRow | None,
        order: MoveInstance,
        chosen: Found,
        wanted: Wanted | None,
        *,
        together: tuple[InstanceId, ...] = (),
    ) -> InstanceRow | BuildRejected | NoValidHost:
        """The row with the move to the chosen host, or why there is none: the order is refused, or no host has room."""
        problem = problem_with(row, order)
        if problem is not None:
            return problem
        assert row is not None, "a row that is not there is a problem"
        if is_taken(row, order):
            return row
        # A resize may have been confirmed meanwhile: then the host was chosen for another size.
        is_as_read = wanted is None or wanted.row.current_spec == row.current_spec
        match chosen:
            case BuildRejected():
                return chosen
            case Chosen(cell=row.told.cell) if is_as_read:
                choices = (chosen.choice, *chosen.alternates)
            case None if stays_on_host(row, order.kind):
                choices = ()
            case NoValidHost():
                return chosen
            case _:
                return refused(order, "instance", order.instance, JUST_CHANGED)
        return moved(
            row,
            order,
            choices,
            self._clock(),
            timeout_s=self._settings.move_timeout_s,
            confirm_s=self._settings.move_confirm_s,
            next_spec=b"" if wanted is None else wanted.next_spec,
            of=(chosen.hosts, chosen.qualified) if isinstance(chosen, Chosen) else (0, 0),
            together=together,
        )

    def _why_none_named(self, order: MoveInstance, told: InstanceState) -> str:
        """Why none of the hosts that the order names may be chosen; empty if any of them may."""
        reasons = []
        for name in order.hosts:
            if order.kind != "resize" and _is_named(told, name):
                reasons.append(f"it is on host {name} already")
                continue
            cells = self._picture.cells_named(name)
            if told.cell in cells:
                return ""
            reasons.append(
                f"{name} is in cell {' and '.join(cells)}, and the instance stays in cell {told.cell}"
                if cells
                else f"no host {name} is known"
            )
        return "; ".join(reasons)

    async def room(self, store: SchedulerTransaction) -> MoveRoom:
        """How many more moves the settings allow for each host and cell. With such a limit, the moves that go on are
        locked, so schedulers count one after the other.
        """
        a_host, a_cell = self._settings.moves_per_host_max, self._settings.moves_per_cell_max
        going = await store.lock_moves() if a_host or a_cell else ()
        return MoveRoom(going, a_host, a_cell)

    async def _on_ends(self, asks: Sequence[Received[EndMove]], transaction: OutboxTransaction) -> list[Said]:
        await self._know_hosts()
        decide = partial(move_ended, now=self._clock(), is_up=self._picture.is_up)
        together = await self._waiting_together([ask.message for ask in asks])
        steps_of = [
            [
                (id_, partial(decide, order=structs.replace(ask.message, instance=id_)))
                for id_ in (ask.message.instance, *others)
            ]
            for ask, others in zip(asks, together, strict=True)
        ]
        return await follow_several(asks, steps_of, transaction, are_whole=[False] * len(asks))

    async def _waiting_together(self, orders: Sequence[EndMove]) -> list[tuple[InstanceId, ...]]:
        """For each order, the other instances whose moves wait together with that of its instance, or have waited: some may wait
        again by now. If a move began without a wait, its cell ends the moves of the others.
        """
        ids = tuple(dict.fromkeys(order.instance for order in orders))
        rows = await self._store.instances(InstanceQuery(instances=ids, limit=len(ids)))
        moves = {row.id: row.told.move for row in rows if row.waited is not None}
        return [
            tuple(each for each in move.together if each != order.instance)
            if (move := moves.get(order.instance)) is not None and move.request_id == order.request_id
            else ()
            for order in orders
        ]

    # Needs

    async def needed(
        self,
        orders: Sequence[MoveInstance],
        as_seen: Callable[[InstanceRow], InstanceRow] = lambda row: row,
    ) -> tuple[list[Unit], list[list[Wanted | BuildRejected | None]]]:
        """What each order asks for, and what each of its instances needs of a host, or why it is refused. None if no host
        is to be chosen: the order was carried out before, or the instance stays where it is.

        The picture learns of members of groups with a delay. So it catches up before an order is refused because others of
        a group would stay.
        """
        units, wanted = await self._needed_now(orders, as_seen)
        if any(
            isinstance(each, BuildRejected) and each.field == "together" for needs in wanted for each in needs
        ):
            await self._make_sure()
            units, wanted = await self._needed_now(orders, as_seen)
        return units, wanted

    async def _needed_now(
        self, orders: Sequence[MoveInstance], as_seen: Callable[[InstanceRow], InstanceRow]
    ) -> tuple[list[Unit], list[list[Wanted | BuildRejected | None]]]:
        units, rows = await units_of(orders, self._store, self._picture, as_seen)
        held = await self._held_by(
            [
                order.instance
                for order in orders
                if order.kind == "resize"
                and order.hosts
                and problem_with(rows.get(order.instance.int), order) is None
            ]
        )
        return units, [
            [
                self._wanted_by(
                    order,
                    rows.get(order.instance.int),
                    held.get(order.instance, ()),
                    unit.leaving if unit.is_whole else unit.leaving | {order.instance.int},
                )
                for order in unit.orders
            ]
            for unit in units
        ]

    async def _held_by(self, instances: Iterable[InstanceId]) -> dict[InstanceId, tuple[ResourceAmount, ...]]:
        """The amounts that each of these instances holds of each provider, asked from placement, since the picture
        knows only the sum of all consumers of a provider.
        """
        held = {}
        ids = tuple(dict.fromkeys(instances))
        answers = await self._ask_all([AskConsumer(consumer=each) for each in ids])
        for instance, found in zip(ids, answers, strict=True):
            if not isinstance(found, ConsumerFound):
                raise WrongAnswer(f"placement answered a question for {instance} by {found!r}")
            held[instance] = found.consumer.held if found.consumer else ()
        return held

    def _wanted_by(
        self,
        order: MoveInstance,
        row: InstanceRow | None,
        held: tuple[ResourceAmount, ...],
        leaving: AbstractSet[int],
    ) -> Wanted | BuildRejected | None:
        problem = problem_with(row, order)
        if problem is not None:
            return problem
        assert row is not None, "a row that is not there is a problem"
        if is_taken(row, order):
            return None
        if row.told.host and (why := self._problem_with_source(order, row.told)):
            return refused(order, "instance", order.instance, why)
        return None if stays_on_host(row, order.kind) else self._needs(order, row, held, leaving)

    def _needs(
        self,
        order: MoveInstance,
        row: InstanceRow,
        held: tuple[ResourceAmount, ...],
        leaving: AbstractSet[int],
    ) -> Wanted | BuildRejected:
        """What the instance needs of a host. `leaving` are the instances that move together with it, and itself."""
        told = row.told
        spec, build = decoded(row.current_spec), request_of(row.current_spec)
        if spec is None or build is None:
            return refused(order, "instance", order.instance, "what it needs of a host is not known any more")
        next_spec = b""
        if order.kind == "resize":
            resized = self._resized(order, row, spec, build)
            if isinstance(resized, BuildRejected):
                return resized
            spec, build = resized
            next_spec = encoded(spec, build)
        named = tuple(sorted({name.lower() for name in order.hosts}))
        stays = order.kind == "resize" and any(_is_named(told, name) for name in order.hosts)
        leaves = bool(told.host) and not stays
        own_host = host_in_cell(told.cell, told.host).lower()
        ignored = (*spec.ignore_hosts, own_host) if leaves else spec.ignore_hosts
        group = own = spec.server_group
        others = [] if group is None else self._picture.groups.of_group(group.id)
        others = [each for each in others if each.consumer.int not in leaving]
        if group is not None and not others:
            group = None
        if group is not None and group.policy == "affinity" and leaves:
            here = {
                self._picture.columns.ids[each]
                for each in self._picture.rows_in(told.cell, told.host.lower())
            }
            if stay := [InstanceId(each.consumer) for each in others if each.host in here]:
                return why_others_stay(order, group, stay, told.host)
        return Wanted(
            structs.replace(
                spec, hosts=named, ignore_hosts=ignored, cell=told.cell, server_group=group, count=1
            ),
            row,
            next_spec,
            Leaving(rows[0], held, own)
            if stays and (rows := self._picture.rows_in(told.cell, told.host))
            else None,
        )

    def _problem_with_source(self, order: MoveInstance, told: InstanceState) -> str:
        host = told.host
        if self._picture.is_node(told.cell, host):
            return why_stays_on_node(host)
        is_up = self._picture.is_up(told.cell, host)
        if order.kind == "evacuate" and is_up:
            return f"its host {host} is up: migrate it, or say first that the host is down"
        if order.kind != "evacuate" and not is_up:
            return f"its host {host} is down: evacuate it"
        return ""

    def _resized(
        self, order: MoveInstance, row: InstanceRow, spec: InstanceSpec, build: BuildInstance
    ) -> tuple[InstanceSpec, BuildInstance] | BuildRejected:
        """What the instance needs with the flavor that the order gives it, and the request with that flavor. Everything
        that a flavor does not give stays as it was, such as the image.
        """
        known = flavor_of(row.current_spec)
        assert known is not None, "a row whose needs are known has a flavor"
        if not known.is_exact and order.change is not None:
            same = self._read(structs.replace(build, flavor=known.flavor), order)
            if isinstance(same, BuildRejected) or not has_needs(same, spec):
                reason = (
                    "its flavor is not known, since an earlier release wrote its row: give the whole flavor"
                )
                return refused(order, "change", "", reason)
        flavor = flavor_after(order, known)
        if isinstance(flavor, BuildRejected):
            return flavor
        build = structs.replace(build, flavor=flavor)
        read = self._read(build, order)
        if isinstance(read, BuildRejected):
            return as_in_change(read, order.change)
        if (problem := problem_with_size(order, flavor, spec, read)) is not None:
            return problem
        read = structs.replace(
            read,
            project=spec.project,
            hosts=spec.hosts,
            ignore_hosts=spec.ignore_hosts,
            image=spec.image,
            different_hosts=spec.different_hosts,
            same_hosts=spec.same_hosts,
            server_group=spec.server_group,
        )
        return read, build

    def _read(self, build: BuildInstance, order: MoveInstance) -> InstanceSpec | BuildRejected:
        read = self._reader.spec_of(structs.replace(build, request_id=order.request_id))
        return structs.replace(read, project=order.project) if isinstance(read, BuildRejected) else read

    # Choosing

    async def hosts_for(
        self, wanted: Sequence[Sequence[Wanted | BuildRejected | None]], are_whole: Sequence[bool]
    ) -> list[list[Found]]:
        """The chosen host of each instance of each order, or why there is none."""
        found = self._choose(wanted, are_whole)
        if any(isinstance(each, NoValidHost) for of_order in found for each in of_order):
            await self._make_sure()
            found = self._choose(wanted, are_whole)
        return found

    def _choose(
        self, wanted: Sequence[Sequence[Wanted | BuildRejected | None]], are_whole: Sequence[bool]
    ) -> list[list[Found]]:
        """Choose a host for each move. A resize that may stay on its host is chosen by itself: otherwise another move
        of the batch could be given the room that its instance gives back. So are instances that move together.
        """
        batch = [
            each.spec
            for needs, is_whole in zip(wanted, are_whole, strict=True)
            for each in needs
            if isinstance(each, Wanted) and each.leaving is None and not is_whole
        ]
        others = iter(self._chosen(batch))
        found: list[list[Found]] = []
        for needs, is_whole in zip(wanted, are_whole, strict=True):
            if is_whole:
                found.append(self._choose_whole(needs))
                continue
            found.append(
                [
                    each
                    if not isinstance(each, Wanted)
                    else next(others)
                    if each.leaving is None
                    else self._chosen([each.spec], each.leaving)[0]
                    for each in needs
                ]
            )
        return found

    def _choose_whole(self, needs: Sequence[Wanted | BuildRejected | None]) -> list[Found]:
        """Choose one host for instances that move together; none if one of them does not move."""
        refusal = next((each for each in needs if isinstance(each, BuildRejected)), None)
        if refusal is not None:
            return [refusal] * len(needs)
        specs = [each.spec for each in needs if isinstance(each, Wanted)]
        if len(specs) < len(needs):
            return [None] * len(needs)
        found = choose_together(
            self._picture, specs, self._plugins, self._salt, self._settings.alternates_max
        )
        return [found] * len(needs) if isinstance(found, NoValidHost) else [*found]

    def _chosen(
        self, specs: Sequence[InstanceSpec], leaving: Leaving | None = None
    ) -> list[Chosen | NoValidHost]:
        return choose(
            self._picture,
            specs,
            self._plugins,
            self._salt,
            self._settings.alternates_max,
            leaving=leaving,
        )


def _is_named(told: InstanceState, name: str) -> bool:
    """Is this the name of the host that the instance is on? A name without a cell means a host of the instance's cell."""
    cell, plain = cell_and_name(name)
    return cell in ("", told.cell) and plain.lower() == told.host.lower()
