"""The ids of a request's instances: given by the client, or derived from the request's id."""

from hashlib import sha1
from uuid import UUID

from bus.messages.build import BuildInstance, InstanceId, RequestId

# The last 80 bits of a uuid5 are its own, but for those that name its version and its variant; and these two.
_OWN_BITS = (1 << 80) - 1
_DERIVED_BITS = _OWN_BITS & ~(0xF << 76 | 3 << 62)
_UUID5_BITS = 5 << 76 | 2 << 62


def instance_ids_of(build: BuildInstance) -> tuple[InstanceId, ...]:
    if build.instance_ids or build.request_id is None:
        return build.instance_ids
    return tuple([instance_id_of(build.request_id, index) for index in range(build.count)])


def instance_id_of(request: RequestId, index: int) -> InstanceId:
    """Derived, so that a client can compute it, and a replay finds the same instance. Its first 48 bits are the
    request's: if these are a time, as in a uuid7, then rows that are written together lie together in every index.
    """
    # Equal to `uuid5(request, str(index))`, which takes three times as long.
    digest = sha1(request.int.to_bytes(16) + str(index).encode(), usedforsecurity=False).digest()
    own = int.from_bytes(digest[6:16]) & _DERIVED_BITS | _UUID5_BITS
    return InstanceId(UUID(int=request.int & ~_OWN_BITS | own))
