"""The instances and the server groups that build requests name: they are read from the store, once, when the request is
read.

Of instances, to be apart from them or together with them, the hosts count. An instance that gets its host later, or moves,
is not followed: server groups are for that.

If there is no such server group, the request is accepted all the same, and its instances end in error. It is not rejected,
since a request may be delivered once more after its group was deleted, and must then get the same answer.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import structs

from bus.message import GroupId
from bus.messages.build import BuildInstance, BuildRejected, InstanceId, JoinedGroup
from bus.messages.hosts import host_in_cell
from bus.messages.placement import ServerGroup
from scheduler_worker.core.instances.rows import DELETED, InstanceRow
from scheduler_worker.requests.answering import rejection
from scheduler_worker.requests.request_reader import ValidRequest
from scheduler_worker.store import GroupQuery, InstanceQuery, KnownGroup, SchedulerStore


async def with_neighbours(
    store: SchedulerStore, requests: Sequence[ValidRequest]
) -> tuple[list[ValidRequest], list[tuple[ValidRequest, BuildRejected]]]:
    """The requests with the names of these hosts in their specs; and those that name an instance which their project does not
    have, with the reason.
    """
    builds = [request.ask.message for request in requests]
    named = {each for build in builds for each in (*build.different_host, *build.same_host)}
    if not named:
        return list(requests), []
    ids = tuple(sorted(named))
    rows = {row.id: row for row in await store.instances(InstanceQuery(instances=ids, limit=len(ids)))}
    known: list[ValidRequest] = []
    unknown: list[tuple[ValidRequest, BuildRejected]] = []
    for request in requests:
        why = next(_problems_of(request.ask.message, rows), None)
        if why is None:
            known.append(_with_hosts(request, rows))
        else:
            unknown.append((request, why))
    return known, unknown


def _problems_of(build: BuildInstance, rows: Mapping[InstanceId, InstanceRow]) -> Iterator[BuildRejected]:
    for field, ids in (("different_host", build.different_host), ("same_host", build.same_host)):
        for number, id_ in enumerate(ids):
            row = rows.get(id_)
            if row is None or (build.project and row.told.project != build.project):
                whose = f" of project {build.project}" if build.project else ""
                yield rejection(
                    f"{field}[{number}]", id_, f"no instance{whose} has this id", build.request_id
                )


def _with_hosts(request: ValidRequest, rows: Mapping[InstanceId, InstanceRow]) -> ValidRequest:
    build = request.ask.message
    beside = _hosts_of(build.same_host, rows)
    apart = _hosts_of(build.different_host, rows)
    together = beside if beside or not build.same_host else None
    return request.with_specs(lambda spec: structs.replace(spec, different_hosts=apart, same_hosts=together))


def _hosts_of(ids: Sequence[InstanceId], rows: Mapping[InstanceId, InstanceRow]) -> tuple[str, ...]:
    told = [rows[id_].told for id_ in ids]
    there = [each for each in told if each.host and each.state != DELETED]
    # With their cells: a host of another cell may have the same name.
    return tuple(sorted({host_in_cell(each.cell, each.host).lower() for each in there}))


# Server groups


async def group_of(store: SchedulerStore, build: BuildInstance, named: JoinedGroup) -> ServerGroup | str:
    """The group that a request names; or why the request cannot join it."""
    found = await store.groups(GroupQuery(ids=(named.id,)))
    return _joined(build, named, found[0] if found else None)


async def with_groups(store: SchedulerStore, requests: Sequence[ValidRequest]) -> list[ValidRequest]:
    """The requests, each with the group that it names, or with the reason why it cannot join it."""
    ids = {group.id for each in requests if (group := each.ask.message.group) is not None}
    if not ids:
        return list(requests)
    known = {each.definition.id: each for each in await store.groups(GroupQuery(ids=tuple(sorted(ids))))}
    return [_with_group(each, known) for each in requests]


def _with_group(request: ValidRequest, known: dict[GroupId, KnownGroup]) -> ValidRequest:
    build = request.ask.message
    if build.group is None:
        return request
    joined = _joined(build, build.group, known.get(build.group.id))
    if isinstance(joined, str):
        return structs.replace(request, unjoined=joined)
    return request.with_specs(lambda spec: structs.replace(spec, server_group=joined))


def _joined(build: BuildInstance, named: JoinedGroup, group: KnownGroup | None) -> ServerGroup | str:
    if group is None or group.project not in ("", build.project):
        return f"group.id is {named.id}: there is no such server group, or it is another project's: create it first"
    definition = group.definition
    if named.policy not in (None, definition.policy):
        return f"group.policy is {named.policy!r}: the group's is {definition.policy!r}"
    if named.max_per_host not in (None, definition.max_per_host):
        return f"group.max_per_host is {named.max_per_host}: the group's is {definition.max_per_host}"
    return definition
