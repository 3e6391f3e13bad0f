"""The keys of a flavor and an image that are about the guest's shape, and the problems that are found in them."""

from collections.abc import Mapping

from bus.guests.shape import GuestProblem
from bus.messages.build import Flavor

SPEC, IMAGE = "flavor.extra_specs.", "image_properties."
NODES, CPUS, MEMORY = "numa_nodes", "numa_cpus", "numa_mem"
POLICY, THREADS, PAGES, AFFINITY = (
    "cpu_policy",
    "cpu_thread_policy",
    "mem_page_size",
    "pci_numa_affinity_policy",
)
MASK, EMULATOR = "cpu_dedicated_mask", "emulator_threads_policy"

_OF_BOTH = (NODES, POLICY, THREADS, PAGES, AFFINITY)
SPEC_KEYS = frozenset({f"hw:{name}" for name in (*_OF_BOTH, MASK, EMULATOR)})
IMAGE_KEYS = frozenset({f"hw_{name}" for name in _OF_BOTH})
_NUMBERED = tuple(f"hw{mark}{name}." for mark in ":_" for name in (CPUS, MEMORY))
# What a host alone reads: the hardware that it gives to the guest, and how it starts it.
HARDWARE_IMAGE_KEYS = frozenset(
    {
        "hw_machine_type",
        "hw_disk_bus",
        "hw_cdrom_bus",
        "hw_vif_model",
        "hw_video_model",
        "hw_firmware_type",
        "hw_cpu_sockets",
        "hw_cpu_cores",
        "hw_cpu_threads",
        "os_command_line",
    }
)
# Of a flavor also limits and further devices, as Nova's computes know them. All are told to the host; a driver may follow them.
HOST_SCOPES = ("quota:", "hw_rng:", "hw_video:", "vmware:")
HOST_SPEC_KEYS = frozenset(
    {
        *(f"hw:cpu_{part}" for part in ("sockets", "cores", "threads")),
        *(f"hw:cpu_max_{part}" for part in ("sockets", "cores", "threads")),
        *("hw:boot_menu", "hw:watchdog_action", "hw:serial_port_count", "hw:vif_multiqueue_enabled"),
        *("hw:hide_hypervisor_id", "hide_hypervisor_id", "hw:pmu", "hw:time_hpet", "hw:input_bus"),
        *("hw:usb_model", "hw:redirected_usb_ports", "hw:locked_memory", "hw:viommu_model"),
    }
)


def is_host_key(key: str) -> bool:
    """Is this extra spec read by the host alone? No host is chosen by it."""
    return key in HOST_SPEC_KEYS or key.startswith(HOST_SCOPES)


def is_guest_key(key: str) -> bool:
    """Is this key, of an extra spec or of a property, about the shape of the guest?"""
    return key in SPEC_KEYS or key in IMAGE_KEYS or key.startswith(_NUMBERED)


class GuestKeys:
    """The values of a flavor and an image, by the names that follow `hw:` and `hw_`."""

    def __init__(self, flavor: Flavor, properties: Mapping[str, str]) -> None:
        self.flavor = flavor
        self.properties = properties
        self.problems: list[GuestProblem] = []

    def of_flavor(self, name: str) -> str | None:
        return self.flavor.extra_specs.get(f"hw:{name}")

    def of_image(self, name: str) -> str | None:
        return self.properties.get(f"hw_{name}")

    def numbered(self, name: str) -> dict[str, tuple[str, str]]:
        """The field and the value of each `hw:NAME.N`, or of each `hw_NAME.N`, by what stands for N."""
        flavors = _numbered(self.flavor.extra_specs, f"hw:{name}.", SPEC)
        images = _numbered(self.properties, f"hw_{name}.", IMAGE)
        if flavors and images:
            field, value = next(iter(images.values()))
            self.wrong(field, value, f"the flavor says hw:{name}.N, and so the image may not")
        return flavors or images

    def wrong(self, field: str, value: str, reason: str) -> None:
        self.problems.append(GuestProblem(field, value, reason))

    def wrong_in_flavor(self, name: str, reason: str) -> None:
        self.wrong(f"{SPEC}hw:{name}", self.of_flavor(name) or "", reason)

    def wrong_in_image(self, name: str, reason: str) -> None:
        self.wrong(f"{IMAGE}hw_{name}", self.of_image(name) or "", reason)

    def wrong_where_said(self, name: str, reason: str) -> None:
        """The value of the flavor is wrong; that of the image if the flavor has none."""
        if self.of_flavor(name) is not None:
            self.wrong_in_flavor(name, reason)
        else:
            self.wrong_in_image(name, reason)

    def one_of(self, name: str, words: tuple[str, ...]) -> tuple[str | None, str | None]:
        """What flavor and image say, None where they say nothing or none of these words."""
        flavor, image = self.of_flavor(name), self.of_image(name)
        reason = f"it is one of {', '.join(words)}"
        if flavor is not None and flavor not in words:
            self.wrong_in_flavor(name, reason)
            flavor = None
        if image is not None and image not in words:
            self.wrong_in_image(name, reason)
            image = None
        return flavor, image


def _numbered(pairs: Mapping[str, str], prefix: str, field: str) -> dict[str, tuple[str, str]]:
    return {
        key.removeprefix(prefix): (field + key, value)
        for key, value in pairs.items()
        if key.startswith(prefix)
    }
