"""What a domain says of its guest in an element of our own: whose it is, and what libvirt's elements do not tell.

By this element a compute that has restarted knows its own guests. libvirt keeps it, and reads nothing in it.
"""

import re
from uuid import UUID
from xml.etree.ElementTree import Element, SubElement, register_namespace, tostring

from msgspec import Struct

from bus.message import ConsumerId, ProviderId
from bus.messages.build import InstanceId
from bus.messages.placement import ResourceAmount, ShapeSeen, Share
from compute_sim.libvirt.core.cpu_ranges import cpus_in_words
from compute_sim.libvirt.core.plans import PlannedMediated
from compute_sim.libvirt.core.xml_reading import attribute, child, cpus_in, number_in, uuid_in

NAMESPACE = "urn:moorage:guest:1"
register_namespace("moorage", NAMESPACE)
# What XML cannot have, or changes in an attribute; and the mark that it is written with.
_SPECIAL = re.compile("[\\\\\x00-\x1f\x7f-\x9f\u2028\ud800-\udfff\ufffe\uffff]")
_ESCAPED = re.compile(r"\\([0-9a-f]{4})")


class GuestMetadata(Struct, frozen=True, kw_only=True):
    instance: InstanceId
    attempt: int
    cell: str
    name: str
    project: str
    share: Share
    dedicated: tuple[int, ...]
    # By the uuid.
    mediated: dict[UUID, PlannedMediated]


def add_metadata(domain: Element, ours: GuestMetadata) -> None:
    SubElement(domain, "metadata").append(_element(ours))


def metadata_xml(ours: GuestMetadata) -> str:
    """The element alone, for a domain that exists: libvirt sets it by the namespace, while the guest runs."""
    return tostring(_element(ours), encoding="unicode")


def _element(ours: GuestMetadata) -> Element:
    guest = Element(
        _tag("guest"),
        instance=str(ours.instance),
        attempt=str(ours.attempt),
        cell=_escape(ours.cell),
        name=_escape(ours.name),
        project=_escape(ours.project),
    )
    share = SubElement(
        guest, _tag("share"), host=str(ours.share.host), instances_max=str(ours.share.instances_max)
    )
    for each in ours.share.amounts:
        SubElement(
            share,
            _tag("amount"),
            {"provider": str(each.provider), "class": _escape(each.resource), "amount": str(each.amount)},
        )
    for shape in ours.share.shapes:
        SubElement(share, _tag("shape"), root=str(shape.root), shape=str(shape.shape))
    if ours.dedicated:
        SubElement(guest, _tag("dedicated"), cpus=cpus_in_words(ours.dedicated))
    for device in ours.mediated.values():
        attributes = {"uuid": str(device.uuid), "type": _escape(device.type), "parent": device.parent}
        SubElement(guest, _tag("mediated"), attributes)
    return guest


def read_metadata(domain: Element) -> GuestMetadata | None:
    """What our element says; None if the domain has none."""
    guest = domain.find(f"metadata/{_tag('guest')}")
    if guest is None:
        return None
    share = child(guest, _tag("share"))
    dedicated = guest.find(_tag("dedicated"))
    devices = (
        PlannedMediated(_uuid(each, "uuid"), _unescape(attribute(each, "type")), attribute(each, "parent"))
        for each in guest.findall(_tag("mediated"))
    )
    return GuestMetadata(
        instance=ConsumerId(_uuid(guest, "instance")),
        attempt=_number(guest, "attempt"),
        cell=_unescape(attribute(guest, "cell")),
        name=_unescape(attribute(guest, "name")),
        project=_unescape(attribute(guest, "project")),
        share=Share(
            host=ProviderId(_uuid(share, "host")),
            amounts=tuple(map(_amount, share.findall(_tag("amount")))),
            shapes=tuple(
                ShapeSeen(root=ProviderId(_uuid(each, "root")), shape=_number(each, "shape"))
                for each in share.findall(_tag("shape"))
            ),
            instances_max=_number(share, "instances_max"),
        ),
        dedicated=() if dedicated is None else cpus_in(dedicated, "cpus"),
        mediated={device.uuid: device for device in devices},
    )


def _amount(element: Element) -> ResourceAmount:
    return ResourceAmount(
        provider=ProviderId(_uuid(element, "provider")),
        resource=_unescape(attribute(element, "class")),
        amount=_number(element, "amount"),
    )


def _tag(name: str) -> str:
    return f"{{{NAMESPACE}}}{name}"


def _number(element: Element, name: str) -> int:
    return number_in(attribute(element, name), element, name)


def _uuid(element: Element, name: str) -> UUID:
    return uuid_in(attribute(element, name), element, name)


def _escape(text: str) -> str:
    return _SPECIAL.sub(lambda found: f"\\{ord(found[0]):04x}", text)


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)
