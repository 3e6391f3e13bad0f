"""The needs of a request, as the choice of a host reads them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, structs

from engine.candidates.query import UNSUFFIXED, CandidatesQuery, Group, Nearness, Preferred
from engine.flavors import DeviceProfile, Flavor, RequestProblem
from engine.guests import HUGE_PAGES, SMALL_PAGES, GuestShape, is_whole_pages, read_guest
from engine.inventories import CUSTOM, AggregateId, ConsumerId, ServerGroup
from engine.requests.grammar import GROUP_POLICY

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


class Needs(Struct, frozen=True, omit_defaults=True):
    """The fields of a spec that say what providers must have. Equal needs have the same result of a search."""

    amounts: tuple[tuple[str, int], ...]
    required: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()
    preferred: NamedWeights = ()
    groups: tuple[GranularGroup, ...] = ()
    isolates: bool = False
    same_subtree: tuple[tuple[str, ...], ...] = ()
    cells: tuple[str, ...] = ()
    near: tuple[tuple[str, Nearness], ...] = ()

    @property
    def outside_of_groups(self) -> tuple[tuple[str, int], ...]:
        """The amounts that granular groups do not ask for."""
        if not self.groups:
            return self.amounts
        left = dict(self.amounts)
        for group in self.groups:
            for resource, amount in group.amounts:
                left[resource] -= amount
        return tuple([(resource, amount) for resource, amount in left.items() if amount])

    @property
    def prefers_some(self) -> bool:
        """Does the request prefer traits, so that one way to take its amounts may be worth more than another?"""
        return bool(self.preferred) or any(group.preferred for group in self.groups)

    def of_room_alone(self) -> "Needs":
        """These needs without traits. Granular groups that ask for no amounts are left out. So are the `same_subtree`
        conditions that name such a group: without its traits the group could be at the root, and every provider is
        below that.
        """
        if not self.groups:
            return Needs(self.amounts)
        groups = tuple([GranularGroup(group.suffix, group.amounts) for group in self.groups if group.amounts])
        left = {group.suffix for group in groups}
        subtrees = tuple([suffixes for suffixes in self.same_subtree if left.issuperset(suffixes)])
        return Needs(
            self.amounts,
            groups=groups,
            isolates=self.isolates,
            same_subtree=subtrees,
            cells=self.cells,
            near=self.near,
        )

    def one_by_one(self) -> Iterator["Needs"]:
        """Yields the needs outside of groups, and then each group, as needs of their own."""
        outside = self.outside_of_groups
        if outside:
            yield Needs(outside) if self.cells else Needs(outside, self.required, self.forbidden)
        for group in self.groups:
            if group.amounts:
                yield Needs(
                    group.amounts,
                    groups=(GranularGroup(group.suffix, group.amounts, group.required, group.forbidden),),
                )


class InstanceSpec(Needs, frozen=True, omit_defaults=True):
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
    (`as_read` in engine/choosing/plugins.py). `image` is the source of the image that a hypervisor builds from.
    """

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
    preferred_classes: NamedWeights = ()
    member_of: tuple[tuple[AggregateId, ...], ...] = ()
    forbidden_aggregates: tuple[AggregateId, ...] = ()
    server_group: ServerGroup | None = None
    image: str = ""
    # The name of a policy (engine/hosts.py); empty: those of the hosts' aggregates, or the cloud's.
    policy: str = ""
    # Only hosts of this cell; empty: of any.
    cell: str = ""
    # Only hosts in this domain (engine/places.py).
    place: str = ""
    # The member of `server_group` that moves: its rules for domains do not count it where it is.
    mover: ConsumerId | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        """The resource classes that the instance asks for, whatever the amounts."""
        return tuple([resource for resource, _ in self.amounts])

    @property
    def prefers_something(self) -> bool:
        return self.prefers_some or bool(self.preferred_classes)


def of_mover(spec: InstanceSpec, mover: ConsumerId, *, is_alone: bool) -> InstanceSpec:
    """The needs of a member of a server group that leaves its host. If it is the only member, it must not bind itself to that host."""
    group = spec.server_group
    if group is None or not (group.rules or is_alone):
        return spec
    if not group.rules:
        return structs.replace(spec, server_group=None)
    if is_alone and group.policy == "affinity":
        group = structs.replace(group, policy="soft-affinity")
    return structs.replace(spec, server_group=group, mover=mover)


def some_may_be_of_nodes(classes: Iterable[str]) -> bool:
    """Might one of these resource classes be that of bare-metal nodes? All classes of nodes are custom ones."""
    return any(resource.startswith(CUSTOM) for resource in classes)


# The demands of a spec on providers, and the query for candidates that follows from it.


def needs_of(spec: InstanceSpec) -> Needs:
    return Needs(
        spec.amounts,
        spec.required,
        spec.forbidden,
        spec.preferred,
        spec.groups,
        spec.isolates,
        spec.same_subtree,
        spec.cells,
        spec.near,
    )


