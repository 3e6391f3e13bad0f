"""The granular groups of a request: those of its flavor, of the guest's NUMA cells, of ports and volumes; and what is wrong with them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from engine.candidates.query import CELL_TRAIT, Nearness
from engine.flavors import InstanceRequest, PortRequest, RequestProblem, VolumeRequest
from engine.guests import GuestShape, cell_amounts, read_guest
from engine.inventories import CUSTOM, Vocabulary
from engine.requests.grammar import (
    GROUP_POLICY,
    PREFERRED,
    SAME_SUBTREE,
    AskedPolicy,
    AskedTrait,
    CellOfGuest,
    DefaultAmount,
    GranularPolicy,
    NearCells,
    PreferredClass,
    RequestPart,
    Resource,
    SameSubtree,
    is_of_flavor,
    read_grouped,
)
from engine.requests.spec import PAGE_SIZE, GranularGroup, NamedWeights

# Puts the parts that were read out of a request together to the fields of a spec: amounts, traits and granular groups.


# The alternatives of a request: each flavor that it accepts, the best first, with the spec of an instance of it.
#
# A request has a flavor, and may name further ones in `alternatives`, of any amounts. A flavor may also prefer a custom
# class. If nodes have that class, none of them has room for the flavor itself, since a node has an inventory of its class
# alone. So for each such class an alternative comes before the flavor: one unit of the class, on a bare-metal node.
#
# A flavor whose `hw:mem_page_size` leaves the size of pages open is an alternative for each size, the largest first; `any` has
# small pages as its last one. The instance keeps the size that it got.


class Needed(NamedTuple):
    """The amounts that a request asks for, without those that are 0: the sums of the whole request in `total`, and
    those of each granular group, by its suffix. Groups that ask for no amounts have an entry, too.
    """

    total: Mapping[str, int]
    by_suffix: Mapping[str, Mapping[str, int]]

    def outside_of_groups(self) -> bool:
        """Is any amount asked for outside of granular groups?"""
        in_groups: dict[str, int] = {}
        for group in self.by_suffix.values():
            for resource, amount in group.items():
                in_groups[resource] = in_groups.get(resource, 0) + amount
        return in_groups != self.total


def needed_by(parts: Sequence[RequestPart]) -> Needed:
    """The amounts that a request needs. The flavor's sizes count for a class that no extra spec asks for."""
    groups: dict[str, dict[str, int]] = {}
    whole: dict[str, int] = {}
    for part in parts:
        if isinstance(part, Resource) and not part.suffix:
            whole[part.name] = part.amount
        elif isinstance(part, Resource | AskedTrait) and part.suffix:
            group = groups.setdefault(part.suffix, {})
            if isinstance(part, Resource) and part.amount:
                group[part.name] = part.amount
    # The amounts of a port or a volume come on top of the flavor's sizes.
    asked = {resource for suffix, group in groups.items() if is_of_flavor(suffix) for resource in group}
    # Dedicated processors (PCPU) replace the flavor's shared ones.
    replaced = {"VCPU"} if whole.get("PCPU") or "PCPU" in asked else set()
    sizes = {
        part.resource: part.amount
        for part in parts
        if isinstance(part, DefaultAmount) and part.resource not in asked | replaced
    }
    total = {resource: amount for resource, amount in (sizes | whole).items() if amount}
    for group in groups.values():
        for resource, amount in group.items():
            total[resource] = total.get(resource, 0) + amount
    return Needed(total, groups)


def traits_that_are(word: str, parts: Sequence[RequestPart], suffix: str = "") -> tuple[str, ...]:
    return tuple(
        sorted(
            {
                part.name
                for part in parts
                if isinstance(part, AskedTrait) and part.word == word and part.suffix == suffix
            }
        )
    )


