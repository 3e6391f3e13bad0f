"""Orders to delete, rebuild and mend instances: lock the rows, decide (core/instances/), write, answer."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import numpy as np
from msgspec import structs

from bus.messages.audit import GiveBackInstance, MendInstance
from bus.messages.build import (
    BuildInstance,
    BuildRejected,
    DeleteInstance,
    InstancesFound,
    InstanceState,
    RebuildInstance,
)
from bus.messages.catalog import NamedImage
from bus.messages.moves import EndMove, MoveInstance
from bus.workers.handlers import Answer, Handlers, Received, Said
from engine.choosing.explaining import traits_at
from engine.choosing.hosts import Draft, Hosts, OneHost
from engine.choosing.plugins import HostChange
from engine.flavors import InstanceId
from engine.picture.picture import Picture
from engine.requests import InstanceSpec
from scheduler_worker.core.instances.history import decoded, encoded, flavor_of, request_of, with_history
from scheduler_worker.core.instances.lifecycle import after_delete, mended
from scheduler_worker.core.instances.moves import move_ended
from scheduler_worker.core.instances.resizes import RebuildImage, image_as_given, rebuilt, refused
from scheduler_worker.core.instances.rows import NO_REQUEST, InstanceRow, is_of
from scheduler_worker.outbox import OutboxTransaction
from scheduler_worker.requests.limits import ProjectLimits
from scheduler_worker.requests.reading import RequestReader, rejected, rejection
from scheduler_worker.store_sql import NameQuery, SchedulerStore, SchedulerTransaction

# Rebuilds from stored images: their properties count as those of a boot's image do.
#
# No host is chosen. So the present host is judged by the filters that read what an image asks for, and the order is refused if it
# does not qualify. The share stays as it is: an image that asks for other resources is refused, too.


# What an image asks for beside resources.
_OF_IMAGES = ("image_properties", "required", "forbidden")
# What its instance has claimed, and keeps.
_OF_SHARES = ("amounts", "groups", "isolates", "same_subtree")

ImageOf = Callable[[InstanceRow, RebuildInstance], RebuildImage | BuildRejected]


class RebuildImages:
    """Finds the images of orders to rebuild, and judges whether the present host may run them."""

    def __init__(self, store: SchedulerStore, picture: Picture, reader: RequestReader) -> None:
        self._store = store
        self._picture = picture
        self._reader = reader

    async def find(self, orders: Sequence[RebuildInstance]) -> ImageOf:
        """A function that gives the image of each of these orders, or why its instance cannot get it."""
        names = {order.image_name for order in orders if order.image_name}
        if not names:
            return image_as_given
        stored = {
            each.name: each
            for each in await self._store.named(NamedImage, NameQuery(names=tuple(sorted(names))))
        }
        return lambda row, order: (
            self._image(row, order, stored) if order.image_name else image_as_given(row, order)
        )

    def _image(
        self, row: InstanceRow, order: RebuildInstance, stored: Mapping[str, NamedImage]
    ) -> RebuildImage | BuildRejected:
        image = stored.get(order.image_name)
        if image is None:
            reason = "there is no image of this name; `moor image list` shows all"
            return refused(order, "image_name", order.image_name, reason)
        before, build = decoded(row.current_spec), request_of(row.current_spec)
        known = flavor_of(row.current_spec)
        if before is None or build is None or known is None:
            reason = "what it needs of a host is not known any more: name the image by its URL or id"
            return refused(order, "instance", order.instance, reason)
        build = structs.replace(build, flavor=known, image_name=image.name, image_properties=image.properties)
        after = self._needs(order, build, before)
        if isinstance(after, BuildRejected):
            return after
        if why := self._why_not(row, before, after):
            return refused(order, "image_name", order.image_name, why)
        return RebuildImage(image.image, image.properties, encoded(after, build))

    def _needs(
        self, order: RebuildInstance, build: BuildInstance, before: InstanceSpec
    ) -> InstanceSpec | BuildRejected:
        """What the instance needs with this image; what neither flavor nor image gives stays as it was."""
        read = self._reader.spec_of(structs.replace(build, request_id=order.request_id))
        if isinstance(read, BuildRejected):
            return structs.replace(read, project=order.project)
        kept = ("project", "hosts", "ignore_hosts", "different_hosts", "same_hosts", "server_group", "image")
        return structs.replace(read, **{field: getattr(before, field) for field in kept})

    def _why_not(self, row: InstanceRow, before: InstanceSpec, after: InstanceSpec) -> str:
        """Why the host that has the instance may not run this image; empty if it may."""
        for field in _OF_SHARES:
            if getattr(after, field) != getattr(before, field):
                return "it asks for other resources than the instance has, and a rebuild changes no share: boot a new one"
        rows = self._picture.rows_in(row.told.cell, row.told.host.lower())
        if not len(rows):
            return f"nothing is known of its host {row.told.host} now"
        hosts = Hosts(Draft(self._picture), np.array(rows[:1]))
        host = OneHost(hosts, 0)
        judges = [
            one
            for one in self._reader.plugins.filters
            if {*one.reads} & {*_OF_IMAGES} and HostChange.USAGE not in one.woken_by
        ]
        reasons = [
            f"{one.name}: {one.reason(host, after)}" for one in judges if not one.passes(hosts, after)[0]
        ]
        traits = traits_at(host)
        reasons += [f"traits: it lacks {each}" for each in after.required if each not in traits]
        reasons += [f"traits: it has {each}" for each in after.forbidden if each in traits]
        return f"its host {row.told.host} cannot run this image ({'; '.join(reasons)})" if reasons else ""


# Steps of instances: lock the rows, take one step after the other, write the rows that have changed.


Order = TypeVar("Order", DeleteInstance, RebuildInstance, MoveInstance, EndMove, GiveBackInstance)
# The row after a step; None if it stays as it is.
Step = Callable[[InstanceRow | None], InstanceRow | None]
# The rows of an order's instances after it, or why it is refused for all of them; the same row where it was followed before.
OrderStep = Callable[[Mapping[InstanceId, InstanceRow]], Sequence[InstanceRow] | BuildRejected]


class Ordered(NamedTuple):
    """A change that is to be applied to an instance's row, and the user who ordered it (`by`: empty if an event of a cell
    causes it).
    """

    instance: InstanceId
    step: Step
    by: str = ""


async def take_steps(store: SchedulerTransaction, steps: Sequence[Ordered]) -> dict[InstanceId, InstanceRow]:
    """Lock the rows, apply each step to its row, and save those that changed. Returns the rows as they are then."""
    rows = dict(await store.lock(sorted({each.instance for each in steps})))
    changed: dict[InstanceId, InstanceRow] = {}
    for id_, step, by in steps:
        before = rows.get(id_)
        row = step(before)
        if row is not None and row is not before:
            changed[id_] = rows[id_] = with_history(before, row, by)
    await store.save(list(changed.values()))
    return rows


async def tell_all(
    rows: dict[InstanceId, InstanceRow],
    asks: Sequence[Received[Order]],
    transaction: OutboxTransaction,
    more: Mapping[InstanceId, Received[Order]] = MappingProxyType({}),
) -> list[Said]:
    """Have the messages of these rows sent, each as a consequence of the order that changed the row. `more` has the orders
    that changed rows which they do not name.
    """
    await transaction.note(rows.values())
    causes = {**more, **{ask.message.instance: ask for ask in asks}}
    return [tell for id_, row in rows.items() for tell in transaction.tells(row, causes[id_])]


async def follow_several(
    asks: Sequence[Received[Order]],
    steps: Sequence[tuple[Sequence[InstanceId], OrderStep]],
    transaction: OutboxTransaction,
) -> list[Said]:
    """Follow these orders, each by one step for all of its instances."""
    store = await transaction.begun()
    rows = dict(await store.lock(sorted({id_ for ids, _ in steps for id_ in ids})))
    changed: dict[InstanceId, InstanceRow] = {}
    verdicts: list[Sequence[InstanceRow] | BuildRejected] = []
    for ask, (_, step) in zip(asks, steps, strict=True):
        verdict = step(rows)
        verdicts.append(verdict)
        for row in () if isinstance(verdict, BuildRejected) else verdict:
            if row is not rows[row.id]:
                changed[row.id] = rows[row.id] = with_history(rows[row.id], row, ask.by)
    await store.save([*changed.values()])
    causes = {id_: ask for ask, (ids, _) in zip(asks, steps, strict=True) for id_ in ids}
    said = await tell_all(rows, asks, transaction, causes)
    for ask, verdict in zip(asks, verdicts, strict=True):
        if isinstance(verdict, BuildRejected):
            said += rejected(ask, verdict)
            continue
        told = [rows[each.id].told for each in verdict]
        said.append(
            Answer(ask, InstancesFound(instances=tuple(told if len(told) == 1 else map(_alone, told))))
        )
    return said


def _alone(told: InstanceState) -> InstanceState:
    """The state without the others that move by its order. The answer has them: named in each of a hundred states, they would be
    too large for a message.
    """
    if told.move is None or not told.move.together:
        return told
    return structs.replace(told, move=structs.replace(told.move, together=()))


async def follow(
    asks: Sequence[Received[Order]],
    decide: Callable[[InstanceRow | None, Order], InstanceRow | BuildRejected],
    transaction: OutboxTransaction,
) -> list[Said]:
    """Follow these orders, each about one instance."""

    def step(order: Order, rows: Mapping[InstanceId, InstanceRow]) -> Sequence[InstanceRow] | BuildRejected:
        after = decide(rows.get(order.instance), order)
        return after if isinstance(after, BuildRejected) else (after,)

    steps = [((ask.message.instance,), partial(step, ask.message)) for ask in asks]
    return await follow_several(asks, steps, transaction)


def instance_order_handlers(
    picture: Picture,
    clock: Callable[[], datetime],
    know_hosts: Callable[[], Awaitable[None]],
    images: RebuildImages,
    limits: ProjectLimits,
    *,
    rebuild_timeout_s: int,
) -> Handlers:
    """Handlers of orders about existing instances. A rebuild without a deadline may take `rebuild_timeout_s`."""

    async def on_deletes(
        asks: Sequence[Received[DeleteInstance]], transaction: OutboxTransaction
    ) -> list[Said]:
        """Delete instances. Answers with each instance as its row shows it then, or with none if its request was never
        seen.
        """
        now, over = clock(), dict[InstanceId, str]()

        def delete(order: DeleteInstance, row: InstanceRow | None) -> InstanceRow | None:
            # Of an instance that is not known it leaves a row, so these have a limit.
            if row is None and (why := limits.over(order.project, 1, now, deletes=True)):
                over[order.instance] = why
                return None
            return after_delete(row, order, now)

        for project, count in Counter(ask.message.project for ask in asks).items():
            await limits.look(project, count, now)
        steps = [Ordered(ask.message.instance, partial(delete, ask.message), ask.by) for ask in asks]
        rows = await take_steps(await transaction.begun(), steps)
        said = await tell_all(rows, asks, transaction)
        for ask in asks:
            if (row := rows.get(ask.message.instance)) is None:
                said += rejected(ask, rejection("project", ask.message.project, over[ask.message.instance]))
                continue
            is_hidden = row.told.request_id == NO_REQUEST or not is_of(row, ask.message.project)
            said.append(Answer(ask, InstancesFound(instances=() if is_hidden else (row.told,))))
        return said

    async def on_rebuilds(
        asks: Sequence[Received[RebuildInstance]], transaction: OutboxTransaction
    ) -> list[Said]:
        await know_hosts()
        image_of = await images.find([ask.message for ask in asks])
        decide = partial(
            rebuilt, now=clock(), timeout_s=rebuild_timeout_s, why_no_work=why_no_work, image_of=image_of
        )
        return await follow(asks, decide, transaction)

    def why_no_work(cell: str, host: str) -> str:
        """Why the host cannot follow an order; empty if it can. A bare-metal node can even while its daemon is away,
        since Ironic does the work.
        """
        return "" if picture.is_node(cell, host) or picture.is_up(cell, host) else f"its host {host} is down"

    return {
        DeleteInstance: on_deletes,
        RebuildInstance: on_rebuilds,
        MendInstance: _on_mends,
        EndMove: partial(_on_ends, picture, clock, know_hosts),
    }


async def _on_mends(asks: Sequence[Received[MendInstance]], transaction: OutboxTransaction) -> list[Said]:
    """Handle orders of an audit to correct the rows of instances. Answers with the rows as they are then."""
    steps = [Ordered(ask.message.instance.id, partial(mended, mend=ask.message), ask.sender) for ask in asks]
    rows = await take_steps(await transaction.begun(), steps)
    return [
        Answer(
            ask,
            InstancesFound(instances=(row.told,) if (row := rows.get(ask.message.instance.id)) else ()),
        )
        for ask in asks
    ]


# Orders to end moves: to confirm them, to bring instances back, or not to wait for room any longer.


async def _on_ends(
    picture: Picture,
    clock: Callable[[], datetime],
    know_hosts: Callable[[], Awaitable[None]],
    asks: Sequence[Received[EndMove]],
    transaction: OutboxTransaction,
) -> list[Said]:
    await know_hosts()
    decide = partial(move_ended, now=clock(), is_up=picture.is_up)
    return await follow(asks, decide, transaction)
