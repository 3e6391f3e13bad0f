"""Storage pools and networks of libvirt as pools that the host shares with others: gigabytes of disk, and addresses.

Usually the compute reports such a pool, for the hosts of its cell. One that several cells share belongs to none of them: an operator
makes its provider in placement, and the hosts only join the aggregate with it.
"""

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from ipaddress import AddressValueError, IPv4Address
from typing import NamedTuple
from uuid import UUID
from xml.etree.ElementTree import Element

from msgspec import Struct

from bus.message import AggregateId, ProviderId
from bus.messages.placement import Share
from compute_sim.core.pools import Pool, aggregate_of, tree_of_pool
from compute_sim.libvirt.core.xml_reading import BadXmlError, attribute, child, kib_in, read_xml, text_at

DISK, ADDRESS = "DISK_GB", "IPV4_ADDRESS"
_KIB_PER_GB = 1024**2
# Pools whose volumes are files in a folder.
_OF_FILES = ("dir", "fs", "netfs")
FORM = (
    "NAME, as libvirt calls it; behind it =AGGREGATE, the id of an aggregate whose provider another one reports, and @HOSTS, a pattern "
    "of the hosts that share it"
)
_WRITTEN = re.compile(
    r"(?P<name>[\w.-]{1,100})(?:=(?P<aggregate>[0-9a-f-]{36}))?(?:@(?P<hosts>[^\s,=@]+))?", re.ASCII
)


class SharingOffer(NamedTuple):
    """A storage pool or a network, by libvirt's name, that the hosts share whose names match `hosts`."""

    name: str
    aggregate: AggregateId | None = None
    hosts: str = "*"


class SharedPool(Struct, frozen=True):
    """A storage pool or a network as a host sees it. `pool` is None if this compute does not report it.

    `path` is the folder of the storage pool.
    """

    name: str
    resource: str
    aggregate: AggregateId
    pool: Pool | None = None
    path: str = ""

    @property
    def provider(self) -> ProviderId | None:
        return None if self.pool is None else tree_of_pool(self.pool).root


def read_sharing(texts: Iterable[str], field: str) -> tuple[SharingOffer, ...]:
    offers = tuple([_read(text, field) for text in texts])
    names = [each.name for each in offers]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"{field} has the name {twice!r} twice, each name may be there once")
    return offers


def _read(text: str, field: str) -> SharingOffer:
    found = _WRITTEN.fullmatch(text)
    try:
        if found is not None:
            id_ = found["aggregate"]
            return SharingOffer(found["name"], AggregateId(UUID(id_)) if id_ else None, found["hosts"] or "*")
    except ValueError:
        pass
    raise ValueError(f"{field} has {text!r}, must be {FORM}")


def shared_with(offers: Iterable[SharingOffer], host: str) -> list[SharingOffer]:
    return [each for each in offers if fnmatchcase(host, each.hosts)]


def shared_storage(text: str, offer: SharingOffer, cell: str) -> SharedPool:
    """The storage pool of an offer. Raises BadXmlError if its disks are no files, or its size is not known."""
    described = read_xml(text, "pool")
    kind = described.get("type", "")
    if kind not in _OF_FILES:
        raise BadXmlError(
            f"the storage pool {offer.name!r} has the type {kind!r}, must be {', '.join(_OF_FILES)}"
        )
    return _shared(offer, DISK, read_storage_pool(text, cell, offer.hosts), text_at(described, "target/path"))


def shared_network(text: str, offer: SharingOffer, cell: str) -> SharedPool:
    return _shared(offer, ADDRESS, read_network(text, cell, offer.hosts))


def _shared(offer: SharingOffer, resource: str, pool: Pool, path: str = "") -> SharedPool:
    if offer.aggregate is not None:
        return SharedPool(offer.name, resource, offer.aggregate, None, path)
    return SharedPool(offer.name, resource, aggregate_of(pool), pool, path)


def claimed_of(shared: Sequence[SharedPool], share: Share, resource: str) -> list[SharedPool]:
    """The pools that give something of this class to a share. A provider that is none of the known ones is that of an aggregate."""
    known = {each.provider: each for each in shared if each.resource == resource}
    providers = [
        each.provider for each in share.amounts if each.resource == resource and each.provider != share.host
    ]
    found = [known.get(each, known.get(None)) for each in providers]
    return [each for each in found if each is not None]


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
