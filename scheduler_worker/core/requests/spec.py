"""The needs of a request, as the choice of a host reads them."""

from msgspec import Struct

from bus.message import AggregateId
from bus.messages.placement import ServerGroup

# Names with their weights.
Preferences = tuple[tuple[str, float], ...]


class GranularGroup(Struct, frozen=True, omit_defaults=True):
    """The needs that one provider alone must meet. Without `amounts` it only has to be there, and is named by a
    `same_subtree`.
    """

    suffix: str
    amounts: tuple[tuple[str, int], ...] = ()
    required: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()
    preferred: Preferences = ()


class InstanceSpec(Struct, frozen=True, omit_defaults=True):
    """The needs of each of `count` instances. Equal specs are decided in one pass.

    `amounts` are the sums over the whole request. `groups` are the granular groups; the rest of the amounts may come from
    any providers of the tree, and these together must have the traits in `required`. With `isolates`, no two groups get
    one provider. The providers of the groups in each tuple of `same_subtree` are at or below one of them. `preferred` are
    traits, `preferred_classes` resource classes, that a better host has.

    A host is in one aggregate of each tuple in `member_of`, and in none of `forbidden_aggregates`.

    Names of hosts are in lower case. `extra_specs` are those that only plugins read. `project` and
    `flavor`, a name, count only where hosts are for some projects or flavors (core/choosing/reading.py).
    `is_for_nodes`: only a node qualifies. `image_properties` are those that a filter reads. `different_hosts` and
    `same_hosts` are the hosts of the instances that the request names to be apart from, or together with; like `hosts`,
    they are names. An empty `same_hosts` is no wish; None: the instances that are named have no host. The
    instance joins `server_group`. `image` is the source of the image that a hypervisor builds from.
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
    flavor: str = ""
    is_for_nodes: bool = False
    image_properties: tuple[tuple[str, str], ...] = ()
    different_hosts: tuple[str, ...] = ()
    same_hosts: tuple[str, ...] | None = ()
    preferred: Preferences = ()
    preferred_classes: Preferences = ()
    groups: tuple[GranularGroup, ...] = ()
    isolates: bool = False
    same_subtree: tuple[tuple[str, ...], ...] = ()
    member_of: tuple[tuple[AggregateId, ...], ...] = ()
    forbidden_aggregates: tuple[AggregateId, ...] = ()
    server_group: ServerGroup | None = None
    image: str = ""
    # Only hosts of this cell; empty: of any.
    cell: str = ""

    @property
    def classes(self) -> tuple[str, ...]:
        """The resource classes that the instance asks for, whatever the amounts."""
        return tuple([resource for resource, _ in self.amounts])

    @property
    def prefers_something(self) -> bool:
        return bool(self.preferred or self.preferred_classes or any(group.preferred for group in self.groups))
