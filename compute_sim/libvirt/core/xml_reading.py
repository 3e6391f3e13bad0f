"""Reads what libvirt writes: each function says what is missing, and in what."""

from uuid import UUID
from xml.etree.ElementTree import Element, ParseError, fromstring

from compute_sim.libvirt.core.cpu_ranges import read_cpus

# libvirt's units of memory, in KiB. Without a unit it means KiB in most places.
_KIB = {
    "b": 1 / 1024,
    "bytes": 1 / 1024,
    "KB": 1000 / 1024,
    "k": 1,
    "KiB": 1,
    "MB": 1_000_000 / 1024,
    "M": 1024,
    "MiB": 1024,
    "GB": 1_000_000_000 / 1024,
    "G": 1024**2,
    "GiB": 1024**2,
    "TB": 1_000_000_000_000 / 1024,
    "T": 1024**3,
    "TiB": 1024**3,
}


class BadXmlError(ValueError):
    """libvirt's description is no XML, or has not what it must have."""


def read_xml(text: str, root: str) -> Element:
    """The element at the top of this text, which must be called `root`."""
    try:
        element = fromstring(text)  # noqa: S314 - libvirt wrote it, on this machine
    except ParseError as problem:
        raise BadXmlError(f"libvirt's <{root}> is no XML: {problem}; it begins {text[:60]!r}") from None
    if element.tag != root:
        raise BadXmlError(f"libvirt's XML is a <{element.tag}>, must be a <{root}>")
    return element


def number_in(text: str | None, of: Element, what: str) -> int:
    """An integer, written in decimal or as 0x..."""
    try:
        written = (text or "").strip()
        return int(written, 16 if written.startswith("0x") else 10)
    except ValueError:
        raise BadXmlError(f"<{of.tag}> has {what} {text!r}, must be a number") from None


def uuid_in(text: str, of: Element, what: str = "the uuid") -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise BadXmlError(f"<{of.tag}> has {what} {text!r}, must be a uuid") from None


def cpus_in(element: Element, name: str) -> tuple[int, ...]:
    """The CPUs, or the cells, that an attribute names; none without the attribute."""
    try:
        return tuple(sorted(read_cpus(element.get(name, ""), name)))
    except ValueError as problem:
        raise BadXmlError(f"<{element.tag}> {problem}") from None


def attribute(element: Element, name: str) -> str:
    value = element.get(name)
    if value is None:
        raise BadXmlError(f"<{element.tag}> has no {name}")
    return value


def child(element: Element, path: str) -> Element:
    found = element.find(path)
    if found is None:
        raise BadXmlError(f"<{element.tag}> has no <{path}>")
    return found


def text_at(element: Element, path: str, default: str = "") -> str:
    return (element.findtext(path) or default).strip()


def kib_in(element: Element, default_unit: str = "KiB") -> int:
    """The amount of memory that an element such as <memory unit='KiB'> has."""
    unit = element.get("unit", default_unit)
    if unit not in _KIB:
        raise BadXmlError(f"<{element.tag}> has the unit {unit!r}, must be one of {', '.join(_KIB)}")
    return int(number_in(element.text, element, "the amount") * _KIB[unit])


def pci_address(element: Element) -> str:
    """The address of an element with domain, bus, slot and function, as the kernel writes it: 0000:81:00.1."""
    domain, bus, slot, function = (
        number_in(attribute(element, name), element, name) for name in ("domain", "bus", "slot", "function")
    )
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{function:x}"
