"""The server group that a request names, as it was created."""

from bus.messages.build import JoinedGroup
from bus.messages.placement import ServerGroup


def joined_group(named: JoinedGroup, known: ServerGroup | None) -> ServerGroup | str:
    """The group; or why the request cannot join it. `known` is the group of this id that the request's project may name."""
    if known is None:
        return f"group.id is {named.id}: there is no such server group, or it is another project's: create it first"
    if named.policy not in (None, known.policy):
        return f"group.policy is {named.policy!r}: the group's is {known.policy!r}"
    if named.max_per_host not in (None, known.max_per_host):
        return f"group.max_per_host is {named.max_per_host}: the group's is {known.max_per_host}"
    return known
