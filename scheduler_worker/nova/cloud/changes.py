"""What Nova's notifications change in what is known of it. Pure.

Notifications come from several processes of Nova, so an older one may come later: of each thing the newest counts, by the time that Nova
gave it. A lost notification is made good by the next reading of the API.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from uuid import UUID

from msgspec import Struct, structs

from scheduler_worker.nova.cloud.answers import ServicesRead
from scheduler_worker.nova.cloud.notifications import (
    AggregateHeard,
    Heard,
    ServiceHeard,
    id_heard,
)
from scheduler_worker.nova.cloud.values import CloudCell, NovaCloud, zoned


class HeardCloud(Struct, frozen=True):
    """A Nova as it was read, with what was heard since then. `heard_at` has the times of what was heard, by ids.

    `doubt` says why all of it should be read again soon; empty if there is no reason.
    """

    cloud: NovaCloud
    heard_at: Mapping[UUID, datetime] = {}
    doubt: str = ""


def hear(known: HeardCloud, heard: Heard) -> HeardCloud:
    """The cloud after this notification; the same if something newer is known, or nothing changed."""
    id_ = id_heard(heard)
    last = known.heard_at.get(id_)
    if last is not None and heard.at <= last:
        return known
    changed = structs.replace(known, heard_at={**known.heard_at, id_: heard.at})
    match heard:
        case ServiceHeard():
            return _hear_service(changed, heard)
        case AggregateHeard():
            return structs.replace(changed, cloud=_hear_aggregate(known.cloud, heard))


def after_read(read: NovaCloud, since: Iterable[Heard]) -> HeardCloud:
    """The cloud as it was read, after the notifications that came since the reading began: it may have missed their changes."""
    known = HeardCloud(read)
    for heard in since:
        known = hear(known, heard)
    return known


def with_services(known: HeardCloud, read: ServicesRead, since: Iterable[Heard]) -> HeardCloud:
    """The cloud after the services alone were read. A service or a node more or less makes it doubtful."""
    cloud = known.cloud
    services = {each.id: each for each in read.services}
    cells = _cells(cloud, {host.lower() for host in read.silent})
    # Of silent cells nothing is told but their names: what they had stays, and is not up.
    hosts = {host.lower() for host in read.silent}
    for id_, service in cloud.services.items():
        if id_ not in services and service.host.lower() in hosts:
            services[id_] = structs.replace(service, is_up=False)
    doubt = known.doubt or (
        "" if services.keys() == cloud.services.keys() else "there are other services than before"
    )
    if services != cloud.services or cells != cloud.cells:
        cloud = structs.replace(cloud, services=services, cells=cells)
    known = structs.replace(known, cloud=cloud, doubt=doubt)
    for heard in since:
        if isinstance(heard, ServiceHeard):
            known = _hear_service(known, heard)
    return known


def _cells(cloud: NovaCloud, silent_hosts: set[str]) -> Mapping[UUID, CloudCell]:
    silent = {node.cell for node in cloud.nodes.values() if node.service.lower() in silent_hosts}
    return {id_: structs.replace(cell, is_silent=id_ in silent) for id_, cell in cloud.cells.items()}


def _hear_service(known: HeardCloud, heard: ServiceHeard) -> HeardCloud:
    cloud, service = known.cloud, heard.service
    before = cloud.services.get(service.id)
    if heard.is_deleted:
        host = service.host.lower()
        left = {id_: each for id_, each in cloud.services.items() if id_ != service.id}
        nodes = {id_: each for id_, each in cloud.nodes.items() if each.service.lower() != host}
        if len(left) == len(cloud.services):
            return known
        return structs.replace(known, cloud=structs.replace(cloud, services=left, nodes=nodes))
    if before is None:
        cloud = structs.replace(cloud, services={**cloud.services, service.id: service})
        return structs.replace(
            known, cloud=cloud, doubt=f"service {service.host} is new, and its nodes are not known"
        )
    now = structs.replace(service, is_up=before.is_up)
    if now == before:
        return known
    return structs.replace(known, cloud=structs.replace(cloud, services={**cloud.services, service.id: now}))


def _hear_aggregate(cloud: NovaCloud, heard: AggregateHeard) -> NovaCloud:
    aggregate = heard.aggregate
    if heard.is_deleted:
        left = {id_: each for id_, each in cloud.aggregates.items() if id_ != aggregate.id}
        if len(left) == len(cloud.aggregates):
            return cloud
        return zoned(structs.replace(cloud, aggregates=left))
    if cloud.aggregates.get(aggregate.id) == aggregate:
        return cloud
    return zoned(structs.replace(cloud, aggregates={**cloud.aggregates, aggregate.id: aggregate}))
