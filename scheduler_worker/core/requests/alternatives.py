"""The alternatives of a request: each flavor that it accepts, the best first, with the spec of an instance of it.

A request has a flavor, and may name further ones in `alternatives`, of any amounts. A flavor may also prefer a custom
class. If nodes have that class, none of them has room for the flavor itself, since a node has an inventory of its class
alone. So for each such class an alternative comes before the flavor: one unit of the class, on a bare-metal node.

A flavor whose `hw:mem_page_size` leaves the size of pages open is an alternative for each size, the largest first; `any` has
small pages as its last one. The instance keeps the size that it got.
"""

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct, structs

from bus.guests import is_guest_key
from bus.messages.build import BuildInstance, BuildRejected, Flavor
from placement_worker.core.vocabulary import CUSTOM
from scheduler_worker.core.requests.page_sizes import with_page_sizes
from scheduler_worker.core.requests.spec import InstanceSpec

# Each alternative is a choice of its own.
ALTERNATIVES_MAX = 8
RESOURCES = "resources:"

ReadFlavor = Callable[[BuildInstance], InstanceSpec | BuildRejected]


class Alternative(Struct, frozen=True, array_like=True):
    """A flavor that a request accepts, and what an instance of it needs. `name` is for people."""

    name: str
    flavor: Flavor
    spec: InstanceSpec


def read_alternatives(build: BuildInstance, read: ReadFlavor) -> tuple[Alternative, ...] | BuildRejected:
    """Read each flavor that the request accepts by `read`, as if it were the flavor of a request; return the rejection
    if one of them is wrong.
    """
    flavors = (build.flavor or Flavor(), *build.alternatives)
    if len(flavors) > ALTERNATIVES_MAX:
        return _too_many(build, len(flavors))
    found: list[Alternative] = []
    for number, flavor in enumerate(flavors):
        field = f"alternatives[{number - 1}]" if number else "flavor"
        of_pages = with_page_sizes(flavor, build.image_properties)
        for name, of_size in of_pages:
            is_own = of_size is build.flavor
            with_flavor = build if is_own else structs.replace(build, flavor=of_size)
            spec = read(with_flavor)
            if isinstance(spec, BuildRejected):
                return _about(field, spec) if number else spec
            if of_size is of_pages[0][1]:
                found += _on_preferred_nodes(with_flavor, of_size, spec, read)
            found.append(Alternative(f"{flavor.name or field}{name}", of_size, spec))
    if len(found) > ALTERNATIVES_MAX:
        return _too_many(build, len(found))
    return tuple(found)


def with_specs(
    alternatives: Sequence[Alternative], change: Callable[[InstanceSpec], InstanceSpec]
) -> tuple[Alternative, ...]:
    return tuple([structs.replace(each, spec=change(each.spec)) for each in alternatives])


def _on_preferred_nodes(
    build: BuildInstance, flavor: Flavor, spec: InstanceSpec, read: ReadFlavor
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
        needs = read(structs.replace(build, flavor=on_node))
        # A request that makes no sense on a node is still a request for the flavor itself.
        if isinstance(needs, InstanceSpec):
            # A device of a hypervisor may have this class, too.
            needs = structs.replace(needs, is_for_nodes=True, image="")
            yield Alternative(f"a node of {resource}", on_node, needs)


def _about(field: str, rejected: BuildRejected) -> BuildRejected:
    """The rejection of the flavor in this field of the request."""
    if rejected.field.partition(".")[0] == "flavor":
        return structs.replace(rejected, field=field + rejected.field.removeprefix("flavor"))
    return structs.replace(rejected, reason=f"with {field}: {rejected.reason}")


def _too_many(build: BuildInstance, number: int) -> BuildRejected:
    return BuildRejected(
        request_id=build.request_id,
        field="alternatives",
        value=str(number),
        reason=f"a request accepts at most {ALTERNATIVES_MAX} flavors: its own, its alternatives, a node of each custom "
        "class that one of these prefers, and one for each size that hw:mem_page_size leaves open",
    )
