"""The needs of a request, as the choice of a host reads them."""

from collections.abc import Iterable

from msgspec import Struct

from bus.message import AggregateId
from bus.messages.placement import ServerGroup
from placement_worker.core.candidates.near_slots import Nearness
from placement_worker.core.vocabulary import CUSTOM

# Names with their weights.
NamedWeights = tuple[tuple[str, float], ...]


class GranularGroup(Struct, frozen=True, omit_defaults=True):
    """The needs that one provider must meet alone. A group without `amounts` takes nothing: it only requires that such
    a provider is there, and `same_subtree` says near which others.
    """

    suffix: str
    amounts: tuple[tuple[str, int], ...] = ()
    required: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()
    preferred: NamedWeights = ()


class InstanceSpec(Struct, frozen=True, omit_defaults=True):
    """What each of `count` instances needs of a host. Requests with equal specs are decided in one pass.

    Amounts: `amounts` are the sums over the whole request. `groups` are the granular groups; all other amounts may come
    from any providers of the tree, which together must have the traits in `required`. With `isolates`, no two groups
    get one provider. The providers of the groups in each tuple of `same_subtree` are at or below one of them.
    `preferred` are traits, `preferred_classes` resource classes, that a better host has.

    A guest with NUMA cells: `cells` are the groups that are its cells, each of which gets a provider of its own, and `near` the
    groups of devices that get one near a cell. `required` and `forbidden` are then traits of the host's root.

    Aggregates: a host is in at least one aggregate of each tuple in `member_of`, and in none of `forbidden_aggregates`.

    Hosts: all names of hosts are in lower case. `different_hosts` and `same_hosts` are the hosts of the instances that
    the request wants to be apart from, or together with. An empty `same_hosts` means no such wish; None means that
    those instances have no host. With `is_for_nodes`, only a bare-metal node qualifies. The instance joins
    `server_group`.

    For plugins: `extra_specs` are those that only plugins read, and `image_properties` those that a filter reads.
    `project` and `flavor`, a name, are given only if some hosts are for certain projects or flavors
    (core/choosing/relevant_fields.py). `image` is the source of the image that a hypervisor builds from.
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
    preferred: NamedWeights = ()
    preferred_classes: NamedWeights = ()
    groups: tuple[GranularGroup, ...] = ()
    isolates: bool = False
    same_subtree: tuple[tuple[str, ...], ...] = ()
    member_of: tuple[tuple[AggregateId, ...], ...] = ()
    forbidden_aggregates: tuple[AggregateId, ...] = ()
    server_group: ServerGroup | None = None
    image: str = ""
    # Only hosts of this cell; empty: of any.
    cell: str = ""
    cells: tuple[str, ...] = ()
    near: tuple[tuple[str, Nearness], ...] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        """The resource classes that the instance asks for, whatever the amounts."""
        return tuple([resource for resource, _ in self.amounts])

    @property
    def prefers_something(self) -> bool:
        return bool(self.preferred or self.preferred_classes or any(group.preferred for group in self.groups))


def some_may_be_of_nodes(classes: Iterable[str]) -> bool:
    """Might one of these resource classes be that of bare-metal nodes? All classes of nodes are custom ones."""
    return any(resource.startswith(CUSTOM) for resource in classes)
