"""What a domain says of its guest in an element of our own: whose it is, and what libvirt's elements do not tell.

By this element a compute that has restarted knows its own guests. libvirt keeps it, and reads nothing in it.
"""

import re
from uuid import UUID
from xml.etree.ElementTree import Element, SubElement, register_namespace

from msgspec import Struct

from bus.message import ConsumerId, ProviderId
from bus.messages.build import InstanceId
from bus.messages.placement import ResourceAmount, ShapeSeen, Share
from compute_sim.libvirt.core.cpu_ranges import cpus_in_words, read_cpus
from compute_sim.libvirt.core.plans import GuestPlan, PlannedMediated
from compute_sim.libvirt.core.xml_reading import BadXmlError, attribute, child, number_in

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


def add_metadata(domain: Element, plan: GuestPlan) -> None:
    guest = SubElement(
        SubElement(domain, "metadata"),
        _tag("guest"),
        instance=str(plan.instance),
        attempt=str(plan.attempt),
        cell=_escape(plan.cell),
        name=_escape(plan.name),
        project=_escape(plan.project),
    )
    share = SubElement(
        guest, _tag("share"), host=str(plan.share.host), instances_max=str(plan.share.instances_max)
    )
    for each in plan.share.amounts:
        SubElement(
            share,
            _tag("amount"),
            {"provider": str(each.provider), "class": _escape(each.resource), "amount": str(each.amount)},
        )
    for shape in plan.share.shapes:
        SubElement(share, _tag("shape"), root=str(shape.root), shape=str(shape.shape))
    if plan.dedicated:
        SubElement(guest, _tag("dedicated"), cpus=cpus_in_words(plan.dedicated))
    for device in plan.mediated:
        attributes = {"uuid": str(device.uuid), "type": _escape(device.type), "parent": device.parent}
        SubElement(guest, _tag("mediated"), attributes)


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
        dedicated=() if dedicated is None else tuple(sorted(read_cpus(attribute(dedicated, "cpus")))),
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
    text = attribute(element, name)
    try:
        return UUID(text)
    except ValueError:
        raise BadXmlError(f"<{element.tag}> has the {name} {text!r}, must be a uuid") from None


def _escape(text: str) -> str:
    return _SPECIAL.sub(lambda found: f"\\{ord(found[0]):04x}", text)


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)
