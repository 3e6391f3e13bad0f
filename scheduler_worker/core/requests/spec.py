"""What a request needs, as the choice of a host reads it."""

from msgspec import Struct


class InstanceSpec(Struct, frozen=True):
    """The needs of each of `count` instances. Equal specs are decided in one pass.

    Names of hosts are in lower case. `extra_specs` are those that only plugins read. `project` is set only if the request
    may get a bare-metal node: only nodes are bound to projects, and specs of two projects are decided in two passes.
    `is_for_nodes`: only a node qualifies. `image_properties` are those that a filter reads. `different_hosts` and
    `same_hosts` are the hosts of the instances that the request names to be apart from, or together with; like `hosts`,
    they are names. An empty `same_hosts` is no wish; None: the instances that are named have no host.
    """

    amounts: tuple[tuple[str, int], ...]
    required: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()
    availability_zone: str = ""
    hosts: tuple[str, ...] = ()
    ignore_hosts: tuple[str, ...] = ()
    extra_specs: tuple[tuple[str, str], ...] = ()
    count: int = 1
    project: str = ""
    is_for_nodes: bool = False
    image_properties: tuple[tuple[str, str], ...] = ()
    different_hosts: tuple[str, ...] = ()
    same_hosts: tuple[str, ...] | None = ()
