"""The needs of orders to move instances, or the reasons why these are refused before a host is looked for."""

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

import msgspec
from msgspec import Struct, structs

from bus.message import Message
from bus.messages.books import AskConsumer, ConsumerFound
from bus.messages.build import BuildInstance, BuildRejected, InstanceState, MoveKind
from bus.messages.moves import MoveInstance
from engine.choosing.hosts import Occupant
from engine.flavors import DeviceProfile, Flavor, InstanceId
from engine.hosts import host_in_cell
from engine.inventories import ConsumerId, ProviderId, ResourceAmount, ServerGroup
from engine.picture.picture import Picture
from engine.refusals import TOGETHER_MAX
from engine.requests import InstanceSpec
from engine.requests.spec import PROFILE, of_mover, profile_to_find, with_profile, with_size_kept
from kit.errors import WrongAnswer
from scheduler_worker.core.instances.history import decoded, encoded, flavor_of, request_of
from scheduler_worker.core.instances.moves import (
    as_new,
    is_on,
    is_taken,
    problem_with,
    stays_on_host,
    waits_by,
    why_stays_on_node,
)
from scheduler_worker.core.instances.resizes import as_in_change, flavor_after, problem_with_size, refused
from scheduler_worker.core.instances.rows import DELETED, DELETING, MOVING, InstanceRow, KeptRequest, is_of
from scheduler_worker.requests.catalog import stored_profiles
from scheduler_worker.requests.reading import RequestReader
from scheduler_worker.store_sql import SchedulerStore
from scheduler_worker.waiting import MoveSource, WaitingNeeds, encoded_needs

# Orders to move several instances at once: which instances one order moves, and why they may not move that way.
#
# Members of an affinity group leave their host by one order: it names the others, or asks for the whole group. One host is chosen
# with room for all of them (engine/choosing/choosing.py); each then moves by itself, and placement lets it follow the first one.


Rows = Mapping[ConsumerId, InstanceRow]
# Why an instance waits on that others have left behind: it will find its group on the next host.
ON_THEIR_WAY = "others that move by this order are on their way: it follows them"


class Unit(Struct, frozen=True):
    """What one order asks for: an order for each instance that leaves by it, the one that it names first. One host is chosen for
    all of them, or none of them moves.

    A group may have more members than move by one order. Then the host has room for the `followers`, too: the next order for one
    of them finds the group there.
    """

    orders: tuple[MoveInstance, ...]
    followers: tuple[MoveInstance, ...] = ()
    refusal: BuildRejected | None = None
    # The hosts that they leave.
    leaves: tuple[ProviderId, ...] = ()
    # Members that are deleted: their cell has them leave the group.
    deleted: tuple[InstanceId, ...] = ()

    @property
    def is_of_several(self) -> bool:
        return len(self.orders) > 1

    @property
    def leaving(self) -> set[ConsumerId]:
        """The members of a group that are not left behind."""
        return {*self.deleted, *(each.instance for each in (*self.orders, *self.followers))}

    @property
    def together(self) -> tuple[InstanceId, ...]:
        """The instances that move together, in the order of their ids; empty if it is one alone."""
        return tuple(sorted(each.instance for each in self.orders)) if self.is_of_several else ()


async def units_of(
    orders: Sequence[MoveInstance], store: SchedulerStore, picture: Picture, *, again: bool
) -> tuple[list[Unit], Rows]:
    """What each order asks for, and the rows of all instances that it names or means. With `again`, moves wait by these orders: then
    the rows are as they would be without the orders.
    """
    ids = [id_ for order in orders for id_ in (order.instance, *order.together)]
    rows = await store.rows_of(ids)
    if again:
        orders = [_for_those_left(order, rows) for order in orders]
    members = [
        _members_beside(rows.get(order.instance), picture) if order.with_group else [] for order in orders
    ]
    new = [id_ for of_order in members for id_ in of_order if id_ not in rows]
    rows |= await store.rows_of(new)
    if again:
        requests = {order.request_id for order in orders}
        rows = {id_: as_new(row, requests) for id_, row in rows.items()}
    units = [_unit(order, rows, beside) for order, beside in zip(orders, members, strict=True)]
    return [structs.replace(unit, leaves=_hosts_left(unit, rows, picture)) for unit in units], rows


