"""What an image's properties ask of the guest's hardware, beside its shape."""

from collections.abc import Mapping
from typing import Literal

# By property, the words that it may have, and the trait that a host has which can give it.
DISK_BUSES = {
    "virtio": "COMPUTE_STORAGE_BUS_VIRTIO",
    "scsi": "COMPUTE_STORAGE_BUS_SCSI",
    "sata": "COMPUTE_STORAGE_BUS_SATA",
    "ide": "COMPUTE_STORAGE_BUS_IDE",
    "usb": "COMPUTE_STORAGE_BUS_USB",
}
NIC_MODELS = {
    "virtio": "COMPUTE_NET_VIF_MODEL_VIRTIO",
    "e1000": "COMPUTE_NET_VIF_MODEL_E1000",
    "e1000e": "COMPUTE_NET_VIF_MODEL_E1000E",
    "rtl8139": "COMPUTE_NET_VIF_MODEL_RTL8139",
}
VIDEO_MODELS = {
    "vga": "COMPUTE_GRAPHICS_MODEL_VGA",
    "cirrus": "COMPUTE_GRAPHICS_MODEL_CIRRUS",
    "qxl": "COMPUTE_GRAPHICS_MODEL_QXL",
    "virtio": "COMPUTE_GRAPHICS_MODEL_VIRTIO",
    "bochs": "COMPUTE_GRAPHICS_MODEL_BOCHS",
    "none": "COMPUTE_GRAPHICS_MODEL_NONE",
}
FIRMWARES = {"bios": "COMPUTE_FIRMWARE_BIOS", "efi": "COMPUTE_FIRMWARE_UEFI"}


X86 = ("x86_64", "i686")


class CannotGiveError(ValueError):
    """The host cannot give what the order asks for; the text says what and why."""


def asked_word(properties: Mapping[str, str], name: str, words: Mapping[str, str], default: str = "") -> str:
    value = properties.get(name, "")
    if not value:
        return default
    if value not in words:
        raise CannotGiveError(f"image_properties.{name} is {value!r}, must be one of {', '.join(words)}")
    return value


def asked_firmware(properties: Mapping[str, str], arch: str) -> Literal["", "efi"]:
    """The firmware by libvirt's name. A BIOS is what guests of x86 have if no other firmware is named."""
    match asked_word(properties, "hw_firmware_type", {"bios": "", "uefi": ""}):
        case "uefi":
            return "efi"
        case "bios" if arch not in X86:
            raise CannotGiveError(f"image_properties.hw_firmware_type is 'bios', which {arch} does not have")
        case _:
            return ""
