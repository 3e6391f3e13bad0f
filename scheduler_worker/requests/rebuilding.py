"""Rebuilds from stored images: their properties count as those of a boot's image do.

No host is chosen. So the present host is judged by the filters that read what an image asks for, and the order is refused if it
does not qualify. The share stays as it is: an image that asks for other resources is refused, too.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec import structs

from bus.messages.build import BuildInstance, BuildRejected, RebuildInstance
from bus.messages.images import NamedImage
from scheduler_worker.core.choosing.draft import Draft
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.hosts.one_host import OneHost
from scheduler_worker.core.choosing.plugins import Change
from scheduler_worker.core.choosing.refusals.group_reasons import traits_at
from scheduler_worker.core.instances.rebuilds import RebuildImage, image_as_given, refused
from scheduler_worker.core.instances.rows import InstanceRow
from scheduler_worker.core.instances.specs import decoded, encoded, flavor_of, request_of
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.core.requests import InstanceSpec
from scheduler_worker.requests.request_reader import RequestReader
from scheduler_worker.store import NameQuery, SchedulerStore

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
            if {*one.reads} & {*_OF_IMAGES} and Change.USAGE not in one.woken_by
        ]
        reasons = [
            f"{one.name}: {one.reason(host, after)}" for one in judges if not one.passes(hosts, after)[0]
        ]
        traits = traits_at(host)
        reasons += [f"traits: it lacks {each}" for each in after.required if each not in traits]
        reasons += [f"traits: it has {each}" for each in after.forbidden if each in traits]
        return f"its host {row.told.host} cannot run this image ({'; '.join(reasons)})" if reasons else ""
