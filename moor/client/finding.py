"""Finds instances by the ids that people have: those of instances, or of requests."""

from collections.abc import Iterable
from uuid import UUID

from bus.messages.build import AskInstances, InstanceId, RequestId
from moor.client.bus_client import FOUND_AT_ONCE_MAX, BusClient
from moor.client.following import States


async def found_by_ids(asking: BusClient, ids: Iterable[UUID], project: str) -> tuple[States, list[UUID]]:
    """The instances with these ids; for an id of a request, all its instances. And the ids that are neither.

    Schedulers obey a delete that arrives before its build request. So a mistyped id must not be sent: it would cancel a later
    request with that id.
    """
    wanted = [*dict.fromkeys(ids)]
    known = {each.id: each for each in await asking.instances([*map(InstanceId, wanted)], project)}
    unknown = []
    for id_ in wanted:
        if InstanceId(id_) in known:
            continue
        question = AskInstances(request_id=RequestId(id_), limit=FOUND_AT_ONCE_MAX, project=project)
        pages = asking.pages_of_instances(question)
        of_request = {each.id: each async for page in pages for each in page.instances}
        known |= of_request
        if not of_request:
            unknown.append(id_)
    return known, unknown