def query_of(needs: Needs) -> CandidatesQuery:
    groups = [
        _group(group.suffix, group.amounts, group.required, group.forbidden, group.preferred)
        for group in needs.groups
    ]
    outside = needs.outside_of_groups
    # The sizes of a guest with cells are in groups. So what it asks of the whole host is asked of the host's root.
    of_root, of_outside = ((needs.required, needs.forbidden), ((), ()))
    if not needs.cells:
        of_root, of_outside = of_outside, of_root
    if outside:
        groups.insert(0, _group(UNSUFFIXED, outside, *of_outside, needs.preferred))
    return CandidatesQuery(
        groups=tuple(groups),
        group_policy="isolate" if needs.isolates else None,
        same_subtree=needs.same_subtree,
        root_required=of_root[0],
        root_forbidden=of_root[1],
        cells=needs.cells,
        near=needs.near,
    )


def _group(
    suffix: str,
    amounts: tuple[tuple[str, int], ...],
    required: tuple[str, ...],
    forbidden: tuple[str, ...],
    preferred: NamedWeights,
) -> Group:
    return Group(
        suffix=suffix,
        resources=dict(amounts),
        required=tuple((trait,) for trait in required),
        forbidden=forbidden,
        preferred=tuple(Preferred(trait, weight) for trait, weight in preferred),
    )


# Device profiles in flavors. A flavor names one by `accel:device_profile`; when a request is read, its groups become groups of the
# flavor. So the flavor that an instance keeps has them in full, whatever becomes of the stored profile.


PROFILE = "accel:device_profile"
# The suffixes of its groups begin so.
GROUP = "_DEVICE_PROFILE_"


def profile_to_find(flavor: Flavor | None) -> str:
    """The name of the device profile whose groups the flavor does not have yet; empty if there is none to find."""
    if flavor is None or PROFILE not in flavor.extra_specs or any(map(_is_of_profile, flavor.extra_specs)):
        return ""
    return flavor.extra_specs[PROFILE]


def with_profile(flavor: Flavor, profile: DeviceProfile) -> Flavor:
    """The flavor with the groups of the profile that it names."""
    groups = dict(_keys_of(profile))
    policy = {} if GROUP_POLICY in flavor.extra_specs else {GROUP_POLICY: "none"}
    return structs.replace(flavor, extra_specs={**flavor.extra_specs, **policy, **groups})


def without_profile(extra_specs: Mapping[str, str]) -> dict[str, str]:
    """Extra specs without the groups of a profile, and without its name."""
    return {key: value for key, value in extra_specs.items() if key != PROFILE and not _is_of_profile(key)}


def problems_of_profile(flavor: Flavor) -> Iterator[RequestProblem]:
    if PROFILE in flavor.extra_specs and not any(map(_is_of_profile, flavor.extra_specs)):
        name = flavor.extra_specs[PROFILE]
        yield RequestProblem(
            f"flavor.extra_specs.{PROFILE}",
            name,
            "there is no device profile of this name; `moor device-profile list` shows all",
        )


def _keys_of(profile: DeviceProfile) -> Iterator[tuple[str, str]]:
    for number, group in enumerate(profile.groups):
        for resource, amount in group.resources.items():
            yield f"resources{GROUP}{number}:{resource}", str(amount)
        for word, traits in (("required", group.required), ("forbidden", group.forbidden)):
            for trait in traits:
                yield f"trait{GROUP}{number}:{trait}", word


def _is_of_profile(key: str) -> bool:
    return key.startswith((f"resources{GROUP}", f"trait{GROUP}"))


# The sizes of pages that a flavor leaves open: `hw:mem_page_size` is large or any. For each size it is a flavor of its own.


PAGE_SIZE = "hw:mem_page_size"
# In KiB. A host with pages of another size is found by a flavor that names that size.
LARGE_PAGES = (1048576, 2048)


def with_page_sizes(flavor: Flavor, image_properties: Mapping[str, str]) -> Sequence[tuple[str, Flavor]]:
    """The flavor itself if it leaves no size open; else one for each size, the largest first, with words for it."""
    if PAGE_SIZE not in flavor.extra_specs:
        return (("", flavor),)
    shape = read_guest(flavor, image_properties)
    if not isinstance(shape, GuestShape) or shape.page_size not in ("large", "any"):
        return (("", flavor),)
    sizes = [
        str(kib) for kib in LARGE_PAGES if all(is_whole_pages(cell.memory_mb, kib) for cell in shape.cells)
    ]
    if shape.page_size == "any":
        sizes.append("small")
    # No large page divides the memory: the smallest one says so as the problem of the request.
    return [_of_size(flavor, size) for size in sizes or (str(LARGE_PAGES[-1]),)]


def with_size_kept(flavor: Flavor, before: Flavor, image_properties: Mapping[str, str]) -> Flavor:
    """The flavor of a resize. If it leaves the size open, it has the one of the flavor before it; or the smallest, if that
    has another one.
    """
    open_sizes = [each for _, each in with_page_sizes(flavor, image_properties)]
    had = before.extra_specs.get(PAGE_SIZE)
    return next((each for each in open_sizes if each.extra_specs.get(PAGE_SIZE) == had), open_sizes[-1])


def is_memory(resource: str) -> bool:
    return resource == SMALL_PAGES or resource.startswith(HUGE_PAGES)


def _of_size(flavor: Flavor, size: str) -> tuple[str, Flavor]:
    words = " in small pages" if size == "small" else f" in pages of {size} KiB"
    return words, structs.replace(flavor, extra_specs={**flavor.extra_specs, PAGE_SIZE: size})
