"""The ids of a request's instances: given by the client, or derived from the request's id."""

from uuid import UUID, uuid5

from bus.messages.build import BuildInstance, InstanceId, RequestId

_LAST_80_BITS = (1 << 80) - 1


def instance_ids_of(build: BuildInstance) -> tuple[InstanceId, ...]:
    if build.instance_ids or build.request_id is None:
        return build.instance_ids
    return tuple([instance_id_of(build.request_id, index) for index in range(build.count)])


def instance_id_of(request: RequestId, index: int) -> InstanceId:
    """Derived, so that a client can compute it, and a replay finds the same instance. Its first 48 bits are the
    request's: if these are a time, as in a uuid7, then rows that are written together lie together in every index.
    """
    own = uuid5(request, str(index)).int & _LAST_80_BITS
    return InstanceId(UUID(int=request.int & ~_LAST_80_BITS | own))