def _for_those_left(order: MoveInstance, rows: Rows) -> MoveInstance:
    """The order by which moves wait, without the other instances that it does not move any more."""
    left = [
        id_ for id_ in order.together if waits_by(rows.get(id_), order) or _moves_by(rows.get(id_), order)
    ]
    return structs.replace(order, together=tuple(left))


def _moves_by(row: InstanceRow | None, order: MoveInstance) -> bool:
    """Has its cell the move of this order, as far as is known here?"""
    if row is None or row.told.state != MOVING or row.told.move is None:
        return False
    return row.told.move.request_id == order.request_id


def _hosts_left(unit: Unit, rows: Rows, picture: Picture) -> tuple[ProviderId, ...]:
    if not unit.is_of_several:
        return ()
    places = sorted(
        {(row.told.cell, row.told.host.lower()) for id_ in unit.together if (row := rows.get(id_))}
    )
    return tuple([picture.columns.ids[each] for place in places for each in picture.rows_in(*place)])


def _unit(order: MoveInstance, rows: Rows, members: Sequence[InstanceId]) -> Unit:
    alone = structs.replace(order, together=(), with_group=False)
    row = rows.get(order.instance)
    if not order.together and not order.with_group:
        return Unit((order,))
    if row is not None and is_taken(row, order):
        move = row.told.move
        known = move.together if move is not None and move.request_id == order.request_id else ()
        return _of_all(alone, known)
    if any(_moves_by(rows.get(id_), order) for id_ in order.together):
        return Unit((alone,), refusal=refused(order, "together", "", ON_THEIR_WAY))
    there = [
        each
        for id_ in members
        if (each := rows.get(id_)) is not None
        and row is not None
        and (each.told.host, each.told.cell) == (row.told.host, row.told.cell)
        and is_of(each, order.project)
    ]
    deleted = tuple([each.id for each in there if each.told.state in (DELETING, DELETED)])
    others = [each.id for each in there if each.id not in deleted]
    unit = _of_all(alone, (*order.together, *others))
    return structs.replace(unit, refusal=_refusal(order, unit), deleted=deleted)


def _of_all(alone: MoveInstance, others: Sequence[InstanceId]) -> Unit:
    ids = dict.fromkeys((alone.instance, *others))
    orders = tuple(structs.replace(alone, instance=id_) for id_ in ids)
    return Unit(orders[:TOGETHER_MAX], orders[TOGETHER_MAX:])


def _refusal(order: MoveInstance, unit: Unit) -> BuildRejected | None:
    if unit.followers and not order.with_group:
        named = 1 + len(order.together)
        return refused(order, "together", named, f"at most {TOGETHER_MAX} instances move by one order")
    if unit.is_of_several and order.confirm_s:
        # Until it is confirmed, a move keeps its place on the host that it left, and new members could be nowhere.
        return refused(
            order, "confirm_s", order.confirm_s, "moves of several need no confirmation: leave it out"
        )
    return None


def server_group_of(row: InstanceRow | None) -> ServerGroup | None:
    spec = None if row is None else decoded(row.current_spec)
    return None if spec is None else spec.server_group


def _members_beside(row: InstanceRow | None, picture: Picture) -> list[InstanceId]:
    """The other members of the instance's affinity group, as far as the picture knows. Heirs of moves may be among them: these
    have no rows.
    """
    group = server_group_of(row)
    if row is None or group is None or group.policy != "affinity":
        return []
    return [
        InstanceId(each.consumer)
        for each in sorted(picture.groups.of_group(group.id), key=lambda each: each.consumer)
        if each.consumer != row.id
    ]


def why_others_stay(
    order: MoveInstance, group: ServerGroup, stay: Sequence[InstanceId], host: str
) -> BuildRejected:
    """The refusal of an order that would take a member away from the others of its affinity group."""
    ids = " ".join(str(each) for each in sorted(stay)[:10])
    reason = (
        f"server group {group.id} (affinity) keeps its members on one host, and {len(stay)} would stay on {host}: {ids}. "
        f"Move all of them by one order: name the others in `together`, or set `with_group` (`moor migrate ID ID...`, `moor host drain`)"
    )
    return refused(order, "together", "", reason)


class MoveNeeds(Struct, frozen=True):
    """The needs of an order to move an instance.

    `row` is the row that this was read from. `next_spec` is for a resize: what the instance will need, encoded. `leaving`
    is set if the instance may stay on its host: then its own amounts there count as free. `followers` are the needs of those that
    come to the same host by later orders.
    """

    spec: InstanceSpec
    row: InstanceRow
    next_spec: bytes = b""
    leaving: Occupant | None = None
    followers: tuple[InstanceSpec, ...] = ()


