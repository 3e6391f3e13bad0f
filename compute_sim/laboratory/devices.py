"""Devices of simulated hosts: PCI functions, virtual functions of network cards, and GPUs that are shared."""

import re
from collections.abc import Mapping

from msgspec import Struct

VIRTUAL_FUNCTIONS = "SRIOV_NET_VF"
DIRECT_PORTS = "CUSTOM_VNIC_TYPE_DIRECT"
_NOT_IN_NAMES = re.compile("[^A-Z0-9_]")


class Device(Struct, frozen=True):
    """A device: how much it gives of each class, and its traits."""

    gives: Mapping[str, int]
    traits: frozenset[str] = frozenset()


def pci_function(vendor: str, product: str, *traits: str) -> Device:
    """A function that a guest gets as a whole. Its class is named after the two ids, as in Nova."""
    return Device({_pci_class(vendor, product): 1}, frozenset(traits))


def virtual_functions(count: int, network: str) -> Device:
    """The virtual functions of a network card: each of so many guests gets one."""
    traits = frozenset({f"CUSTOM_PHYSNET_{_in_names(network)}", DIRECT_PORTS})
    return Device({VIRTUAL_FUNCTIONS: count}, traits)


def gpu(kind: str, count: int) -> Device:
    """A GPU that gives so many instances of one type."""
    return Device({"VGPU": count}, frozenset({f"CUSTOM_{_in_names(kind)}"}))


def _pci_class(vendor: str, product: str) -> str:
    return f"CUSTOM_PCI_{vendor.upper()}_{product.upper()}"


def _in_names(name: str) -> str:
    return _NOT_IN_NAMES.sub("_", name.upper())
