"""What a request needs, as the choice of a host reads it."""

from msgspec import Struct


class InstanceSpec(Struct, frozen=True):
    """The needs of each of `count` instances. Equal specs are decided in one pass.

    Names of hosts are in lower case. `extra_specs` are those that only plugins read. `project` is set only if the request
    may get a bare-metal node: only nodes are bound to projects, and specs of two projects are decided in two passes.
    `is_for_nodes`: only a node qualifies.
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