def why_not_from(told: InstanceState, kind: MoveKind, picture: Picture) -> str:
    """Why this kind of move takes no instance away from its host as that is now; empty if it does."""
    is_up = picture.is_up(told.cell, told.host)
    if kind == "evacuate" and is_up:
        return f"its host {told.host} is up: migrate it, or say first that the host is down"
    if kind != "evacuate" and not is_up:
        return f"its host {told.host} is down: evacuate it"
    return ""


# The needs for one instance, or the refusal. None if no host is to be chosen: the order was carried out before, or the instance
# stays where it is.
NeedsFound = MoveNeeds | BuildRejected | None


class MoveNeedsFinder:
    def __init__(
        self,
        store: SchedulerStore,
        picture: Picture,
        reader: RequestReader,
        *,
        ask_all: Callable[[Sequence[Message]], Awaitable[Sequence[Message]]],
        make_sure: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = store
        self._picture = picture
        self._reader = reader
        self._ask_all = ask_all
        self._make_sure = make_sure

    async def find(
        self, orders: Sequence[MoveInstance], *, again: bool = False
    ) -> tuple[list[Unit], list[list[NeedsFound]]]:
        """What each order asks for, and what each of its instances needs of a host, or why it is refused. None if no host
        is to be chosen: the order was carried out before, or the instance stays where it is.

        The picture learns of members of groups with a delay. So it catches up before an order is refused because others of
        a group would stay. With `again`, moves wait by these orders.
        """
        units, wanted = await self._needed_now(orders, again=again)
        if any(
            isinstance(each, BuildRejected) and each.field == "together" for needs in wanted for each in needs
        ):
            await self._make_sure()
            units, wanted = await self._needed_now(orders, again=again)
        return units, wanted

    async def _needed_now(
        self, orders: Sequence[MoveInstance], *, again: bool
    ) -> tuple[list[Unit], list[list[NeedsFound]]]:
        units, rows = await units_of(orders, self._store, self._picture, again=again)
        profiles = await stored_profiles(self._store, map(_flavor_with_profile, orders))
        held = await self._held_by(
            [
                order.instance
                for order in orders
                if order.kind == "resize"
                and order.hosts
                and problem_with(rows.get(order.instance), order) is None
            ]
        )
        return units, [
            _with_followers(
                [
                    self._wanted_by(
                        order,
                        rows.get(order.instance),
                        held.get(order.instance, ()),
                        unit.leaving,
                        profiles,
                    )
                    for order in (*unit.orders, *unit.followers)
                ],
                len(unit.orders),
            )
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
        leaving: AbstractSet[ConsumerId],
        profiles: Mapping[str, DeviceProfile],
    ) -> NeedsFound:
        problem = problem_with(row, order)
        if problem is not None:
            return problem
        assert row is not None, "a row that is not there is a problem"
        if is_taken(row, order):
            return None
        if row.told.host and (why := self._problem_with_source(order, row.told)):
            return refused(order, "instance", order.instance, why)
        return None if stays_on_host(row, order.kind) else self._needs(order, row, held, leaving, profiles)

    def _needs(
        self,
        order: MoveInstance,
        row: InstanceRow,
        held: tuple[ResourceAmount, ...],
        leaving: AbstractSet[ConsumerId],
        profiles: Mapping[str, DeviceProfile],
    ) -> MoveNeeds | BuildRejected:
        """The needs of the instance. `leaving` are the instances that move together with it, and itself."""
        told = row.told
        spec, build = decoded(row.current_spec), request_of(row.current_spec)
        if spec is None or build is None:
            return refused(order, "instance", order.instance, "what it needs of a host is not known any more")
        next_spec = b""
        if order.kind == "resize":
            resized = self._resized(order, row, spec, build, profiles)
            if isinstance(resized, BuildRejected):
                return resized
            spec, build = resized
            next_spec = encoded(spec, build)
        named = tuple(sorted({name.lower() for name in order.hosts}))
        stays = order.kind == "resize" and any(is_on(told, name) for name in order.hosts)
        leaves = bool(told.host) and not stays
        own_host = host_in_cell(told.cell, told.host).lower()
        ignored = (*spec.ignore_hosts, own_host) if leaves else spec.ignore_hosts
        group = own = spec.server_group
        others = [] if group is None else self._picture.groups.of_group(group.id)
        others = [each for each in others if each.consumer not in leaving]
        spec = of_mover(spec, order.instance, is_alone=not others)
        if stays:
            # Its own place is counted as gone.
            spec = structs.replace(spec, mover=None)
        if group is not None and group.policy == "affinity" and leaves:
            here = {
                self._picture.columns.ids[each]
                for each in self._picture.rows_in(told.cell, told.host.lower())
            }
            if stay := [InstanceId(each.consumer) for each in others if each.host in here]:
                return why_others_stay(order, group, stay, told.host)
        return MoveNeeds(
            structs.replace(spec, hosts=named, ignore_hosts=ignored, cell=told.cell, count=1),
            row,
            next_spec,
            Occupant(order.instance, self._picture.columns.ids[rows[0]], held, own)
            if stays and (rows := self._picture.rows_in(told.cell, told.host))
            else None,
        )

    def _problem_with_source(self, order: MoveInstance, told: InstanceState) -> str:
        host = told.host
        if self._picture.is_node(told.cell, host):
            return why_stays_on_node(host, order.kind)
        return why_not_from(told, order.kind, self._picture)

    def _resized(
        self,
        order: MoveInstance,
        row: InstanceRow,
        spec: InstanceSpec,
        build: BuildInstance,
        profiles: Mapping[str, DeviceProfile],
    ) -> tuple[InstanceSpec, BuildInstance] | BuildRejected:
        """The needs of the instance with the flavor that the order gives it, and the request with that flavor. Everything
        that a flavor does not give stays as it was, such as the image.
        """
        known = flavor_of(row.current_spec)
        assert known is not None, "a row whose needs are known has a flavor"
        flavor = flavor_after(order, known)
        if isinstance(flavor, BuildRejected):
            return flavor
        if (profile := profiles.get(profile_to_find(flavor))) is not None:
            flavor = with_profile(flavor, profile)
        flavor = with_size_kept(flavor, known, build.image_properties)
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


def _with_followers(needs: list[NeedsFound], count: int) -> list[NeedsFound]:
    """The needs of the first so many, the first of which has those of the others; or why the others cannot follow."""
    now, later = needs[:count], needs[count:]
    if later and isinstance(now[0], MoveNeeds):
        why = next((each for each in later if isinstance(each, BuildRejected)), None)
        specs = tuple(each.spec for each in later if isinstance(each, MoveNeeds))
        now[0] = why or structs.replace(now[0], followers=specs)
    return now


def _flavor_with_profile(order: MoveInstance) -> Flavor | None:
    """A flavor with the device profile that the order names; None if it names none."""
    if order.change is None:
        return order.flavor
    name = order.change.extra_specs.get(PROFILE)
    return None if name is None else Flavor(extra_specs={PROFILE: name})


# An order to move an instance, as the row of the instance keeps it while it waits for room.


_encoded = msgspec.msgpack.Encoder().encode


def kept_order(
    unit: Unit, asked: MoveInstance, needs: Sequence[NeedsFound], order: MoveInstance
) -> KeptRequest:
    """The order for one instance of a unit, as its row keeps it. Orders with one digest need the same hosts: those of instances
    that move together have one of their own, since one try counts for all of them.
    """
    if unit.is_of_several:
        others = tuple(each for each in unit.together if each != order.instance)
        order = structs.replace(order, together=others, with_group=asked.with_group)
    known = {each.row.id: each for each in needs if isinstance(each, MoveNeeds)}
    waits_for = {id_: encoded_needs(_waiting_needs(each, order.kind)) for id_, each in known.items()}
    # What an instance holds counts as free for it alone.
    held = [
        f"{amount.provider} {amount.resource} {amount.amount}"
        for each in known.values()
        for amount in (each.leaving.held if each.leaving else ())
    ]
    same = [order.kind, order.request_id if unit.is_of_several else None, [*waits_for.values()], sorted(held)]
    return KeptRequest(hashlib.sha256(_encoded(same)).digest(), _encoded(order), waits_for[order.instance])


def _waiting_needs(needs: MoveNeeds, kind: MoveKind) -> WaitingNeeds:
    told, stays = needs.row.told, needs.leaving is not None
    return WaitingNeeds((needs.spec,), MoveSource(told.cell, told.host, kind == "evacuate", stays))
