"""The ids of a request's instances: given by the client, or derived from the request's id."""

from hashlib import sha1
from uuid import UUID

from msgspec import convert

from bus.messages.build import BuildInstance, InstanceId, RequestId

_LAST_80_BITS = (1 << 80) - 1
# The bits among these that say which kind of UUID it is, and their values in a uuid5.
_KIND = 0b1111 << 76 | 0b11 << 62
_UUID5 = 5 << 76 | 0b10 << 62


def instance_ids_of(build: BuildInstance) -> tuple[InstanceId, ...]:
    if build.instance_ids or build.request_id is None:
        return build.instance_ids
    return tuple([instance_id_of(build.request_id, index) for index in range(build.count)])


def instance_id_of(request: RequestId, index: int) -> InstanceId:
    """The id of a request's instance with this index. A client can compute it, and each delivery of the request gives
    the same id.

    Its first 48 bits are those of the request's id. If they are a time, as in a uuid7, then rows that are written
    together lie together in every index of the database.
    """
    # The end of uuid5(request, str(index)), whose other half would be made in vain: that takes twice as long.
    digest = sha1(request.bytes + str(index).encode(), usedforsecurity=False).digest()
    own = int.from_bytes(digest[6:16]) & ~_KIND | _UUID5
    # Half as dear as UUID(int=...).
    return InstanceId(convert((request.int & ~_LAST_80_BITS | own).to_bytes(16), UUID))
