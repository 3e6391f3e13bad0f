"""A host with more free PCI devices is better for a request that asks for such devices. For any other request it is
worse, so that its devices stay free.
"""

import numpy as np

from placement_worker.core.candidates.columns import Floats, Ints
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.plugins import Change, Weigher
from scheduler_worker.core.requests.spec import InstanceSpec

_CLASSES = ("PCI_DEVICE", "SRIOV_NET_VF")
_CUSTOM = "CUSTOM_PCI_"


def _is_pci(resource: str) -> bool:
    return resource in _CLASSES or resource.startswith(_CUSTOM)


class Pci(Weigher):
    name = "pci"
    reads = ("classes",)
    woken_by = (Change.PROVIDERS, Change.USAGE)

    def weigh(self, hosts: Hosts, spec: InstanceSpec) -> Floats | Ints | None:
        classes = [resource for resource in sorted(hosts.columns.stocks) if _is_pci(resource)]
        if not classes:
            return None
        free, *others = [np.maximum(hosts.free(resource), 0) for resource in classes]
        for other in others:
            free += other
        return free if any(_is_pci(resource) for resource in spec.classes) else -free
