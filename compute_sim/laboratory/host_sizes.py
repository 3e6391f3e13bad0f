"""Sizes of simulated hosts, as `--host-size` and MOOR_COMPUTE_HOST_SIZE name them: what differs from the usual size."""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_type_hints

import msgspec
from msgspec import Meta, structs

from bus.messages.placement import INTEGER_MAX, Ratio
from compute_sim.laboratory.devices import Device, gpu, pci_function, virtual_functions
from compute_sim.laboratory.hosts import HostSize, in_cells

# A size with some of everything: laboratory/hosts.py says what.
CELLS = "cells"
FORM = "cells or NAME=VALUE,... such as vcpus=64,ram_mb=262144,numa_nodes=2,pcpus=16,pages=2048:8192,device=vf:8:net0"
NUMA_NODES_MAX, DEVICES_MAX = 64, 256
# The sizes of the pages that processors have, in KiB.
_PAGES = re.compile(r"(?P<kib>[1-9][0-9]{0,7}):(?P<mb>[1-9][0-9]{0,9})", re.ASCII)
_DEVICES: Mapping[str, tuple[re.Pattern[str], Callable[..., Device]]] = {
    "pci:VENDOR:PRODUCT": (re.compile(r"pci:([0-9a-fA-F]{4}):([0-9a-fA-F]{4})"), pci_function),
    "vf:COUNT:NETWORK": (
        re.compile(r"vf:([1-9][0-9]{0,2}):([\w-]{1,100})", re.ASCII),
        lambda count, network: virtual_functions(int(count), network),
    ),
    "gpu:TYPE:COUNT": (
        re.compile(r"gpu:([\w-]{1,100}):([1-9][0-9]{0,3})", re.ASCII),
        lambda kind, count: gpu(kind, int(count)),
    ),
}
_NUMBER_TYPES = {int: Annotated[int, Meta(ge=0, le=INTEGER_MAX)], float: Ratio}
_NUMBERS = {
    name: _NUMBER_TYPES[kind] for name, kind in get_type_hints(HostSize).items() if kind in _NUMBER_TYPES
}


def read_host_size(text: str) -> HostSize:
    """The size that this text names; the usual one for an empty text."""
    size, named = HostSize(), set[str]()
    for entry in filter(None, text.split(",")):
        name, equals, value = entry.partition("=")
        if entry.strip() == CELLS:
            size = in_cells(size)
            continue
        if not equals:
            raise ValueError(f"host_size has {entry!r}, must be {FORM}")
        name = name.strip()
        if name in named:
            raise ValueError(f"host_size has {name} twice: each number may be there once")
        if name in _NUMBERS:
            named.add(name)
        size = structs.replace(size, **_change(size, name, value.strip()))
    if size.numa_nodes > NUMA_NODES_MAX:
        raise ValueError(f"host_size has numa_nodes={size.numa_nodes}, must be 0 to {NUMA_NODES_MAX}")
    if len(size.devices) > DEVICES_MAX:
        raise ValueError(f"host_size has {len(size.devices)} devices, must be at most {DEVICES_MAX}")
    return size


def _change(size: HostSize, name: str, value: str) -> Mapping[str, Any]:
    match name:
        case "pages":
            return {"pages": (*size.pages, _pages(size, value))}
        case "device":
            return {"devices": (*size.devices, _device(value))}
        case _ if name in _NUMBERS:
            return {name: _number(name, value)}
    known = ", ".join(sorted({*_NUMBERS, "pages", "device"}))
    raise ValueError(f"host_size has {name!r}, must be one of {known}")


def _number(name: str, value: str) -> float:
    try:
        number: float = msgspec.convert(value, _NUMBERS[name], strict=False)
    except msgspec.ValidationError as wrong:
        raise ValueError(f"host_size has {name}={value!r}: {wrong}") from wrong
    return number


def _pages(size: HostSize, value: str) -> tuple[int, int]:
    found = _PAGES.fullmatch(value)
    if found is None:
        raise ValueError(f"host_size has pages={value!r}, must be KIB:MB such as 2048:8192")
    kib, mb = int(found["kib"]), int(found["mb"])
    if any(kib == known for known, _ in size.pages):
        raise ValueError(f"host_size has pages of {kib} KiB twice: each size may be there once")
    if mb * 1024 % kib:
        raise ValueError(f"host_size has pages={value}: {mb} MB are no whole number of pages of {kib} KiB")
    return kib, mb


def _device(value: str) -> Device:
    for form, make in _DEVICES.values():
        if found := form.fullmatch(value):
            return make(*found.groups())
    raise ValueError(f"host_size has device={value!r}, must be {' or '.join(_DEVICES)}")
