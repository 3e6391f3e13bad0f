"""Leaves out of a spec the fields that no host is chosen by at the moment. Specs that differ in such fields alone are
then decided together.

Each request names a project and a flavor. If these counted always, a batch of many projects would be many passes over
all hosts. They count only if some host is for certain projects or certain flavors.
"""

from msgspec import structs

from scheduler_worker.core.aggregates.metadata import FLAVORS, MULTIPLIER, ONLY_OF_AGGREGATES
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.core.requests.spec import InstanceSpec, some_may_be_of_nodes

# The key of an aggregate's metadata by which its hosts weigh images, whatever the settings say.
IMAGE_CACHE = f"image_cache{MULTIPLIER}"


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
    project = spec.project if aggregates.name_tenants or some_may_be_of_nodes(spec.classes) else ""
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
