"""The fields of a spec that matter now: specs that differ in others alone are decided together.

Each request names a project and a flavor. If these counted always, a batch of many projects would be many passes over all
hosts. They count only where a host is for some projects or some flavors.
"""

from msgspec import structs

from placement_worker.core.vocabulary import CUSTOM
from scheduler_worker.core.aggregates.metadata import FLAVORS
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.core.requests import InstanceSpec


def as_read(
    spec: InstanceSpec, picture: Picture, read_by_others: frozenset[str] = frozenset()
) -> InstanceSpec:
    """The spec without what no host of this picture is chosen by; with what plugins of other packages read."""
    aggregates = picture.aggregates
    project = spec.project if aggregates.name_tenants or _may_get_a_node(spec) else ""
    flavor = spec.flavor if FLAVORS in aggregates.keys else ""
    if "project" in read_by_others:
        project = spec.project
    if "flavor" in read_by_others:
        flavor = spec.flavor
    if (project, flavor) == (spec.project, spec.flavor):
        return spec
    return structs.replace(spec, project=project, flavor=flavor)


def _may_get_a_node(spec: InstanceSpec) -> bool:
    """Nodes are bound to projects. All resource classes of nodes are custom ones."""
    return any(resource.startswith(CUSTOM) for resource, _ in spec.amounts)