def preferred_traits_of(parts: Sequence[RequestPart], suffix: str = "") -> NamedWeights:
    weights: dict[str, float] = {}
    for part in parts:
        if isinstance(part, AskedTrait) and part.word == PREFERRED and part.suffix == suffix:
            # The flavor and the image may both prefer a trait.
            weights[part.name] = weights.get(part.name, 0.0) + part.weight
    return tuple(sorted(weights.items()))


def preferred_classes_of(parts: Sequence[RequestPart]) -> NamedWeights:
    return tuple(sorted((part.name, part.weight) for part in parts if isinstance(part, PreferredClass)))


def groups_of(parts: Sequence[RequestPart], needed: Needed) -> tuple[GranularGroup, ...]:
    return tuple(
        [
            GranularGroup(
                suffix=suffix,
                amounts=tuple(sorted(amounts.items())),
                required=traits_that_are("required", parts, suffix),
                forbidden=traits_that_are("forbidden", parts, suffix),
                preferred=preferred_traits_of(parts, suffix),
            )
            for suffix, amounts in sorted(needed.by_suffix.items())
        ]
    )


def policy_of(parts: Sequence[RequestPart]) -> str:
    """The request's group policy; empty if it has none."""
    return next((part.policy for part in parts if isinstance(part, GranularPolicy)), "")


def weighed_by(parts: Sequence[RequestPart]) -> str:
    """The policy by which the request wants hosts weighed; empty if it names none."""
    return next((part.policy for part in parts if isinstance(part, AskedPolicy)), "")


def subtrees_of(parts: Sequence[RequestPart]) -> tuple[tuple[str, ...], ...]:
    return tuple(sorted({part.suffixes for part in parts if isinstance(part, SameSubtree)}))


# A search takes about the square of this number of steps for each tree.
GROUPS_MAX = 32


def problems_of_groups(parts: Sequence[RequestPart], needed: Needed) -> Iterator[RequestProblem]:
    suffixes = sorted(needed.by_suffix)
    if len(suffixes) > GROUPS_MAX:
        yield RequestProblem(
            "flavor.extra_specs", len(suffixes), f"at most {GROUPS_MAX} granular groups can be asked for"
        )
    taking = [suffix for suffix in suffixes if needed.by_suffix[suffix]]
    of_flavor = [suffix for suffix in taking if is_of_flavor(suffix)]
    if len(of_flavor) > 1 and not policy_of(parts):
        reason = (
            f"there is none, and granular groups {', '.join(of_flavor)} need one: none (they may share a provider) "
            "or isolate (each has its own)"
        )
        yield RequestProblem(f"flavor.extra_specs.{GROUP_POLICY}", "", reason)
    for part in parts:
        if isinstance(part, SameSubtree):
            yield from _problems_of_subtree(part, suffixes)
    together = {suffix for subtree in subtrees_of(parts) for suffix in subtree}
    for suffix in ("", *suffixes):
        yield from _problems_of_traits(parts, suffix)
    has_cells = any(isinstance(part, CellOfGuest) for part in parts)
    if suffixes and not needed.outside_of_groups():
        yield from _problems_of_nothing_outside(parts, has_cells=has_cells)
    for suffix in suffixes:
        if suffix not in taking and is_of_flavor(suffix):
            yield from _problems_without_amounts(parts, suffix, is_together=suffix in together)


def _problems_of_subtree(part: SameSubtree, suffixes: Sequence[str]) -> Iterator[RequestProblem]:
    for suffix in part.suffixes:
        if suffix not in suffixes:
            reason = (
                f"{suffix!r} is the suffix of no granular group; there are {', '.join(suffixes) or 'none'}"
            )
            yield RequestProblem(part.field, ",".join(part.suffixes), reason)


def _problems_of_traits(parts: Sequence[RequestPart], suffix: str) -> Iterator[RequestProblem]:
    required = traits_that_are("required", parts, suffix)
    for trait in traits_that_are("forbidden", parts, suffix):
        if trait in required:
            field = next(
                part.field
                for part in parts
                if isinstance(part, AskedTrait) and part.name == trait and part.suffix == suffix
            )
            yield RequestProblem(field, trait, "is both required and forbidden, which no host can be")


