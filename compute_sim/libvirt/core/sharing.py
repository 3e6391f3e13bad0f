"""Storage pools and networks of libvirt as pools that the host shares with others: gigabytes of disk, and addresses."""

from ipaddress import AddressValueError, IPv4Address
from xml.etree.ElementTree import Element

from compute_sim.core.pools import Pool
from compute_sim.libvirt.core.xml_reading import BadXmlError, attribute, child, kib_in, read_xml, text_at

DISK, ADDRESS = "DISK_GB", "IPV4_ADDRESS"
_KIB_PER_GB = 1024**2


def read_storage_pool(text: str, cell: str, hosts: str = "*") -> Pool:
    """The whole capacity of a storage pool, in whole gigabytes. The hosts of the cell share it whose names match `hosts`."""
    pool = read_xml(text, "pool")
    name = text_at(pool, "name")
    total = kib_in(child(pool, "capacity"), "bytes") // _KIB_PER_GB
    if not total:
        raise BadXmlError(f"the storage pool {name!r} has less than 1 GiB: is it started?")
    return Pool(f"{cell}-{name}", DISK, total, hosts)


def read_network(text: str, cell: str, hosts: str = "*") -> Pool:
    """The addresses that a network gives its guests by DHCP."""
    network = read_xml(text, "network")
    name = text_at(network, "name")
    total = sum(map(_addresses, network.findall("ip/dhcp/range")))
    if not total:
        raise BadXmlError(f"the network {name!r} has no range of IPv4 addresses for DHCP")
    return Pool(f"{cell}-{name}", ADDRESS, total, hosts)


def _addresses(range_: Element) -> int:
    """How many addresses are in a range; a range of IPv6 has none."""
    start, end = attribute(range_, "start"), attribute(range_, "end")
    if ":" in start:
        return 0
    try:
        return int(IPv4Address(end)) - int(IPv4Address(start)) + 1
    except AddressValueError:
        raise BadXmlError(f"<range> is from {start!r} to {end!r}, must be IPv4 addresses") from None
