"""The needs of orders to move instances, or the reasons why these are refused before a host is looked for."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from msgspec import Struct, structs

from bus.errors import WrongAnswer
from bus.message import ConsumerId, Message
from bus.messages.administration import AskConsumer, ConsumerFound
from bus.messages.build import BuildInstance, BuildRejected, Flavor, InstanceId, InstanceState
from bus.messages.device_profiles import DeviceProfile
from bus.messages.hosts import host_in_cell
from bus.messages.moves import MoveInstance
from bus.messages.placement import ResourceAmount
from scheduler_worker.core.choosing.draft import Leaving
from scheduler_worker.core.instances.moves import (
    is_on,
    is_taken,
    problem_with,
    stays_on_host,
    why_stays_on_node,
)
from scheduler_worker.core.instances.rebuilds import refused
from scheduler_worker.core.instances.resizes import as_in_change, flavor_after, problem_with_size
from scheduler_worker.core.instances.rows import InstanceRow
from scheduler_worker.core.instances.specs import decoded, encoded, flavor_of, request_of
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.core.requests import InstanceSpec
from scheduler_worker.core.requests.device_profiles import PROFILE, profile_to_find, with_profile
from scheduler_worker.core.requests.page_sizes import with_size_kept
from scheduler_worker.requests.companions import Unit, units_of, why_others_stay
from scheduler_worker.requests.request_reader import RequestReader
from scheduler_worker.requests.stored_names import stored_profiles
from scheduler_worker.store import SchedulerStore


class MoveNeeds(Struct, frozen=True):
    """The needs of an order to move an instance.

    `row` is the row that this was read from. `next_spec` is for a resize: what the instance will need, encoded. `leaving`
    is set if the instance may stay on its host: then its own amounts there count as free.
    """

    spec: InstanceSpec
    row: InstanceRow
    next_spec: bytes = b""
    leaving: Leaving | None = None


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
        self,
        orders: Sequence[MoveInstance],
        as_seen: Callable[[InstanceRow], InstanceRow] = lambda row: row,
    ) -> tuple[list[Unit], list[list[NeedsFound]]]:
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
    ) -> tuple[list[Unit], list[list[NeedsFound]]]:
        units, rows = await units_of(orders, self._store, self._picture, as_seen)
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
            [
                self._wanted_by(
                    order,
                    rows.get(order.instance),
                    held.get(order.instance, ()),
                    unit.leaving if unit.is_whole else unit.leaving | {order.instance},
                    profiles,
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
        if group is not None and not others:
            group = None
        if group is not None and group.policy == "affinity" and leaves:
            here = {
                self._picture.columns.ids[each]
                for each in self._picture.rows_in(told.cell, told.host.lower())
            }
            if stay := [InstanceId(each.consumer) for each in others if each.host in here]:
                return why_others_stay(order, group, stay, told.host)
        return MoveNeeds(
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
            return why_stays_on_node(host, order.kind)
        is_up = self._picture.is_up(told.cell, host)
        if order.kind == "evacuate" and is_up:
            return f"its host {host} is up: migrate it, or say first that the host is down"
        if order.kind != "evacuate" and not is_up:
            return f"its host {host} is down: evacuate it"
        return ""

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


def _flavor_with_profile(order: MoveInstance) -> Flavor | None:
    """A flavor with the device profile that the order names; None if it names none."""
    if order.change is None:
        return order.flavor
    name = order.change.extra_specs.get(PROFILE)
    return None if name is None else Flavor(extra_specs={PROFILE: name})
