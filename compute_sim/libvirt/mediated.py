"""Makes the mediated devices of a guest before it starts, and removes them after it."""

import contextlib
from xml.etree.ElementTree import Element, SubElement, tostring

import libvirt

from compute_sim.libvirt.core.plans import ForeignGuest, GuestPlan, PlannedMediated


def make_mediated(connection: libvirt.virConnect, held: GuestPlan | ForeignGuest) -> None:
    """Make those devices of the guest that do not exist; libvirt's refusal is the caller's."""
    for device in _devices(held):
        if _found(connection, device) is None:
            connection.nodeDeviceCreateXML(mediated_xml(device))


def remove_mediated(connection: libvirt.virConnect, held: GuestPlan | ForeignGuest) -> None:
    for device in _devices(held):
        found = _found(connection, device)
        if found is not None:
            # Another guest's start may have failed with it; the next look finds what is left.
            with contextlib.suppress(libvirt.libvirtError):
                found.destroy()


def _devices(held: GuestPlan | ForeignGuest) -> tuple[PlannedMediated, ...]:
    return held.mediated if isinstance(held, GuestPlan) else ()


def _found(connection: libvirt.virConnect, device: PlannedMediated) -> libvirt.virNodeDevice | None:
    name = f"mdev_{str(device.uuid).replace('-', '_')}"
    for each in connection.listAllDevices(libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_MDEV):
        if each.name().startswith(name):
            return each
    return None


def mediated_xml(device: PlannedMediated) -> str:
    """The device as libvirt makes it."""
    top = Element("device")
    SubElement(top, "parent").text = "pci_" + device.parent.replace(":", "_").replace(".", "_")
    capability = SubElement(top, "capability", type="mdev")
    SubElement(capability, "type", id=device.type)
    SubElement(capability, "uuid").text = str(device.uuid)
    return tostring(top, encoding="unicode")
