"""Puts the parts that were read out of a request together to the fields of a spec: amounts, traits and granular groups."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct, structs

from engine.capacity import CUSTOM
from engine.flavors import Flavor, Request, RequestProblem
from engine.guests import is_guest_key
from engine.requests.groups_grammar import (
    PREFERRED,
    AskedTrait,
    DefaultAmount,
    GranularPolicy,
    PreferredClass,
    RequestPart,
    Resource,
    SameSubtree,
    is_of_flavor,
)
from engine.requests.spec import GranularGroup, InstanceSpec, NamedWeights, with_page_sizes

# The alternatives of a request: each flavor that it accepts, the best first, with the spec of an instance of it.
#
# A request has a flavor, and may name further ones in `alternatives`, of any amounts. A flavor may also prefer a custom
# class. If nodes have that class, none of them has room for the flavor itself, since a node has an inventory of its class
# alone. So for each such class an alternative comes before the flavor: one unit of the class, on a bare-metal node.
#
# A flavor whose `hw:mem_page_size` leaves the size of pages open is an alternative for each size, the largest first; `any` has
# small pages as its last one. The instance keeps the size that it got.


# Each alternative is a choice of its own.
ALTERNATIVES_MAX = 8
RESOURCES = "resources:"

ReadFlavor = Callable[[Request], InstanceSpec | RequestProblem]


class Alternative(Struct, frozen=True, array_like=True):
    """A flavor that a request accepts, and what an instance of it needs. `name` is for people."""

    name: str
    flavor: Flavor
    spec: InstanceSpec


def read_alternatives(request: Request, read: ReadFlavor) -> tuple[Alternative, ...] | RequestProblem:
    """Read each flavor that the request accepts by `read`, as if it were the flavor of a request; return the problem
    if one of them is wrong.
    """
    flavors = (request.flavor or Flavor(), *request.alternatives)
    if len(flavors) > ALTERNATIVES_MAX:
        return _too_many(len(flavors))
    found: list[Alternative] = []
    for number, flavor in enumerate(flavors):
        field = f"alternatives[{number - 1}]" if number else "flavor"
        of_pages = with_page_sizes(flavor, request.image_properties)
        for name, of_size in of_pages:
            is_own = of_size is request.flavor
            with_flavor = request if is_own else structs.replace(request, flavor=of_size)
            spec = read(with_flavor)
            if isinstance(spec, RequestProblem):
                return _about(field, spec) if number else spec
            if of_size is of_pages[0][1]:
                found += _on_preferred_nodes(with_flavor, of_size, spec, read)
            found.append(Alternative(f"{flavor.name or field}{name}", of_size, spec))
    if len(found) > ALTERNATIVES_MAX:
        return _too_many(len(found))
    return tuple(found)


def with_specs(
    alternatives: Sequence[Alternative], change: Callable[[InstanceSpec], InstanceSpec]
) -> tuple[Alternative, ...]:
    return tuple([structs.replace(each, spec=change(each.spec)) for each in alternatives])


def _on_preferred_nodes(
    request: Request, flavor: Flavor, spec: InstanceSpec, read: ReadFlavor
) -> Iterator[Alternative]:
    """The flavor on a node of each custom class that it prefers, the one with the highest weight first. The class
    replaces the sizes; all other demands stay.
    """
    for resource, weight in sorted(spec.preferred_classes, key=lambda each: (-each[1], each[0])):
        if weight <= 0 or not resource.startswith(CUSTOM) or resource in spec.classes:
            continue
        others = {
            key: value
            for key, value in flavor.extra_specs.items()
            if not key.startswith(RESOURCES) and not is_guest_key(key)
        }
        on_node = Flavor(name=flavor.name, extra_specs={**others, f"{RESOURCES}{resource}": "1"})
        needs = read(structs.replace(request, flavor=on_node))
        # A request that makes no sense on a node is still a request for the flavor itself.
        if isinstance(needs, InstanceSpec):
            # A device of a hypervisor may have this class, too.
            needs = structs.replace(needs, is_for_nodes=True, image="")
            yield Alternative(f"a node of {resource}", on_node, needs)


def _about(field: str, problem: RequestProblem) -> RequestProblem:
    """The problem of the flavor in this field of the request."""
    if problem.field.partition(".")[0] == "flavor":
        return structs.replace(problem, field=field + problem.field.removeprefix("flavor"))
    return structs.replace(problem, reason=f"with {field}: {problem.reason}")


def _too_many(number: int) -> RequestProblem:
    return RequestProblem(
        "alternatives",
        number,
        f"a request accepts at most {ALTERNATIVES_MAX} flavors: its own, its alternatives, a node of each custom "
        "class that one of these prefers, and one for each size that hw:mem_page_size leaves open",
    )


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


def subtrees_of(parts: Sequence[RequestPart]) -> tuple[tuple[str, ...], ...]:
    return tuple(sorted({part.suffixes for part in parts if isinstance(part, SameSubtree)}))