def _problems_of_nothing_outside(
    parts: Sequence[RequestPart], *, has_cells: bool
) -> Iterator[RequestProblem]:
    for part in parts:
        # What a guest with cells requires of the whole host is asked of the host's root.
        of_root = has_cells and isinstance(part, AskedTrait) and part.word in ("required", "forbidden")
        if isinstance(part, AskedTrait) and not part.suffix and not of_root:
            reason = (
                "it is about the resources outside of granular groups, and the request has none; "
                f"name the group that it is about, as in traitN:{part.name}"
            )
            yield RequestProblem(part.field, part.word, reason)


def _problems_without_amounts(
    parts: Sequence[RequestPart], suffix: str, *, is_together: bool
) -> Iterator[RequestProblem]:
    """The problems of a granular group that asks for no amounts. Such a group only requires a provider with certain
    traits, and `same_subtree` says near the providers of which other groups.
    """
    part = next(part for part in parts if isinstance(part, Resource | AskedTrait) and part.suffix == suffix)
    kind, word = ("resources", "0") if isinstance(part, Resource) else ("trait", part.word)
    field = f"flavor.extra_specs.{kind}{suffix}:{part.name}"
    if not traits_that_are("required", parts, suffix):
        yield RequestProblem(
            field, word, f"granular group {suffix} asks for no resources and requires no trait"
        )
    elif not is_together:
        reason = f"granular group {suffix} asks for no resources, so {SAME_SUBTREE} must name it beside other groups"
        yield RequestProblem(field, word, reason)


# The shape of the guest, as groups of the request: each of its NUMA cells is a granular group, and so one provider gives all
# that the cell has: processors, and memory in small or huge pages. No two cells get the same provider.
#
# The devices of such a guest, which the flavor's groups and ports ask for, get providers near its cells, as the policy says.


HYPERTHREADS = "HW_CPU_HYPERTHREADING"
TRAIT_WORDS = {"isolate": "forbidden", "require": "required"}
# Custom classes are devices, too; of ports those with a bandwidth are none.
DEVICE_CLASSES = frozenset({"FPGA", "PCI_DEVICE", "PGPU", "SRIOV_NET_VF", "VGPU", "VGPU_DISPLAY_HEAD"})
# Providers tell no sockets. A device of the same cell is on the same socket.
NEARNESS: dict[str, Nearness] = {
    "legacy": "legacy",
    "required": "required",
    "preferred": "preferred",
    "socket": "required",
}


def guest_groups(request: InstanceRequest, parts: Sequence[RequestPart]) -> Iterator[RequestPart]:
    """The parts that follow from the guest's shape. `parts` are all others of the request."""
    flavor = request.flavor
    if flavor is None:
        return
    shape = read_guest(flavor, request.image_properties)
    if not isinstance(shape, GuestShape):
        yield from shape
        shape = GuestShape()
    if shape.thread_policy in TRAIT_WORDS:
        yield AskedTrait(
            "", HYPERTHREADS, TRAIT_WORDS[shape.thread_policy], "flavor.extra_specs.hw:cpu_thread_policy"
        )
    if shape.page_size in ("large", "any"):
        yield RequestProblem(
            f"flavor.extra_specs.{PAGE_SIZE}", shape.page_size, "each size is an alternative of its own"
        )
    if not shape.cells:
        yield DefaultAmount("PCPU" if shape.cpu_policy == "dedicated" else "VCPU", flavor.vcpus)
        yield DefaultAmount("MEMORY_MB", flavor.ram_mb)
        return
    yield from _cells_of_guest(shape)
    policies = {f"port {port.id}": port.numa_affinity_policy for port in request.port_requests}
    for suffix in devices_of(parts):
        yield NearCells(suffix, NEARNESS[policies.get(suffix, "") or shape.pci_affinity])


