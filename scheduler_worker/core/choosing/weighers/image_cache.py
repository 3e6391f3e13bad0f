"""A host is better if it has the image of the request cached: it need not download it first."""

from placement_worker.core.candidates.columns import Floats, Ints
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.plugins import Change, Weigher
from scheduler_worker.core.requests.spec import InstanceSpec


class ImageCache(Weigher):
    name = "image_cache"
    minimum = 0.0
    reads = ("image",)
    woken_by = (Change.IMAGES,)

    def weigh(self, hosts: Hosts, spec: InstanceSpec) -> Floats | Ints | None:
        caches = hosts.columns.images
        if not spec.image or not caches.knows(spec.image):
            return None
        return hosts.of(caches.having(spec.image, hosts.columns.rows)).astype("float64")
