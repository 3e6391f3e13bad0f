"""Which specs of a batch are decided together: those that are equal in all by which a host is chosen at the moment.

Each request names a project and a flavor. If these counted always, a batch of many projects would be many passes over
all hosts. They count only if some host is for certain projects or certain flavors.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import structs

from scheduler_worker.core.aggregates.metadata import FLAVORS, MULTIPLIER, ONLY_OF_AGGREGATES
from scheduler_worker.core.choosing.plugins import Plugins
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.core.requests.spec import InstanceSpec, some_may_be_of_nodes

# The key of an aggregate's metadata by which its hosts weigh images, whatever the settings say.
IMAGE_CACHE = f"image_cache{MULTIPLIER}"


def alike(
    picture: Picture, specs: Sequence[InstanceSpec], plugins: Plugins
) -> Mapping[InstanceSpec, Sequence[int]]:
    """The positions of the specs that are decided together, by the spec that stands for them."""
    weighs_images = plugins.weighs_images
    found: dict[InstanceSpec, list[int]] = {}
    # By the whole spec: so only the first of several equal ones is looked at.
    known: dict[InstanceSpec, list[int]] = {}
    for position, spec in enumerate(_without_lone_groups(picture, specs, plugins)):
        if (positions := known.get(spec)) is None:
            read = as_read(spec, picture, plugins.read_by_others, weighs_images=weighs_images)
            positions = known[spec] = found.setdefault(read, [])
        positions.append(position)
    return found


def as_read(
    spec: InstanceSpec,
    picture: Picture,
    read_by_others: frozenset[str] = frozenset(),
    *,
    weighs_images: bool = False,
) -> InstanceSpec:
    """The spec without the fields that no host of this picture is chosen by. A field that a plugin of another package
    reads stays. With `weighs_images`, the image stays, since hosts that have it cached are better.
    """
    aggregates = picture.aggregates
    project = spec.project
    if project and not (aggregates.name_tenants or some_may_be_of_nodes(spec.classes)):
        project = ""
    flavor = spec.flavor if FLAVORS in aggregates.keys else ""
    if "project" in read_by_others:
        project = spec.project
    if "flavor" in read_by_others:
        flavor = spec.flavor
    properties = spec.image_properties
    if properties and "image_properties" not in read_by_others:
        properties = tuple(
            each for each in properties if each[0] not in ONLY_OF_AGGREGATES or each[0] in aggregates.keys
        )
    image = spec.image
    if image and "image" not in read_by_others:
        counts = weighs_images or IMAGE_CACHE in aggregates.keys
        # Most images are on no host, and then are all alike.
        image = image if counts and picture.columns.images.knows(image) else ""
    if (project, flavor, properties, image) == (spec.project, spec.flavor, spec.image_properties, spec.image):
        return spec
    return structs.replace(spec, project=project, flavor=flavor, image_properties=properties, image=image)


def _without_lone_groups(
    picture: Picture, specs: Sequence[InstanceSpec], plugins: Plugins
) -> Sequence[InstanceSpec]:
    """The specs, without a server group that has no members yet and that only one of these instances joins.

    Such a group excludes no host. Without it, specs that differ in their group alone are decided together: a batch may
    have as many groups as instances. Groups stay if a plugin of another package reads them.
    """
    named = Counter([spec.server_group.id for spec in specs if spec.server_group is not None])
    if not named or "server_group" in plugins.read_by_others:
        return specs
    return [
        structs.replace(spec, server_group=None)
        if (group := spec.server_group) is not None
        and named[group.id] == 1
        and not picture.groups.of_group(group.id)
        else spec
        for spec in specs
    ]