def _cells_of_guest(shape: GuestShape) -> Iterator[RequestPart]:
    for number, amounts in enumerate(cell_amounts(shape, shape.page_kib)):
        suffix = f"guest cell {number}"
        yield CellOfGuest(suffix)
        for resource, amount in amounts.items():
            yield Resource(suffix, resource, amount)
        if len(shape.cells) > 1:
            yield AskedTrait(suffix, CELL_TRAIT, "required", "flavor.extra_specs.hw:numa_nodes")


def devices_of(parts: Sequence[RequestPart]) -> list[str]:
    """The suffixes of the groups that ask for classes of devices alone."""
    classes: dict[str, set[str]] = {}
    for part in parts:
        if isinstance(part, Resource) and part.amount and part.suffix.partition(" ")[0] not in ("", "volume"):
            classes.setdefault(part.suffix, set()).add(part.name)
    return [
        suffix
        for suffix, names in classes.items()
        if all(name in DEVICE_CLASSES or name.startswith(CUSTOM) for name in names)
    ]


# Ports and volumes that need resources of their own: each is a granular group.
#
# A physical network and a kind of port are traits of the provider that the port is on, by the names that Neutron's agents report.


PHYSNET, VNIC_TYPE = "CUSTOM_PHYSNET_", "CUSTOM_VNIC_TYPE_"
TRAIT_MAX = 255

_NOT_IN_TRAITS = re.compile(r"[^A-Z0-9_]+", re.ASCII)


def attached_groups(request: InstanceRequest, vocabulary: Vocabulary) -> Iterator[RequestPart]:
    kinds: tuple[tuple[str, str, Sequence[PortRequest | VolumeRequest]], ...] = (
        ("port_requests", "port", request.port_requests),
        ("volume_requests", "volume", request.volume_requests),
    )
    for field, kind, asked in kinds:
        if asked and request.count > 1:
            reason = f"a {kind} is one instance's, and {request.count} are asked"
            yield RequestProblem(field, ", ".join(each.id for each in asked), reason)
        seen = set()
        for number, each in enumerate(asked):
            at = f"{field}[{number}]"
            if each.id in seen or not each.id:
                yield RequestProblem(f"{at}.id", each.id, f"each {kind} has an id, and is named once")
            seen.add(each.id)
            if not each.resources:
                yield RequestProblem(
                    f"{at}.resources", "", f"there are none: a {kind} without any needs no request"
                )
            yield from _group(each, at, f"{kind} {each.id}", vocabulary)


def _group(
    each: PortRequest | VolumeRequest, at: str, suffix: str, vocabulary: Vocabulary
) -> Iterator[RequestPart]:
    for resource, amount in each.resources.items():
        part = read_grouped(f"{at}.resources.{resource}", f"resources:{resource}", str(amount), vocabulary)
        yield _in_group(part, suffix)
    for word, traits in (("required", each.required), ("forbidden", each.forbidden)):
        for trait in traits:
            yield _in_group(read_grouped(f"{at}.{word}", f"trait:{trait}", word, vocabulary), suffix)
    if isinstance(each, PortRequest):
        for field, prefix, name in (
            ("physical_network", PHYSNET, each.physical_network),
            ("vnic_type", VNIC_TYPE, each.vnic_type),
        ):
            if name:
                yield _trait_for(f"{at}.{field}", prefix, name, suffix)


def _in_group(part: RequestPart | None, suffix: str) -> RequestPart:
    assert isinstance(part, Resource | AskedTrait | RequestProblem), "these keys are about amounts and traits"
    return part if isinstance(part, RequestProblem) else part._replace(suffix=suffix)


def _trait_for(field: str, prefix: str, name: str, suffix: str) -> AskedTrait | RequestProblem:
    trait = prefix + _NOT_IN_TRAITS.sub("_", name.upper())
    if len(trait) > TRAIT_MAX:
        return RequestProblem(field, name, f"its trait {CUSTOM}... has more than {TRAIT_MAX} characters")
    return AskedTrait(suffix, trait, "required", field)
