"""Devices of simulated hosts: PCI functions, physical ones with virtual ones among them, and GPUs that are shared."""

import re
from collections.abc import Mapping

from msgspec import Struct

from bus.messages.placement import ONE_CLASS_AT_A_TIME

VIRTUAL_FUNCTIONS = "SRIOV_NET_VF"
DIRECT_PORTS = "CUSTOM_VNIC_TYPE_DIRECT"
_NOT_IN_NAMES = re.compile("[^A-Z0-9_]")


class Device(Struct, frozen=True):
    """A device: how much it gives of each class, and its traits. One of several classes gives one of them at a time."""

    gives: Mapping[str, int]
    traits: frozenset[str] = frozenset()


def pci_function(vendor: str, product: str, *traits: str) -> Device:
    """A function that a guest gets as a whole. Its class is named after the two ids, as in Nova."""
    return Device({_pci_class(vendor, product): 1}, frozenset(traits))


def physical_function(vendor: str, product: str, virtual: int, network: str) -> Device:
    """A network card's function: a guest gets it as a whole, or several guests get one of its virtual functions each."""
    physnet = f"CUSTOM_PHYSNET_{_in_names(network)}"
    return Device(
        {_pci_class(vendor, product): 1, VIRTUAL_FUNCTIONS: virtual},
        frozenset({physnet, DIRECT_PORTS, ONE_CLASS_AT_A_TIME}),
    )


def gpu(**instances: int) -> Device:
    """A GPU that gives so many instances of each type: one of several types gives those of one type at a time."""
    if len(instances) == 1:
        ((kind, count),) = instances.items()
        return Device({"VGPU": count}, frozenset({f"CUSTOM_{_in_names(kind)}"}))
    return Device(
        {f"CUSTOM_VGPU_{_in_names(kind)}": count for kind, count in instances.items()},
        frozenset({ONE_CLASS_AT_A_TIME}),
    )


def _pci_class(vendor: str, product: str) -> str:
    return f"CUSTOM_PCI_{vendor.upper()}_{product.upper()}"


def _in_names(name: str) -> str:
    return _NOT_IN_NAMES.sub("_", name.upper())
