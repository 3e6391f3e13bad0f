"""The flavor of an instance whose row an earlier release wrote: such a row has the needs only, without the flavor."""

from msgspec import structs

from bus.messages.build import Flavor
from scheduler_worker.core.requests import InstanceSpec
from scheduler_worker.core.requests.groups_grammar import GROUP_POLICY, PREFERRED, SAME_SUBTREE
from scheduler_worker.core.requests.parts import is_of_flavor
from scheduler_worker.core.requests.spec import NamedWeights


def flavor_with_needs(spec: InstanceSpec) -> Flavor:
    """A flavor with these needs. All disks are in `root_gb`: only their sum is known.

    Traits that the image asks for are in it, too. They stay the same if the request is read again with this flavor,
    since a trait that is required twice is required.
    """
    outside = dict(spec.amounts)
    for group in spec.groups:
        for resource, amount in group.amounts:
            outside[resource] -= amount
    sizes = {"ram_mb": outside.pop("MEMORY_MB", 0), "root_gb": outside.pop("DISK_GB", 0)}
    policy = {}
    if outside.get("PCPU") and not outside.get("VCPU"):
        sizes["vcpus"], policy = outside.pop("PCPU"), {"hw:cpu_policy": "dedicated"}
    else:
        sizes["vcpus"] = outside.pop("VCPU", 0)
    of_flavor = [group for group in spec.groups if is_of_flavor(group.suffix)]
    specs = {
        **_weighed("resources:", spec.preferred_classes),
        **{f"resources:{resource}": str(amount) for resource, amount in outside.items() if amount},
        **_traits("", spec.required, spec.forbidden, spec.preferred),
        **dict(spec.extra_specs),
        **policy,
    }
    for group in of_flavor:
        specs |= {f"resources{group.suffix}:{resource}": str(amount) for resource, amount in group.amounts}
        specs |= _traits(group.suffix, group.required, group.forbidden, group.preferred)
    if spec.isolates or len(of_flavor) > 1:
        specs[GROUP_POLICY] = "isolate" if spec.isolates else "none"
    for suffixes in spec.same_subtree:
        specs[SAME_SUBTREE] = ",".join(suffixes)
    return Flavor(name=spec.flavor, **sizes, extra_specs=specs)


def has_needs(read: InstanceSpec, spec: InstanceSpec) -> bool:
    """Does the spec that was read ask for the same of a host as `spec`, as far as a flavor and an image say it?

    Earlier releases made no cells of a guest: dedicated processors stood outside of groups.
    """
    read = _without_cells(read)
    return all(
        getattr(read, field) == getattr(spec, field)
        for field in (
            *("amounts", "required", "forbidden", "preferred", "preferred_classes"),
            *("groups", "isolates", "same_subtree", "extra_specs", "image_properties"),
        )
    )


def _without_cells(spec: InstanceSpec) -> InstanceSpec:
    left = tuple(group for group in spec.groups if group.suffix not in spec.cells)
    return structs.replace(spec, groups=left, cells=(), near=())


def _traits(
    suffix: str, required: tuple[str, ...], forbidden: tuple[str, ...], preferred: NamedWeights
) -> dict[str, str]:
    return {
        **_weighed(f"trait{suffix}:", preferred),
        **{f"trait{suffix}:{trait}": "forbidden" for trait in forbidden},
        **{f"trait{suffix}:{trait}": "required" for trait in required},
    }


def _weighed(key: str, preferred: NamedWeights) -> dict[str, str]:
    return {f"{key}{name}": f"{PREFERRED}:{weight:.6f}" for name, weight in preferred}
